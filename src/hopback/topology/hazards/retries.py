"""Rules about retry queues and delay queues."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

from hopback.durations import LONGEST_MS, format_duration
from hopback.topology.delays import DUE, delay_level_names, delay_topology, is_delay_level
from hopback.topology.hazards.analysis import (
    Analysis,
    drops_head,
    has_limit,
    looks_like_retry_queue,
    number,
)
from hopback.topology.hazards.rule import (
    HARDENED,
    HazardRule,
    Hit,
    errors,
    exchange_place,
    infos,
    list_names,
    queue_place,
    quote_name,
    warnings,
)
from hopback.topology.model import Queue, QueueType
from hopback.topology.plan import Leave, Plan

if TYPE_CHECKING:
    from collections.abc import Iterator


# Maps an exchange and the unintended queues to the affected queues.
_Strays: TypeAlias = "defaultdict[tuple[str, frozenset[str]], set[str]]"


def _without_ttl(analysis: Analysis) -> Iterator[Hit]:
    for queue in analysis.queues.values():
        if number(queue, "x-message-ttl") is not None:
            continue
        if queue.name in analysis.users:
            yield _never_expires(queue, "This retry queue has no time to live")
        elif (
            queue.name in analysis.mains.keys() - analysis.plans.keys()
            and looks_like_retry_queue(queue.name)
            and queue.name != DUE  # it has "delay" in its name, but is consumed
            # Its dead letters are routed to a consumed queue.
            and set(analysis.targets(queue.name))
            - analysis.dead_letter_queues
            - analysis.retry_queues
        ):
            seeming = _never_expires(queue, "Its name suggests a retry queue, but it has no TTL")
            yield Hit(seeming.place, seeming.explanation, seeming.fix, warnings())


def _never_expires(queue: Queue, beginning: str) -> Hit:
    return Hit(
        queue_place(queue.name),
        f"{beginning} (`x-message-ttl`). A message that enters it waits forever, unless its"
        " publisher set an `expiration`. Even then it waits for all messages before it.",
        "Set `x-message-ttl` to the intended delay. Use one queue for each delay.",
    )


def _without_return(analysis: Analysis) -> Iterator[Hit]:
    seen = set()
    for plan, _, route in analysis.routes:
        if route.queue not in analysis.queues or (plan.queue, route.queue) in seen:
            continue
        seen.add((plan.queue, route.queue))
        if plan.queue not in analysis.targets(route.queue):
            ends = (
                "are deleted"
                if route.queue not in analysis.legs
                else "are routed elsewhere or dropped"
            )
            yield Hit(
                queue_place(route.queue),
                f"Messages of {quote_name(plan.queue)} wait here and then {ends}. They never return for"
                " another attempt.",
                'Set `x-dead-letter-exchange: ""` and `x-dead-letter-routing-key` to'
                f" {quote_name(plan.queue)} on the retry queue.",
            )


def _delays(analysis: Analysis) -> dict[str, set[int]]:
    """Return the delays of each retry queue according to the plans."""
    delays: defaultdict[str, set[int]] = defaultdict(set)
    for _, delay_ms, route in analysis.routes:
        if route.queue in analysis.queues:
            delays[route.queue].add(delay_ms)
    return delays


def _other_delay(analysis: Analysis) -> Iterator[Hit]:
    for name, delays in _delays(analysis).items():
        ttl_ms = number(analysis.queues[name], "x-message-ttl")
        if ttl_ms is not None and len(delays) == 1 and ttl_ms not in delays:
            yield Hit(
                queue_place(name),
                f"The plan specifies a wait of {_format_delays(*delays)}, but messages expire after"
                f" {ttl_ms} ms in this queue.",
                "Make both the same. The time to live of an existing queue cannot be changed:"
                " use a new name, or a policy.",
            )


def _several_delays(analysis: Analysis) -> Iterator[Hit]:
    for name, delays in _delays(analysis).items():
        if len(delays) > 1:
            yield Hit(
                queue_place(name),
                f"One queue serves several delays ({_format_delays(*sorted(delays))}). Messages"
                " only expire at the head of a queue, so a short delay lasts as long as the longest"
                " one before it.",
                "Use one retry queue for each delay, each with its own `x-message-ttl`.",
            )


def _format_delays(*delays_ms: int) -> str:
    """Format delays. They may be invalid, because plans are not validated here."""
    return ", ".join(
        format_duration(delay) if 0 <= delay <= LONGEST_MS else f"{delay} ms" for delay in delays_ms
    )


def _reaches_others(analysis: Analysis) -> Iterator[Hit]:
    back: _Strays = defaultdict(set)
    ways = [(plan.queue, route.queue) for plan, _, route in analysis.routes]
    ways += [(loop.main, name) for loop in analysis.loops for name in loop.through]
    for main, waiting in ways:
        beside = frozenset(analysis.targets(waiting)) - {main}
        # Messages that do not return are reported by another rule.
        if beside and main in analysis.targets(waiting):
            back[analysis.legs[waiting].exchange, beside].add(main)
    for (exchange, others), mains in back.items():
        yield Hit(
            exchange_place(exchange),
            f"Retries of {list_names(mains)} return through this exchange and also reach"
            f" {list_names(others)}, which did not fail. Each retry is handled there once more.",
            "Return messages directly to the queue that failed, through the default exchange with its name"
            f" as the key: {HARDENED}.",
        )
    out: _Strays = defaultdict(set)
    for plan in analysis.plans.values():
        for exchange, reached, meant in _ways_out(analysis, plan):
            if frozenset(reached) - meant and meant.intersection(reached):
                out[exchange, frozenset(reached) - meant].add(plan.queue)
    for (exchange, others), mains in out.items():
        yield Hit(
            exchange_place(exchange),
            f"Failed messages of {list_names(mains)} that leave for retry also reach {list_names(others)}:"
            " each failure creates additional copies.",
            "Use a separate routing key for each retry queue.",
        )
    # Find retry queues that are not used by a plan or a loop and lead to several queues.
    explained = set(analysis.users) | {name for loop in analysis.loops for name in loop.through}
    strays: _Strays = defaultdict(set)
    for name in analysis.retry_queues - explained:
        if len(analysis.targets(name)) > 1:
            strays[analysis.legs[name].exchange, frozenset(analysis.targets(name))].add(name)
    for (exchange, others), names in strays.items():
        yield Hit(
            exchange_place(exchange),
            f"Messages that expire in {list_names(names)} reach several queues through this exchange:"
            f" {list_names(others)}. If these messages are retries, queues that did not fail receive"
            " them too.",
            "Let a retry return directly to its own queue, through the default exchange.",
            infos(),
        )


def _ways_out(
    analysis: Analysis, plan: Plan
) -> Iterator[tuple[str, tuple[str, ...], frozenset[str]]]:
    """Yield the exchange, the actual queues and the intended queues of each retry route."""
    routes = [route for tier in plan.tiers for route in tier.routes]
    leg = analysis.legs.get(plan.queue)
    if plan.leave is Leave.REJECT and leg:
        yield leg.exchange, leg.targets, frozenset(route.queue for route in routes)
    # Messages with Hopback's count are always published.
    for route in routes:
        reached = analysis.route(route.exchange, route.routing_key)
        yield route.exchange, reached, frozenset({route.queue})


def _length_limit(analysis: Analysis) -> Iterator[Hit]:
    for name in analysis.retry_queues & analysis.queues.keys():
        queue = analysis.queues[name]
        fed = any(name in leg.targets for leg in analysis.legs.values())
        if drops_head(queue):
            yield Hit(
                queue_place(name),
                "When this retry queue is full, the broker moves its oldest messages on before"
                " their delay is over, or deletes them if it has no dead-letter exchange.",
                "Remove the length limit.",
            )
        elif has_limit(queue) and fed and queue.type is QueueType.CLASSIC:
            yield Hit(
                queue_place(name),
                "When this classic retry queue is full, it discards the dead letters that the"
                " broker moves into it. `reject-publish` only affects publishers.",
                "Remove the length limit, or let messages leave by a confirmed publish.",
                errors(),
            )


def _with_priorities(analysis: Analysis) -> Iterator[Hit]:
    for queue in analysis.queues.values():
        if queue.name in analysis.retry_queues and number(queue, "x-max-priority") is not None:
            yield Hit(
                queue_place(queue.name),
                "This retry queue has priorities (`x-max-priority`). Messages only expire at the head,"
                " so a message with a low priority waits behind all messages with a higher one,"
                " much longer than its delay.",
                "Remove `x-max-priority`. Messages keep their priority for the main queue.",
            )


def _cut_short(analysis: Analysis) -> Iterator[Hit]:
    """Check for missing or changed delay queues. Delayed messages would be early."""
    levels = [each.name for each in analysis.topology.exchanges if is_delay_level(each.name)]
    if not levels:
        return
    bound = {
        (each.source, each.destination, each.routing_key) for each in analysis.topology.bindings
    }
    # Levels are contiguous, so all names can be derived from the highest one.
    names = delay_level_names(max(levels))
    whole = delay_topology((1 << len(names)) - 1)
    ways = {each.source: each for each in whole.bindings}
    for name in names:
        queue, wanted = analysis.queues.get(name), whole.queue(name)
        way = ways[name]
        waits = None if queue is None else number(queue, "x-message-ttl")
        expected = None if wanted is None else number(wanted, "x-message-ttl")
        if waits == expected and (way.source, way.destination, way.routing_key) in bound:
            continue
        found = "does not exist" if queue is None else f"holds them for {waits} ms"
        if waits == expected:
            found = "is not bound to its exchange"
        yield Hit(
            queue_place(name),
            f"Delayed messages wait here for {expected} ms of their delay, but the queue {found}."
            " They arrive too early or too late.",
            "Start an application with `app.delays()`, which declares it, or remove all delay queues.",
        )


RULES = (
    HazardRule("retry-without-ttl", errors(), _without_ttl),
    HazardRule("retry-without-return", errors(), _without_return),
    HazardRule("retry-delay-differs", warnings(), _other_delay),
    HazardRule("mixed-delays", warnings(), _several_delays),
    HazardRule("retry-reaches-others", warnings(), _reaches_others),
    HazardRule("retry-queue-limited", warnings(), _length_limit),
    HazardRule("retry-queue-with-priorities", warnings(), _with_priorities),
    HazardRule("delay-cut-short", errors(), _cut_short),
)
"""Rules about retry queues and delay queues."""
