"""Rules about loops that the broker turns by itself.

RabbitMQ drops a message that comes back to a queue by dead-lettering without having been rejected
on the way: a cycle. In at-least-once dead-lettering it is not dropped but stuck inside its queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.topology.hazards.analysis import drops_head, limited, number, text
from hopback.topology.hazards.phrases import HARDENED, listed, queue_place
from hopback.topology.hazards.rule import HazardRule, Hit, errors, warnings
from hopback.topology.plan import Leave

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.topology.hazards.analysis import Analysis, Loop

__all__ = ["RULES"]

_DROPPED = (
    "comes back without a rejection, which the broker takes for a cycle: it drops the message (or,"
    " with at-least-once dead-lettering, keeps it stuck and unseen)"
)
_MAIN_TO_DLQ = (
    f"Let the queue's dead-letter exchange lead to the dead-letter queue, never to the retry queue:"
    f" {HARDENED}"
)


def _without_rejection(analysis: Analysis) -> Iterator[Hit]:
    """Rings of queues that all let messages expire, each ring once."""
    expiring = {
        name for name in analysis.legs if number(analysis.queues[name], "x-message-ttl") is not None
    }
    reached = {name: analysis.reached(name, expiring) & expiring for name in expiring}
    rings = {
        frozenset(each for each in reached[name] if name in reached[each])
        for name in expiring
        if name in reached[name]
    }
    for ring in sorted(rings, key=sorted):
        yield Hit(
            queue_place(*ring),
            f"A message that nobody rejects expires round {listed(ring)} and {_DROPPED}. Whatever"
            " waits longer than the time to live without being consumed is lost.",
            "Take `x-message-ttl` from the consumed queue, or let it expire into a dead-letter"
            " queue.",
        )


def _chained(analysis: Analysis) -> Iterator[Hit]:
    for loop in analysis.loops:
        chain = {
            name
            for name in loop.through
            for target in analysis.targets(name)
            if target in loop.through and target != name
        }
        if chain:
            yield Hit(
                queue_place(loop.main),
                f"A rejected message waits in several queues one after another"
                f" ({listed(loop.through)}). These brokers lose track of the rejection and drop"
                " the message as a cycle on its second lap.",
                "Use one retry queue per delay and let each return straight to the main queue.",
            )


def _delivery_limit(analysis: Analysis) -> Iterator[Hit]:
    for loop in analysis.loops:
        limit = analysis.limit(analysis.queues[loop.main])
        if limit is None:
            continue
        origin = "default delivery limit of" if limit.by_default else "delivery limit of"
        yield Hit(
            queue_place(loop.main),
            f"A message returned more often than the {origin} {limit.value} allows (each crash of"
            f" a consumer returns all it holds) goes to the retry queue and {_DROPPED}.",
            f"{_MAIN_TO_DLQ}; or lift the limit by a policy (`delivery-limit: -1`, from 4.0 on).",
            errors(since="4.0" if limit.by_default else ""),
        )


def _max_length(analysis: Analysis) -> Iterator[Hit]:
    for loop in analysis.loops:
        # Whether a full queue dead-letters: what it held, or what is published to it.
        queue = analysis.queues[loop.main]
        dead_letters = text(queue, "x-overflow") == "reject-publish-dlx"
        if drops_head(queue) or (limited(queue) and dead_letters):
            yield Hit(
                queue_place(loop.main),
                f"When the queue is full, its overflow goes to the retry queue and {_DROPPED}.",
                f"{_MAIN_TO_DLQ}; or take the length limit away, or use"
                " `x-overflow: reject-publish` so that publishers are told.",
            )


def _expiration(analysis: Analysis) -> Iterator[Hit]:
    if analysis.loops:
        mains = [loop.main for loop in analysis.loops]
        yield Hit(
            queue_place(*mains),
            "A message that a producer publishes with an `expiration` and that expires before it"
            f" is consumed goes to the retry queue and {_DROPPED}.",
            f"Publish without `expiration`, or {HARDENED}: there it expires into the dead-letter"
            " queue.",
        )


def _wrongly_dropped(analysis: Analysis) -> Iterator[Hit]:
    """A notice about one broker, so only where a broker is meant."""
    if analysis.version is not None and analysis.loops:
        yield Hit(
            queue_place(*(loop.main for loop in analysis.loops)),
            f"RabbitMQ {analysis.version} can take a sound retry loop for a cycle and drop the"
            " message (rabbitmq-server issue 11159).",
            f"Upgrade to 3.13.3 or later, or {HARDENED}.",
        )


def _laps(analysis: Analysis) -> Iterator[Hit]:
    for loop in analysis.loops:
        found = _too_many(analysis, loop)
        if found:
            laps, limit = found
            yield Hit(
                queue_place(loop.main),
                f"A message may go round {laps} times, and the delivery limit is {limit}. These"
                " brokers count a `basic.reject` into the retry queue and keep the count, so after"
                " that many laps one crash of a consumer exceeds the limit, and the message is"
                " dropped as a cycle.",
                f"Reject with `basic.nack` (as Hopback does), allow fewer attempts, or {HARDENED}.",
            )


def _too_many(analysis: Analysis, loop: Loop) -> tuple[int, int] | None:
    """The laps that the plan allows and the limit they reach."""
    plan, limit = analysis.plans.get(loop.main), analysis.limit(analysis.queues[loop.main])
    if plan is None or limit is None or plan.leave is not Leave.REJECT:
        return None
    laps = plan.attempts - 1
    return (laps, limit.value) if laps >= limit.value else None


RULES = (
    HazardRule("cycle-without-rejection", errors(), _without_rejection),
    HazardRule("chained-retry-queues", errors(before="3.13"), _chained),
    HazardRule("delivery-limit-feeds-retry", errors(since="4.0"), _delivery_limit),
    HazardRule("max-length-feeds-retry", errors(), _max_length),
    HazardRule("expiration-feeds-retry", warnings(), _expiration),
    HazardRule("sound-loop-dropped", warnings(since="3.13", before="3.13.3"), _wrongly_dropped),
    HazardRule("laps-reach-delivery-limit", warnings(since="4.3"), _laps),
)
"""What can go wrong in a loop of dead letters."""
