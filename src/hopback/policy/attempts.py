"""How often a message has failed, and where it came from, as its headers tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.headers import (
    broker_failures,
    counter_in,
    entered_by,
    last_death_queue,
    marked_queue,
    read_history,
    text_in,
)
from hopback.topology.plan import Count, Fact

if TYPE_CHECKING:
    from hopback.fields import Headers
    from hopback.message import Delivery
    from hopback.topology.plan import Plan

__all__ = ["attempt_of", "failures_so_far", "origin_of", "original_routing_key"]


def attempt_of(delivery: Delivery, plan: Plan) -> int:
    """The number of the present run, from 1: one more than the failures so far."""
    return failures_so_far(delivery.properties.headers, plan) + 1


def failures_so_far(headers: Headers, plan: Plan) -> int:
    """How often the message failed in the plan's queue: the largest of the counts, never a sum.

    A message counts twice where we and the broker both count it, so adding would park it early;
    and no count goes beyond what the plan can have caused.
    """
    counts = (
        read_history(headers, plan.queue).attempts,
        _counted_by_design(headers, plan),
        broker_failures(headers, plan.queue) if plan.count is Count.X_DEATH else 0,
    )
    return min(max(counts), plan.attempts)


def origin_of(delivery: Delivery, plan: Plan | None = None) -> tuple[str, str]:
    """Exchange and routing key by which the message first came to its queue.

    Our own headers know it; else the design's (a consumer of another make wrote them); else the
    broker's record of the first death in the queue; else it is as the delivery says.
    """
    headers = delivery.properties.headers
    queue = delivery.queue if plan is None else plan.queue
    known = read_history(headers, queue)
    if known.origin_routing_key is not None:
        return known.origin_exchange or "", known.origin_routing_key
    return (
        _origin_by_design(headers, plan)
        or entered_by(headers, queue)
        or (delivery.exchange, delivery.routing_key)
    )


def original_routing_key(delivery: Delivery, plan: Plan | None = None) -> str:
    """The routing key the message was first published with, also after retries and re-drives."""
    return origin_of(delivery, plan)[1]


def _counted_by_design(headers: Headers, plan: Plan) -> int:
    """The design's own counter, if it was written for this queue.

    Copies that reach other queues through a shared exchange carry it too. Where we wrote it, our
    mark beside it names the queue; where a consumer of another make did, the message must come
    from one of this queue's own retry queues.
    """
    marked = marked_queue(headers)
    if marked is None:
        waited = {route.queue for tier in plan.tiers for route in tier.routes}
        ours = last_death_queue(headers) in waited
    else:
        ours = marked == plan.queue
    return counter_in(headers, plan.count_header) if ours else 0


def _origin_by_design(headers: Headers, plan: Plan | None) -> tuple[str, str] | None:
    """What the design's own headers say of the origin, if they name a routing key."""
    stamps = () if plan is None else (*plan.retry_stamps, *plan.park_stamps)
    said = {stamp.fact: text_in(headers.get(stamp.header)) for stamp in stamps}
    key = said.get(Fact.ORIGIN_ROUTING_KEY)
    return None if key is None else (said.get(Fact.ORIGIN_EXCHANGE) or "", key)
