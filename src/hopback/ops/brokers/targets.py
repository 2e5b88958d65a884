"""Resolve the re-drive target of a dead letter, and check that messages would reach a queue.

No message is published for the check. Queues and exchanges are declared passively, and routes are
taken from the topology if it is known.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hopback.errors import AccessRefused, NotFound
from hopback.message import Delivery, Received
from hopback.ops.brokers.discovery import DeadLetterQueue, stand_in_plan
from hopback.ops.contract.requests import Target, TargetKind
from hopback.policy.reading import origin_of
from hopback.topology.expand import retry_queues
from hopback.topology.model import Exchange, Queue
from hopback.topology.plan import Plan, Redrive

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.port import Connection
    from hopback.topology.routing import RoutingTable

_NO_MESSAGE = Received("", "", "")
_NO_ORIGIN = "the message does not contain the queue it failed in: name a target queue"
# Messages with the same reason are counted together, so reasons must not contain names from
# messages.
_UNKNOWN_ORIGIN = (
    "the queue that the message names as its origin is not known to dead-letter to this queue: name a"
    " target queue"
)
_NOT_BOUND = (
    "the exchange and key that the message names as its origin are not known to lead to the queue it"
    " failed in: choose another target"
)


@dataclass(frozen=True, slots=True)
class Aim:
    """The target of a message, and the plan that defines its attempt headers."""

    plan: Plan
    redrive: Redrive


def aim_at(
    target: Target,
    delivery: Delivery,
    origin: str,
    source: DeadLetterQueue,
    routes: RoutingTable | None = None,
) -> Aim | str:
    """Return the target of a message that failed in the queue `origin`, or the reason why there is
    none.

    The headers that name the origin may be forged. An origin is only trusted if it is known to
    dead-letter to this queue. An exchange is only trusted if `routes` lead from it to such an
    origin.
    """
    # Use the plan of the origin if there is one. Otherwise use the plan of the target.
    plans = {plan.queue: plan for plan in source.plans}
    plan, queue = plans.get(origin), target.routing_key
    if plan is None and target.kind is TargetKind.QUEUE:
        plan = plans.get(queue) or stand_in_plan(queue, source.name)
    elif plan is None and target.kind is TargetKind.EXCHANGE:
        plan = stand_in_plan(source.name, source.name)
    if plan is None:
        return _UNKNOWN_ORIGIN if origin else _NO_ORIGIN
    way = _way(target, delivery, plan, routes)
    if isinstance(way, str):
        return way
    return Aim(plan, way if target.reset is None else replace(way, reset=target.reset))


def target_text(target: Target, source: DeadLetterQueue) -> str:
    """Describe the target. Without a design, the description contains the queue."""
    one = source.main_queue
    match target.kind:
        case TargetKind.DESIGN | TargetKind.FAILED_QUEUE if one is None:
            by_plan = source.has_plan and target.kind is TargetKind.DESIGN
            if by_plan:
                return "to the target of each message's design"
            return "to the queue in which each message failed"
        case TargetKind.DESIGN if source.has_plan:
            ways, text = known_ways(target, source), f"for the queue {one}"
            if len(ways) == 1:
                way = ways[0]
                text = f"to queue {way.routing_key}"
                if way.exchange:
                    text = f"to the exchange {way.exchange} with the key {way.routing_key}"
            return f"{text}, by design"
        case TargetKind.DESIGN | TargetKind.FAILED_QUEUE:
            return f"to queue {one}"
        case TargetKind.RETRY_EXCHANGE:
            return "to the retry queue, for another wait"
        case TargetKind.ORIGIN_EXCHANGE:
            return "to the exchange of the first publish"
        case TargetKind.QUEUE:
            return f"to queue {target.routing_key}"
    return f"to the exchange {target.exchange} with the key {target.routing_key}"


def known_ways(target: Target, source: DeadLetterQueue) -> tuple[Redrive, ...]:
    """Return the targets that are known before any message is read."""
    match target.kind:
        case TargetKind.QUEUE:
            return (Redrive("", target.routing_key),)
        case TargetKind.EXCHANGE:
            return (Redrive(target.exchange, target.routing_key),)
        case TargetKind.ORIGIN_EXCHANGE:
            return ()
    ways = (_way(target, _NO_MESSAGE, plan, None) for plan in source.plans)
    return tuple(dict.fromkeys(way for way in ways if not isinstance(way, str)))


async def target_flaw(
    connection: Connection, way: Redrive, live: RoutingTable | None = None
) -> str | None:
    """Return why a target cannot be used, or None if it leads to a queue."""
    channel = await connection.open_channel()
    try:
        if way.exchange:
            await channel.declare_exchange(Exchange(way.exchange), passive=True)
        else:
            await channel.declare_queue(Queue(way.routing_key), passive=True)
    except NotFound:
        kind = f"exchange {way.exchange!r}" if way.exchange else f"queue {way.routing_key!r}"
        return f"the target {kind} does not exist"
    except AccessRefused as refused:
        return f"the broker refused access to the target: {refused.text}"
    await channel.close()
    if live is None or not way.exchange:
        return None
    try:
        found = live.route(way.exchange, way.routing_key)
    except KeyError:
        # The exchange exists, although the known topology does not contain it. Messages are
        # published as mandatory, so the broker returns those it cannot route.
        return None
    if found:
        return None
    return f"exchange {way.exchange!r} routes the key {way.routing_key!r} to no queue"


def _way(
    target: Target, delivery: Delivery, plan: Plan, routes: RoutingTable | None
) -> Redrive | str:
    match target.kind:
        case TargetKind.DESIGN:
            return plan.redrive
        case TargetKind.FAILED_QUEUE:
            return replace(plan.redrive, exchange="", routing_key=plan.queue)
        case TargetKind.RETRY_EXCHANGE:
            # The message waits in the retry queue of the first tier again.
            if plan.tiers:
                route = plan.tiers[0].routes[0]
                return replace(plan.redrive, exchange=route.exchange, routing_key=route.routing_key)
            return f"queue {plan.queue!r} has no retry exchange"
        case TargetKind.ORIGIN_EXCHANGE:
            # Use the exchange of the first publish, but only if it leads to the queue in which the
            # message failed.
            exchange, key = origin_of(delivery, plan)
            reached: tuple[str, ...] = (key,) if not exchange else ()
            if exchange and routes is not None:
                with suppress(KeyError):
                    reached = routes.route(exchange, key, delivery.properties.headers)
            return Redrive(exchange, key) if plan.queue in reached else _NOT_BOUND
        case TargetKind.QUEUE:
            return Redrive("", target.routing_key)
    return Redrive(target.exchange, target.routing_key)


def queues_reached(
    target: Target, source: DeadLetterQueue, live: RoutingTable | None
) -> frozenset[str] | None:
    """Return the queues that a re-drive to this target can reach, or None if the routes are
    unknown.

    A retry queue is replaced by the queue it leads to. If the route depends on headers, all queues
    that a message could reach are returned.
    """
    match target.kind:
        case TargetKind.QUEUE:
            found: Iterable[str] | None = (target.routing_key,)
        case TargetKind.EXCHANGE if not target.exchange:
            found = (target.routing_key,)
        case TargetKind.EXCHANGE:
            found = None if live is None else live.reachable(target.exchange, target.routing_key)
        case TargetKind.ORIGIN_EXCHANGE:
            found = (
                None if live is None else (*live.reachable_with(source.origins), *source.origins)
            )
        case _:
            found = _queues_by_design(target, source, live)
    return None if found is None else frozenset(found)


def _queues_by_design(
    target: Target, source: DeadLetterQueue, live: RoutingTable | None
) -> set[str] | None:
    """Return the origins and all queues that the targets of their plans lead to, except retry
    queues.
    """
    waiting = {name for plan in source.plans for name, _ in retry_queues(plan)}
    found = set(source.origins)
    for way in known_ways(target, source):
        if not way.exchange:
            found |= {way.routing_key} - waiting
        elif live is None:
            return None
        else:
            found |= {*(live.reachable(way.exchange, way.routing_key) or ())} - waiting
    return found
