"""Rules about dead letters on their way: do they arrive, and what if a node dies meanwhile."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hopback.topology.hazards.analysis import seems_resting, text
from hopback.topology.hazards.phrases import HARDENED, listed, named, queue_place
from hopback.topology.hazards.rule import HazardRule, Hit, errors, warnings
from hopback.topology.model import QueueType
from hopback.topology.wording import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.topology.hazards.analysis import Analysis, Leg

__all__ = ["RULES"]

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
                f"Its dead letters go to exchange {named(leg.exchange)}, which does not exist. The"
                " broker says nothing about that and drops every message that is rejected, expires"
                " or exceeds a limit here.",
                f"Declare {named(leg.exchange)} and bind a queue to it, or correct the name{hint}.",
            )


def _unroutable(analysis: Analysis) -> Iterator[Hit]:
    for leg in analysis.legs.values():
        if leg.declared and not leg.targets:
            yield Hit(
                queue_place(leg.source),
                f"Its dead letters reach no queue: {_nothing_takes(leg)}. The broker drops every"
                " message that is rejected, expires or exceeds a limit here, and says nothing.",
                "Bind a queue for that key, or correct `x-dead-letter-routing-key`.",
            )


def _partly_unroutable(analysis: Analysis) -> Iterator[Hit]:
    for leg in analysis.legs.values():
        if leg.targets and leg.lost_keys:
            yield Hit(
                queue_place(leg.source),
                "Its dead letters keep the routing key they came with, and"
                f" {_nothing_takes(leg)}. The broker silently drops those of them that are"
                " rejected, expire or exceed a limit.",
                "Set `x-dead-letter-routing-key`, or bind the dead-letter exchange for every key"
                " that reaches the queue.",
            )


def _nothing_takes(leg: Leg) -> str:
    if not leg.exchange:
        return f"there is no queue named {listed(leg.lost_keys)}"
    return f"no binding of exchange {named(leg.exchange)} takes the key {listed(leg.lost_keys)}"


def _at_most_once(analysis: Analysis) -> Iterator[Hit]:
    """One hit for all queues whose messages are moved in the same unsafe ways."""
    ways: defaultdict[str, set[str]] = defaultdict(set)
    for leg in analysis.legs.values():
        if leg.targets and not leg.safe:
            for owner in _owners(analysis, leg):
                ways[owner].add(_way(analysis, leg))
    alike: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for owner, unsafe in ways.items():
        alike[tuple(way for way in _WAYS if way in unsafe)].append(owner)
    for unsafe_ways, owners in alike.items():
        yield Hit(
            queue_place(*owners),
            f"The broker moves failed messages at most once: {', '.join(unsafe_ways)}. It does not"
            " wait until the next queue has a message, so what is on its way when a node dies or"
            " is cut off is lost.",
            f"{HARDENED[0].upper()}{HARDENED[1:]}, or make these queues quorum queues with"
            " `x-dead-letter-strategy: at-least-once` and `x-overflow: reject-publish`.",
        )


def _way(analysis: Analysis, leg: Leg) -> str:
    if leg.source in analysis.waiting:
        return _BACK
    return _OUT if analysis.waiting.intersection(leg.targets) else _INTO


def _owners(analysis: Analysis, leg: Leg) -> set[str]:
    """The consumed queues whose messages take this leg."""
    if leg.source not in analysis.waiting:
        return {leg.source}
    return analysis.users.get(leg.source) or set(leg.targets)


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
                f"At-least-once dead-lettering is asked for but lacks {' and '.join(lacking)}. The"
                " broker falls back to at most once, with a line in its log only: dead letters on"
                " their way when a node dies are lost.",
                f"Add {' and '.join(lacking)} to the queue.",
            )


def _into_stream(analysis: Analysis) -> Iterator[Hit]:
    for leg in analysis.legs.values():
        streams = [name for name in leg.targets if analysis.queues[name].type is QueueType.STREAM]
        if streams and not leg.safe:
            yield Hit(
                queue_place(leg.source),
                f"Its dead letters go to the stream {listed(streams)} at most once; these brokers"
                " silently lose every one of them.",
                "Dead-letter into a quorum queue, use at-least-once dead-lettering, or run"
                " RabbitMQ 3.12 or later (3.13.3 to have `x-death` in the stream).",
            )


def _reaching_others(analysis: Analysis) -> Iterator[Hit]:
    """Dead letters of a consumed queue that reach more than the one queue they are meant for."""
    parked = {plan.parking.queue for plan in analysis.plans.values()}
    for leg in analysis.legs.values():
        for together in leg.at_once if leg.source in analysis.mains else ():
            reached = [
                name for name in together if analysis.queues[name].type is not QueueType.STREAM
            ]
            meant = [
                name
                for name in reached
                if name in analysis.waiting
                or name in parked
                or (name in analysis.resting and seems_resting(name))
            ]
            strangers = [name for name in reached if name not in meant and name != leg.source]
            if meant and strangers:
                what = (
                    f"{queue_place(*meant)} and {queue_place(*strangers)} as well: consumers that"
                    " have not failed get every message that failed here"
                )
            elif len(reached) > 1:
                what = (
                    f"{queue_place(*reached)} at the same time: there is a copy in each, and each"
                    " is handled again or re-driven on its own, to whatever queue that one leads"
                )
            else:
                continue
            yield Hit(
                queue_place(leg.source),
                f"Through exchange {named(leg.exchange)} its dead letters reach {what}.",
                "Give the queue a dead-letter exchange or a routing key of its own that leads to"
                " one queue only.",
            )


RULES = (
    HazardRule("dead-letter-exchange-missing", errors(), _exchange_missing),
    HazardRule("dead-letter-unroutable", errors(), _unroutable),
    HazardRule("dead-letter-partly-unroutable", warnings(), _partly_unroutable),
    HazardRule("dead-letters-reach-others", warnings(), _reaching_others),
    HazardRule("at-most-once", warnings(), _at_most_once),
    HazardRule("at-least-once-falls-back", errors(), _falls_back),
    HazardRule("dead-letter-into-stream", errors(before="3.12"), _into_stream),
)
"""What can go wrong with a dead letter on its way."""
