"""Rules about dead-lettering and retry loops."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hopback.topology.hazards.analysis import (
    Analysis,
    Leg,
    drops_head,
    has_limit,
    looks_like_dead_letter_queue,
    number,
    text,
)
from hopback.topology.hazards.rule import (
    HARDENED,
    HazardRule,
    Hit,
    errors,
    if_limits_can_be_lifted,
    list_names,
    queue_place,
    quote_name,
    warnings,
)
from hopback.topology.model import QueueType
from hopback.topology.plan import Leave
from hopback.topology.wording import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator


_OUT = "out into the retry queue"
_BACK = "back from the retry queue"
_INTO = "into the dead-letter queue"
_WAYS = (_OUT, _BACK, _INTO)


def _exchange_missing(analysis: Analysis) -> Iterator[Hit]:
    for leg in analysis.legs.values():
        if not leg.declared:
            hint = did_you_mean(leg.exchange, analysis.exchanges)
            yield Hit(
                queue_place(leg.source),
                f"Its dead letters go to exchange {quote_name(leg.exchange)}, which does not exist. The"
                " broker silently drops every message that is rejected, expires or exceeds a limit"
                " here.",
                f"Declare {quote_name(leg.exchange)} and bind a queue to it, or correct the name{hint}.",
            )


def _unroutable(analysis: Analysis) -> Iterator[Hit]:
    for leg in analysis.legs.values():
        if leg.declared and not leg.targets:
            yield Hit(
                queue_place(leg.source),
                f"Its dead letters reach no queue: {_explain_no_route(leg)}. The broker silently drops"
                " every message that is rejected, expires or exceeds a limit here.",
                "Bind a queue for that key, or correct `x-dead-letter-routing-key`.",
            )


def _partly_unroutable(analysis: Analysis) -> Iterator[Hit]:
    for leg in analysis.legs.values():
        if leg.targets and leg.lost_keys:
            yield Hit(
                queue_place(leg.source),
                "Its dead letters keep their original routing key, and"
                f" {_explain_no_route(leg)}. The broker silently drops such messages when they are"
                " rejected, expire or exceed a limit.",
                "Set `x-dead-letter-routing-key`, or bind the dead-letter exchange for every key"
                " that reaches the queue.",
            )


def _explain_no_route(leg: Leg) -> str:
    if not leg.exchange:
        return f"there is no queue named {list_names(leg.lost_keys)}"
    return f"no binding of exchange {quote_name(leg.exchange)} matches the key {list_names(leg.lost_keys)}"


def _at_most_once(analysis: Analysis) -> Iterator[Hit]:
    """Check for dead-lettering that is not at-least-once. Similar queues are combined."""
    ways: defaultdict[str, set[str]] = defaultdict(set)
    for leg in analysis.legs.values():
        if not leg.targets or leg.safe:
            continue
        if leg.source in analysis.retry_queues:
            # The queues that receive the messages after the delay.
            for owner in analysis.users.get(leg.source) or leg.targets:
                ways[owner].add(_BACK)
        else:
            out = analysis.retry_queues.intersection(leg.targets)
            ways[leg.source].add(_OUT if out else _INTO)
    alike: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for owner, unsafe in ways.items():
        alike[tuple(way for way in _WAYS if way in unsafe)].append(owner)
    for unsafe_ways, owners in alike.items():
        yield Hit(
            queue_place(*owners),
            f"The broker moves failed messages at most once: {', '.join(unsafe_ways)}. It does not"
            " wait for the next queue to store a message. Messages in transit are lost when a node"
            " dies or is disconnected.",
            f"{HARDENED[0].upper()}{HARDENED[1:]}, or make these queues quorum queues with"
            " `x-dead-letter-strategy: at-least-once` and `x-overflow: reject-publish`.",
        )


def _falls_back(analysis: Analysis) -> Iterator[Hit]:
    for queue in analysis.queues.values():
        asked = text(queue, "x-dead-letter-strategy") == "at-least-once"
        if not asked or queue.type is not QueueType.QUORUM:
            continue
        refuses = text(queue, "x-overflow") == "reject-publish"
        lacking = [] if queue.name in analysis.legs else ["a dead-letter exchange"]
        lacking += [] if refuses else ["`x-overflow: reject-publish`"]
        if lacking:
            yield Hit(
                queue_place(queue.name),
                f"At-least-once dead-lettering is configured but lacks {' and '.join(lacking)}. The"
                " broker falls back to at-most-once dead-lettering and only logs a warning. Dead"
                " letters in transit are lost when a node dies.",
                f"Add {' and '.join(lacking)} to the queue.",
            )


def _into_stream(analysis: Analysis) -> Iterator[Hit]:
    for leg in analysis.legs.values():
        streams = [name for name in leg.targets if analysis.queues[name].type is QueueType.STREAM]
        if streams and not leg.safe:
            yield Hit(
                queue_place(leg.source),
                f"Its dead letters go to the stream {list_names(streams)} at most once. Before 3.12 the"
                " broker silently loses all of them.",
                "Dead-letter into a quorum queue, use at-least-once dead-lettering, or run"
                " RabbitMQ 3.12 or later (3.13.3 to have `x-death` in the stream).",
            )


def _reaches_others(analysis: Analysis) -> Iterator[Hit]:
    """Check for dead letters that are also routed to unrelated queues."""
    parked = {plan.parking.queue for plan in analysis.plans.values()}
    for leg in analysis.legs.values():
        for together in leg.at_once if leg.source in analysis.mains else ():
            reached = [
                name for name in together if analysis.queues[name].type is not QueueType.STREAM
            ]
            meant = [
                name
                for name in reached
                if name in analysis.retry_queues
                or name in parked
                or (name in analysis.dead_letter_queues and looks_like_dead_letter_queue(name))
            ]
            strangers = [name for name in reached if name not in meant and name != leg.source]
            if meant and strangers:
                reached_queues = (
                    f"{queue_place(*meant)} and also {queue_place(*strangers)}. Consumers that did"
                    " not fail receive every message that failed here"
                )
            elif len(reached) > 1:
                reached_queues = (
                    f"{queue_place(*reached)} at the same time. Each queue has a copy, and each copy"
                    " is handled again or re-driven separately"
                )
            else:
                continue
            yield Hit(
                queue_place(leg.source),
                f"Through exchange {quote_name(leg.exchange)} its dead letters reach {reached_queues}.",
                "Give the queue a separate dead-letter exchange or routing key that leads to one"
                " queue only.",
            )


_DROPPED = (
    "returns without a rejection. The broker treats this as a cycle and drops the message (or,"
    " with at-least-once dead-lettering, keeps it and never delivers it)"
)
_MAIN_TO_DLQ = (
    f"Let the queue's dead-letter exchange lead to the dead-letter queue, never to the retry queue:"
    f" {HARDENED}"
)


def _without_rejection(analysis: Analysis) -> Iterator[Hit]:
    """Check for cycles of queues in which messages only expire."""
    expiring = {
        name for name in analysis.legs if number(analysis.queues[name], "x-message-ttl") is not None
    }
    reached = {name: analysis.reach(name, expiring) & expiring for name in expiring}
    rings = {
        frozenset(each for each in reached[name] if name in reached[each])
        for name in expiring
        if name in reached[name]
    }
    for ring in sorted(rings, key=sorted):
        yield Hit(
            queue_place(*ring),
            f"A message that only expires goes through {list_names(ring)} and {_DROPPED}. Every"
            " message that is not consumed within the time to live is lost.",
            "Remove `x-message-ttl` from the consumed queue, or dead-letter its expired messages into"
            " a dead-letter queue.",
        )


def _retry_chain(analysis: Analysis) -> Iterator[Hit]:
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
                f" ({list_names(loop.through)}). RabbitMQ before 3.13 forgets the rejection and drops"
                " the message as a cycle in its second round.",
                "Use one retry queue for each delay. Let each of them return messages directly to"
                " the main queue.",
            )


def _delivery_limit(analysis: Analysis) -> Iterator[Hit]:
    for loop in analysis.loops:
        limit = analysis.limit(analysis.queues[loop.main])
        if limit is None:
            continue
        origin = "default delivery limit of" if limit.by_default else "delivery limit of"
        yield Hit(
            queue_place(loop.main),
            f"A message that exceeds the {origin} {limit.value} goes to the retry queue and"
            f" {_DROPPED}. Each crash of a consumer counts as a return of all its unsettled"
            " messages.",
            _MAIN_TO_DLQ
            + if_limits_can_be_lifted(
                ", or remove the limit by a policy (`delivery-limit: -1`, from 4.0 on)",
                analysis.version,
            )
            + ".",
            errors(since="4.0" if limit.by_default else ""),
        )


def _max_length(analysis: Analysis) -> Iterator[Hit]:
    for loop in analysis.loops:
        # A full queue dead-letters the oldest messages, or new messages with reject-publish-dlx.
        queue = analysis.queues[loop.main]
        dead_letters = text(queue, "x-overflow") == "reject-publish-dlx"
        if drops_head(queue) or (has_limit(queue) and dead_letters):
            yield Hit(
                queue_place(loop.main),
                f"When the queue is full, an overflowing message goes to the retry queue and {_DROPPED}.",
                f"{_MAIN_TO_DLQ}. Otherwise remove the length limit, or use"
                " `x-overflow: reject-publish`, which nacks publishes.",
            )


def _expiration(analysis: Analysis) -> Iterator[Hit]:
    if analysis.loops:
        mains = [loop.main for loop in analysis.loops]
        yield Hit(
            queue_place(*mains),
            "A message that a producer publishes with an `expiration` and that expires before it"
            f" is consumed goes to the retry queue and {_DROPPED}.",
            f"Publish without `expiration`, or {HARDENED}, which moves expired messages to the"
            " dead-letter queue.",
        )


def _wrongly_dropped(analysis: Analysis) -> Iterator[Hit]:
    """Check for versions that may drop messages of a valid retry loop."""
    if analysis.version is not None and analysis.loops:
        yield Hit(
            queue_place(*(loop.main for loop in analysis.loops)),
            f"RabbitMQ {analysis.version} can mistake a valid retry loop for a cycle and drop the"
            " message (rabbitmq-server issue 11159).",
            f"Upgrade to 3.13.3 or later, or {HARDENED}.",
        )


def _laps(analysis: Analysis) -> Iterator[Hit]:
    for loop in analysis.loops:
        plan, limit = analysis.plans.get(loop.main), analysis.limit(analysis.queues[loop.main])
        if plan is None or limit is None or plan.leave is not Leave.REJECT:
            continue
        laps = plan.attempts - 1
        if laps >= limit.value:
            yield Hit(
                queue_place(loop.main),
                f"A message can go through the retry queue {laps} times, and the delivery limit is"
                f" {limit.value}. From 4.3 on, RabbitMQ counts a `basic.reject` into the retry queue"
                " as a return and keeps the count. One crash of a consumer can then exceed the"
                " limit, and the message is dropped as a cycle.",
                f"Reject with `basic.nack` (as Hopback does), allow fewer attempts, or {HARDENED}.",
            )


RULES = (
    HazardRule("dead-letter-exchange-missing", errors(), _exchange_missing),
    HazardRule("dead-letter-unroutable", errors(), _unroutable),
    HazardRule("dead-letter-partly-unroutable", warnings(), _partly_unroutable),
    HazardRule("dead-letters-reach-others", warnings(), _reaches_others),
    HazardRule("at-most-once", warnings(), _at_most_once),
    HazardRule("at-least-once-falls-back", errors(), _falls_back),
    HazardRule("dead-letter-into-stream", errors(before="3.12"), _into_stream),
    HazardRule("cycle-without-rejection", errors(), _without_rejection),
    HazardRule("chained-retry-queues", errors(before="3.13"), _retry_chain),
    HazardRule("delivery-limit-feeds-retry", errors(since="4.0"), _delivery_limit),
    HazardRule("max-length-feeds-retry", errors(), _max_length),
    HazardRule("expiration-feeds-retry", warnings(), _expiration),
    HazardRule("sound-loop-dropped", warnings(since="3.13", before="3.13.3"), _wrongly_dropped),
    HazardRule("laps-reach-delivery-limit", warnings(since="4.3"), _laps),
)
"""Rules about dead-lettering."""
