"""Re-driving as pure functions: whose dead letter it is, whether it may go back, and as what."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hopback.errors import UnsafeOperation
from hopback.fields import LayeredHeaders, SharedHeaders, table_size
from hopback.headers import (
    Mark,
    clipped,
    counter_in,
    deaths,
    last_death_queue,
    marked_queue,
    redrive_properties,
    timestamp,
)
from hopback.headers.names import (
    ATTEMPTS,
    ORIGIN_EXCHANGE,
    ORIGIN_ROUTING_KEY,
    OURS,
    QUEUE,
    REDRIVE_JOB,
    REDRIVES,
    is_protected,
)
from hopback.message import Message, Properties
from hopback.policy.raw_redrive import RawRedriver
from hopback.policy.reading import Reading
from hopback.topology.plan import MAX_REDRIVES, Fact

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.fields import FieldValue
    from hopback.message import Delivery
    from hopback.policy.raw_redrive import RawMessage
    from hopback.topology.plan import Plan, Redrive

__all__ = [
    "MAX_REDRIVES",
    "RedriveOccasion",
    "Redriver",
    "loop_guard",
    "plan_of",
    "redrive_message",
    "redrive_refusal",
]

_TEXT_BYTES = 255  # what every name in AMQP 0-9-1 is held to
_SMALL_BYTES = 64 * 1024
"""With so little in its header frame a message has room for everything that is added."""
# Producers with endless keys must not fill the memory; beyond that each is made anew.
_SHARED_ROUTES = 256
_BROKERS = ("CC", "BCC", "x-death", "x-delivery-count", "x-acquired-count")


class RedriveOccasion(NamedTuple):
    """Who sends messages back, when and in which job.

    `stamped` also writes the file pipeline's `x-redriven-…` headers and `x-original-routing-key`;
    `operation` is the correlation id they carry.
    """

    now: float
    job: str
    user_id: str = ""
    user_name: str = ""
    operation: str = ""
    stamped: bool = False


def plan_of(delivery: Delivery, plans: Iterable[Plan]) -> Plan | None:
    """The plan of the queue that a dead letter failed in, or None if nothing tells.

    A dead-letter queue may be shared. What the broker parked names its queue in `x-death`; what
    we parked carries our mark. The broker goes first: a message that it rejected here may carry
    the mark of another queue, from a copy.
    """
    candidates = {plan.queue: plan for plan in plans if plan.parking.queue == delivery.queue}
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    headers = delivery.properties.headers
    named = (
        last_death_queue(headers),
        marked_queue(headers),
        *(death.queue for death in deaths(headers)),
    )
    return next((candidates[name] for name in named if name in candidates), None)


def redrive_refusal(
    delivery: Delivery, plan: Plan, *, max_redrives: int | None = MAX_REDRIVES
) -> str | None:
    """Why this dead letter must not go back, or None if it may. `max_redrives` None: no limit."""
    refusal = loop_guard(delivery, max_redrives)
    if refusal is not None:
        return refusal
    if _properties(delivery, plan, plan.redrive, RedriveOccasion(0.0, "")) is None:
        return "its headers leave no room for the counts that a re-drive needs"
    return None


def loop_guard(delivery: Delivery, max_redrives: int | None = MAX_REDRIVES) -> str | None:
    """Why a message that was re-driven so often must not go back again, or None if it may."""
    redrives = counter_in(delivery.properties.headers, REDRIVES)
    if max_redrives is not None and redrives >= max_redrives:
        return f"re-driven {redrives} times already, expected fewer than {max_redrives}"
    return None


def redrive_message(
    delivery: Delivery, plan: Plan, occasion: RedriveOccasion, *, target: Redrive | None = None
) -> Message:
    """The message that goes back, to the plan's own target unless another is given.

    Its attempts begin anew or continue, as the target says; its history stays. UnsafeOperation if
    its headers have no room for the counts: then `redrive_refusal` has said so before.
    """
    target = plan.redrive if target is None else target
    properties = _properties(delivery, plan, target, occasion)
    if properties is None:
        raise UnsafeOperation(
            f"message {delivery.tag} of {delivery.queue!r} was not re-driven:"
            " its headers leave no room for the counts that a re-drive needs"
        )
    return Message(target.exchange, target.routing_key, delivery.body, properties)


class Redriver:
    """Makes the messages of one way back; the same as `redrive_message`, quicker for plain ones.

    Most dead letters of a foreign consumer carry none of the headers that need care: to those the
    same few are added, and nothing has to be sized but what they have.
    """

    def __init__(self, plan: Plan, target: Redrive, occasion: RedriveOccasion) -> None:
        self._plan = plan
        self._target = target
        self._occasion = occasion
        self._job = clipped(occasion.job, _TEXT_BYTES)
        # The counts begin anew: only then are they the same for every message.
        self._is_simple = target.reset and not occasion.stamped
        # Ours, the broker's and the design's: where one is present, the long way is taken.
        design = {stamp.header for stamp in (*plan.retry_stamps, *plan.park_stamps)}
        self._careful = frozenset({*OURS, *_BROKERS, *design, *_counter_names(plan)})
        self._shared: dict[tuple[str, str], SharedHeaders] = {}
        self._raw: RawRedriver | None = None
        if self._is_simple and not target.keep_deaths and plan.queue.isascii():
            self._raw = RawRedriver(plan, target, occasion.job, _counter_names(plan))

    def raw_message(self, delivery: Delivery) -> RawMessage | None:
        """The same as `message`, made of the bytes that came in; None where they are not at hand or
        need care. Nobody has looked then at what the loop guard asks for: it is not in these bytes.
        """
        return None if self._raw is None else self._raw.message(delivery)

    def message(self, delivery: Delivery) -> Message:
        """The message that goes back; UnsafeOperation if its headers have no room for the counts."""
        properties = delivery.properties
        if self._is_simple and self._is_plain(properties):
            made = self._marked(properties, delivery.exchange, delivery.routing_key)
            return Message(self._target.exchange, self._target.routing_key, delivery.body, made)
        return redrive_message(delivery, self._plan, self._occasion, target=self._target)

    def _is_plain(self, properties: Properties) -> bool:
        headers = properties.headers
        if (
            properties.user_id is not None
            or properties.further_headers
            or properties.opaque_headers
        ):
            return False
        if not self._careful.isdisjoint(headers):
            return False
        if any(name.startswith("x-") and is_protected(name) for name in headers):
            return False
        return not headers or table_size(headers) < _SMALL_BYTES

    def _marked(self, properties: Properties, exchange: str, routing_key: str) -> Properties:
        shared = self._shared.get((exchange, routing_key))
        if shared is None:
            # What is added to every message that came by this route.
            shared = SharedHeaders(
                {
                    QUEUE: self._plan.queue,
                    ATTEMPTS: 0,
                    REDRIVES: 1,
                    ORIGIN_ROUTING_KEY: routing_key,
                    ORIGIN_EXCHANGE: exchange,
                    REDRIVE_JOB: self._job,
                }
            )
            if len(self._shared) < _SHARED_ROUTES:
                self._shared[exchange, routing_key] = shared
        own = properties.headers
        present = dict(vars(properties), delivery_mode=2, expiration=None)
        present["headers"] = LayeredHeaders(own, shared) if own else shared
        return Properties.of(present)


def _properties(
    delivery: Delivery, plan: Plan, target: Redrive, occasion: RedriveOccasion
) -> Properties | None:
    reading = Reading(delivery, plan)
    known, (exchange, routing_key) = reading.history, reading.origin
    failures = 0 if target.reset else reading.attempt - 1
    mark = Mark(
        queue=plan.queue,
        attempts=failures,
        snoozes=0 if target.reset else known.snoozes,
        origin_exchange=exchange,
        origin_routing_key=routing_key,
        redrives=known.redrives + 1,
        redrive_job=occasion.job,
        counters={} if target.reset or plan.count_header is None else {plan.count_header: failures},
        design=_stamps(delivery, occasion, routing_key),
        without=_counter_names(plan) if target.reset else frozenset(),
    )
    return redrive_properties(delivery.properties, mark, known, keep_deaths=target.keep_deaths)


def _counter_names(plan: Plan) -> frozenset[str]:
    """Counters of the design itself: left standing, they would end the next run at once."""
    stamped = {stamp.header for stamp in plan.park_stamps if stamp.fact is Fact.RETRIES}
    return frozenset(stamped if plan.count_header is None else {*stamped, plan.count_header})


def _stamps(
    delivery: Delivery, occasion: RedriveOccasion, routing_key: str
) -> dict[str, FieldValue]:
    if not occasion.stamped:
        return {}
    said = {
        "x-redriven-from-dlq": delivery.queue,
        "x-redriven-at": timestamp(occasion.now),
        "x-redriven-by-user-id": occasion.user_id,
        "x-redriven-by-user-name": occasion.user_name,
        "x-redrive-operation-correlation-id": occasion.operation,
        "x-original-routing-key": routing_key,
    }
    return {name: clipped(text, _TEXT_BYTES) for name, text in said.items() if text}
