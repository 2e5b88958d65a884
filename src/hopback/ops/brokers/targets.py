"""Where a dead letter goes back to, and whether that target exists and routes.

No message is sent to find out: queues and exchanges are asked for passively, routes are read from the
topology where one is known.
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
from hopback.topology.model import Exchange, Queue
from hopback.topology.plan import Plan, Redrive

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.port import Connection
    from hopback.topology.routing import RoutingTable

_NO_MESSAGE = Received("", "", "")
_NOT_TOLD = "nothing tells which queue it failed in; name a target queue"
# Without the name that the message gives: these are counted, and each could give another.
_NOT_KNOWN = (
    "the queue it says it failed in is not known to send its dead letters here; name a target queue"
)
_NOT_BOUND = (
    "the exchange and key it says it came by are not known to lead to the queue it failed in;"
    " choose another target"
)


@dataclass(frozen=True, slots=True)
class Aim:
    """Where one message goes: the plan whose counts it carries, and the way."""

    plan: Plan
    redrive: Redrive


def aim_at(
    target: Target,
    delivery: Delivery,
    origin: str,
    source: DeadLetterQueue,
    routes: RoutingTable | None = None,
) -> Aim | str:
    """Where this message goes, which says that it failed in the queue `origin`; or why nobody can tell.

    What a message says of its origin anyone can have written. It is followed only to queues that are
    known to send their dead letters here, and to an exchange only where `routes` lead to that queue.
    """
    # The plan whose counts the message carries: that of its origin if it is known, else of its target.
    plans = {plan.queue: plan for plan in source.plans}
    plan, queue = plans.get(origin), target.routing_key
    if plan is None and target.kind is TargetKind.QUEUE:
        plan = plans.get(queue) or stand_in_plan(queue, source.name)
    elif plan is None and target.kind is TargetKind.EXCHANGE:
        plan = stand_in_plan(source.name, source.name)
    if plan is None:
        return _NOT_KNOWN if origin else _NOT_TOLD
    way = _way(target, delivery, plan, source, routes)
    if isinstance(way, str):
        return way
    return Aim(plan, way if target.reset is None else replace(way, reset=target.reset))


def target_text(target: Target, source: DeadLetterQueue) -> str:
    """Where messages go, in words; the queue is named where no design says it."""
    one = source.main_queue
    match target.kind:
        case TargetKind.DESIGN | TargetKind.FAILED_QUEUE if one is None:
            by_plan = source.has_plan and target.kind is TargetKind.DESIGN
            return "as the design says" if by_plan else "to the queue that each failed in"
        case TargetKind.DESIGN if source.has_plan:
            ways, said = known_ways(target, source), f"for the queue {one}"
            if len(ways) == 1:
                way = ways[0]
                said = f"to queue {way.routing_key}"
                if way.exchange:
                    said = f"to the exchange {way.exchange} with the key {way.routing_key}"
            return f"as the design says: {said}"
        case TargetKind.DESIGN | TargetKind.FAILED_QUEUE:
            return f"to queue {one}"
        case TargetKind.RETRY_EXCHANGE:
            return "into the retry queue, to wait once more"
        case TargetKind.ORIGIN_EXCHANGE:
            return "to the exchange it first came by"
        case TargetKind.QUEUE:
            return f"to queue {target.routing_key}"
    return f"to the exchange {target.exchange} with the key {target.routing_key}"


def known_ways(target: Target, source: DeadLetterQueue) -> tuple[Redrive, ...]:
    """The ways that can be told before any message is seen."""
    match target.kind:
        case TargetKind.QUEUE:
            return (Redrive("", target.routing_key),)
        case TargetKind.EXCHANGE:
            return (Redrive(target.exchange, target.routing_key),)
        case TargetKind.ORIGIN_EXCHANGE:
            return ()
    ways = (_way(target, _NO_MESSAGE, plan, source, None) for plan in source.plans)
    return tuple(dict.fromkeys(way for way in ways if not isinstance(way, str)))


async def target_flaw(
    connection: Connection, way: Redrive, table: RoutingTable | None = None
) -> str | None:
    """Why nothing may be sent this way, or None if it leads to a queue."""
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
        return f"the target may not be used: {refused.text}"
    await channel.close()
    if table is None or not way.exchange:
        return None
    try:
        found = table.route(way.exchange, way.routing_key)
    except KeyError:
        return None  # it exists, and the topology we know does not hold it: mandatory will tell
    if found:
        return None
    return f"exchange {way.exchange!r} routes the key {way.routing_key!r} to no queue"


def _way(
    target: Target,
    delivery: Delivery,
    plan: Plan,
    source: DeadLetterQueue,
    routes: RoutingTable | None,
) -> Redrive | str:
    match target.kind:
        case TargetKind.DESIGN:
            return plan.redrive
        case TargetKind.FAILED_QUEUE:
            return replace(plan.redrive, exchange="", routing_key=plan.queue)
        case TargetKind.RETRY_EXCHANGE:
            # Into the first tier's retry queue, so that it waits once more.
            if plan.tiers:
                route = plan.tiers[0].routes[0]
                return replace(plan.redrive, exchange=route.exchange, routing_key=route.routing_key)
            if source.retry_exchange is not None:
                return Redrive(source.retry_exchange, "retry")
            return f"queue {plan.queue!r} has no retry exchange"
        case TargetKind.ORIGIN_EXCHANGE:
            # By which it first came, if that is a way to the queue it failed in.
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
    target: Target, source: DeadLetterQueue, table: RoutingTable | None
) -> frozenset[str] | None:
    """Return the queues that a re-drive to this target can reach, or None if the routes are unknown.

    A retry queue counts as the queue that it leads to. Where headers decide about the route, every queue
    counts that some message can reach.
    """
    match target.kind:
        case TargetKind.QUEUE:
            found: Iterable[str] | None = (target.routing_key,)
        case TargetKind.EXCHANGE if not target.exchange:
            found = (target.routing_key,)
        case TargetKind.EXCHANGE:
            found = None if table is None else table.reachable(target.exchange, target.routing_key)
        case TargetKind.ORIGIN_EXCHANGE:
            found = None if table is None else (*table.beside(source.origins), *source.origins)
        case _:
            found = source.origins
    return None if found is None else frozenset(found)
