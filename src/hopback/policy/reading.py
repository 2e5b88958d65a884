"""The facts about a delivery in its headers: number of failures and origin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.headers import Death, History, counter_in, identity, last_death_queue, text_in
from hopback.topology.plan import Count, Fact, Plan

if TYPE_CHECKING:
    from hopback.fields import Headers
    from hopback.message import Delivery


class Reading:
    """The headers of one delivery, read for the plan of its queue.

    It is created once and passed to the decision, its effects and the record of both. Each property is
    computed on first use and kept.
    """

    __slots__ = ("_attempt", "_origin", "delivery", "history", "plan")

    def __init__(self, delivery: Delivery, plan: Plan) -> None:
        self.delivery: Delivery = delivery
        self.plan: Plan = plan
        self.history: History = History(delivery.properties.headers, plan.queue)
        self._attempt = 0
        self._origin: tuple[str, str] | None = None

    @property
    def attempt(self) -> int:
        """The number of the present run, from 1: one more than the failures so far."""
        if self._attempt == 0:
            self._attempt = _failures(self.history, self.plan) + 1
        return self._attempt

    @property
    def origin(self) -> tuple[str, str]:
        """Exchange and routing key by which the message first came to its queue."""
        if self._origin is None:
            self._origin = _origin(self.history, self.delivery, self.plan)
        return self._origin

    @property
    def message_id(self) -> str:
        """The message id. Without one, a stable hash of content and origin."""
        plan = self.plan
        stamps = {stamp.header for stamp in (*plan.retry_stamps, *plan.park_stamps)}
        ignoring = stamps | {plan.count_header} if plan.count_header else stamps
        return identity(self.delivery, origin=self.origin, ignoring=ignoring)

    @property
    def deaths(self) -> tuple[Death, ...]:
        """The broker's current record of deaths."""
        return self.history.broker_deaths


def attempt_of(delivery: Delivery, plan: Plan) -> int:
    """The number of the present run, from 1: one more than the failures so far."""
    return Reading(delivery, plan).attempt


def failures_so_far(headers: Headers, plan: Plan) -> int:
    """Number of failures in the plan's queue: the largest of all counts, never their sum.

    Both Hopback and the broker may count a failure, so a sum would park the message early. The count is
    limited to the failures that the plan can have caused.
    """
    return _failures(History(headers, plan.queue), plan)


def origin_of(delivery: Delivery, plan: Plan | None = None) -> tuple[str, str]:
    """Exchange and routing key of the message's first arrival in its queue.

    The source is our own header, or else the design's (written by a consumer of another library), or
    else the broker's record of the first death in the queue, or else the delivery.
    """
    queue = delivery.queue if plan is None else plan.queue
    return _origin(History(delivery.properties.headers, queue), delivery, plan)


def original_routing_key(delivery: Delivery, plan: Plan | None = None) -> str:
    """The routing key the message was first published with, also after retries and re-drives."""
    return origin_of(delivery, plan)[1]


def _failures(known: History, plan: Plan) -> int:
    if not known.headers:  # usual at the first failure
        return 0
    counts = (
        known.attempts,
        _design_count(known, plan),
        known.broker_failures if plan.count is Count.X_DEATH else 0,
    )
    return min(max(counts), plan.attempts)


def _design_count(known: History, plan: Plan) -> int:
    """The design's own counter, if it was written for this queue.

    Copies that reach other queues through a shared exchange have it too. If Hopback wrote it, its own
    header names the queue. If another library's consumer wrote it, the message must come from one of
    this queue's retry queues.
    """
    if known.marked_queue is None:
        waited = {route.queue for tier in plan.tiers for route in tier.routes}
        ours = last_death_queue(known.headers) in waited
    else:
        ours = known.marked_queue == plan.queue
    return counter_in(known.headers, plan.count_header) if ours else 0


def _origin(known: History, delivery: Delivery, plan: Plan | None) -> tuple[str, str]:
    if not known.headers:
        return delivery.exchange, delivery.routing_key
    if known.origin_routing_key is not None:
        return known.origin_exchange or "", known.origin_routing_key
    # Use the design's own headers if they contain a routing key.
    stamps = () if plan is None else (*plan.retry_stamps, *plan.park_stamps)
    said = {stamp.fact: text_in(known.headers.get(stamp.header)) for stamp in stamps}
    key = said.get(Fact.ORIGIN_ROUTING_KEY)
    if key is not None:
        return said.get(Fact.ORIGIN_EXCHANGE) or "", key
    return known.entry_route or (delivery.exchange, delivery.routing_key)
