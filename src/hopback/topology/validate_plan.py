"""What makes a failure plan invalid: numbers that make no sense, and names that lead nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.errors import Problem
from hopback.topology.durations import LONGEST_MS, format_duration
from hopback.topology.model import QueueType
from hopback.topology.wording import did_you_mean, path_to, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.topology.model import Topology
    from hopback.topology.plan import Plan, Stamp, Tier

__all__ = ["plan_problems"]

_LONGEST_HEADER_BYTES = 255  # the longest key of an AMQP 0-9-1 table


def plan_problems(plan: Plan, topology: Topology) -> Iterator[Problem]:
    """Everything that is wrong with a plan of this topology."""
    path = path_to("plans", plan.queue)
    yield from _queue_known(path, plan.queue, topology)
    if plan.attempts < 1:
        yield Problem(f"{path}.attempts", "at least 1", str(plan.attempts))
    if plan.attempts > 1 and not plan.tiers:
        yield Problem(f"{path}.tiers", f"a tier to wait in before attempt {plan.attempts}", "none")
    yield from _tiers(path, plan, topology)
    yield from _exits(path, plan, topology)
    yield from _snooze(path, plan, topology)
    yield from _headers(path, plan)


def _tiers(path: str, plan: Plan, topology: Topology) -> Iterator[Problem]:
    before: Tier | None = None
    for at, tier in enumerate(plan.tiers):
        here = path_to(f"{path}.tiers", at)
        yield from _delay(f"{here}.delay", tier, before)
        if not tier.routes:
            yield Problem(f"{here}.routes", "at least one way into a retry queue", "none")
        for number, route in enumerate(tier.routes):
            step = path_to(f"{here}.routes", number)
            yield from _queue_known(f"{step}.queue", route.queue, topology)
            yield from _exchange_known(f"{step}.exchange", route.exchange, topology)
        before = tier
    # A wait that is used twice is one tier, written twice.
    different = [tier for at, tier in enumerate(plan.tiers) if tier not in plan.tiers[:at]]
    names = [tier.name for tier in different]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(f"{path}.tiers", "each tier to have a name of its own", shown(name))


def _delay(path: str, tier: Tier, before: Tier | None) -> Iterator[Problem]:
    if not 0 <= tier.delay_ms <= LONGEST_MS:
        yield Problem(path, f"0 to {LONGEST_MS} ms (ten years)", f"{shown(tier.delay_ms)} ms")
    elif before is not None and 0 <= tier.delay_ms < before.delay_ms <= LONGEST_MS:
        longer = f"a delay no shorter than the tier before it ({format_duration(before.delay_ms)})"
        yield Problem(path, longer, format_duration(tier.delay_ms))


def _exits(path: str, plan: Plan, topology: Topology) -> Iterator[Problem]:
    yield from _queue_known(f"{path}.parking.queue", plan.parking.queue, topology)
    yield from _exchange_known(f"{path}.parking.exchange", plan.parking.exchange, topology)
    yield from _exchange_known(f"{path}.redrive.exchange", plan.redrive.exchange, topology)
    if plan.parking.queue == plan.queue:
        yield Problem(f"{path}.parking.queue", "another queue than its own", shown(plan.queue))


def _snooze(path: str, plan: Plan, topology: Topology) -> Iterator[Problem]:
    wait = plan.snooze
    if wait is None:
        return
    if not 0 <= wait.min_ms <= wait.max_ms <= LONGEST_MS:
        found = f"{shown(wait.min_ms)} to {shown(wait.max_ms)} ms"
        yield Problem(f"{path}.snooze", "a shortest and a longest wait, in that order", found)
    queue = topology.queue(plan.queue)
    if queue is not None and queue.type is not QueueType.CLASSIC:
        expected = "a classic queue (others count every requeue, and delete the message in the end)"
        yield Problem(f"{path}.snooze", expected, str(queue.type))


def _headers(path: str, plan: Plan) -> Iterator[Problem]:
    if plan.count_header is not None:
        yield from _header(f"{path}.count_header", plan.count_header)
    yield from _stamps(f"{path}.retry_stamps", plan.retry_stamps)
    yield from _stamps(f"{path}.park_stamps", plan.park_stamps)


def _stamps(path: str, stamps: tuple[Stamp, ...]) -> Iterator[Problem]:
    for at, stamp in enumerate(stamps):
        yield from _header(f"{path_to(path, at)}.header", stamp.header)


def _header(path: str, name: str) -> Iterator[Problem]:
    size = len(name.encode(errors="surrogatepass"))
    if not 1 <= size <= _LONGEST_HEADER_BYTES:
        yield Problem(path, f"a header name of 1 to {_LONGEST_HEADER_BYTES} bytes", shown(name))


def _queue_known(path: str, name: str, topology: Topology) -> Iterator[Problem]:
    if topology.queue(name) is None:
        hint = did_you_mean(name, [queue.name for queue in topology.queues])
        yield Problem(path, "the name of a declared queue", shown(name) + hint)


def _exchange_known(path: str, name: str, topology: Topology) -> Iterator[Problem]:
    if name and not name.startswith("amq.") and topology.exchange(name) is None:
        hint = did_you_mean(name, [exchange.name for exchange in topology.exchanges])
        known = 'the name of a declared exchange, or "" for the default exchange'
        yield Problem(path, known, shown(name) + hint)
