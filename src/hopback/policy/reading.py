"""Find out how often a message has failed and where it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.headers import Death, History, counter_in, identity, last_death_queue, text_in
from hopback.topology.plan import Count, Fact, Plan

if TYPE_CHECKING:
    from hopback.fields import Headers
    from hopback.message import Delivery


class Reading:
    """The headers of a delivery, parsed on demand.

    There is one instance per delivery. Properties are computed on first access.
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
        """The number of this attempt, starting at 1."""
        if self._attempt == 0:
            self._attempt = _failures(self.history, self.plan) + 1
        return self._attempt

    @property
    def origin(self) -> tuple[str, str]:
        """The exchange and routing key that the message was originally published with."""
        if self._origin is None:
            self._origin = _origin(self.history, self.delivery, self.plan)
        return self._origin

    @property
    def message_id(self) -> str:
        """The message id. If there is none, a hash of the content and origin."""
        plan = self.plan
        stamps = {stamp.header for stamp in (*plan.retry_stamps, *plan.park_stamps)}
        ignoring = stamps | {plan.count_header} if plan.count_header else stamps
        return identity(self.delivery, origin=self.origin, ignoring=ignoring)

    @property
    def deaths(self) -> tuple[Death, ...]:
        return self.history.broker_deaths


def attempt_of(delivery: Delivery, plan: Plan) -> int:
    """Return the number of this attempt, starting at 1."""
    return Reading(delivery, plan).attempt


def failures_so_far(headers: Headers, plan: Plan) -> int:
    """Return how often the message has failed in the queue of the plan.

    Failures can be counted by Hopback or by the broker, so this is the maximum of both. It does not
    exceed the number of failures that the plan allows.
    """
    return _failures(History(headers, plan.queue), plan)


def origin_of(delivery: Delivery, plan: Plan | None = None) -> tuple[str, str]:
    """Return the exchange and routing key that the message was originally published with.

    They come from Hopback's header, the header of the design or the first death in the queue. If
    none of these is available, they come from the delivery itself.
    """
    queue = delivery.queue if plan is None else plan.queue
    return _origin(History(delivery.properties.headers, queue), delivery, plan)


def original_routing_key(delivery: Delivery, plan: Plan | None = None) -> str:
    """Return the original routing key of a message. It is not affected by retries and re-drives."""
    return origin_of(delivery, plan)[1]


def _failures(known: History, plan: Plan) -> int:
    if not known.headers:  # usually the case at the first failure
        return 0
    counts = (
        known.attempts,
        _design_count(known, plan),
        known.broker_failures if plan.count is Count.X_DEATH else 0,
    )
    return min(max(counts), plan.attempts)


def _design_count(known: History, plan: Plan) -> int:
    """Return the count in the header of the design if it belongs to this queue.

    Copies of the message in other queues have the same header. If Hopback has written it, there is
    another header with the name of the queue. Otherwise, we check whether the message was in one of
    the retry queues of this queue.
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
    # Use the headers of the design if they contain a routing key.
    stamps = () if plan is None else (*plan.retry_stamps, *plan.park_stamps)
    said = {stamp.fact: text_in(known.headers.get(stamp.header)) for stamp in stamps}
    key = said.get(Fact.ORIGIN_ROUTING_KEY)
    if key is not None:
        return said.get(Fact.ORIGIN_EXCHANGE) or "", key
    return known.entry_route or (delivery.exchange, delivery.routing_key)
