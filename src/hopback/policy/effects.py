"""Turn decisions into effects, and add headers to the messages that are moved.

A message is always published and confirmed before the delivery is settled. If an effect fails, the
rest is skipped and the message stays in its queue.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, assert_never

from hopback.fields import FieldValue, field_text
from hopback.headers import (
    Failure,
    Mark,
    bare_properties,
    clip,
    failure_from_reason,
    failure_from_status,
    failure_json,
    names,
    park_properties,
    retry_properties,
    timestamp,
)
from hopback.message import Delivery, Message, Properties
from hopback.policy import decision as decided
from hopback.policy.decision import Decision, Effect, Hold, Park, Publish, Retry, Settle, Settlement
from hopback.policy.delays import delay
from hopback.policy.reading import Reading
from hopback.topology.plan import Fact, Leave, Plan, Stamp

if TYPE_CHECKING:
    from collections.abc import Mapping


_TEXT_BYTES = 1024  # maximum size in bytes
_NAME_BYTES = 255  # maximum length of a DNS name


class Occasion(NamedTuple):
    """Everything that a decision needs from its environment: the time, host name and exception.

    `copy_id` is a new unique id. It is used if the message has failed for the first time.
    """

    now: float
    host: str = ""
    failure: Failure | None = None
    status: int | None = None
    copy_id: str | None = None


def count_mark(reading: Reading, attempt: int, *, counted: bool) -> Mark:
    """Increment and return the retry count."""
    plan = reading.plan
    failures = attempt if counted else attempt - 1
    mark = Mark(plan.queue, failures, reading.history.snoozes + (0 if counted else 1))
    if plan.count_header is None:
        return mark
    return mark._replace(counters={plan.count_header: failures})


def retry_mark(decision: Retry, reading: Reading, occasion: Occasion) -> Mark:
    """Return the headers for a retry. If the message is snoozed, the last failure is kept."""
    counts = count_mark(reading, decision.attempt, counted=decision.counted)
    failure = _failure(decision, reading, occasion) if decision.counted else None
    first = occasion.copy_id if decision.counted else None
    copy_id = reading.history.copy_id or first
    stamps = reading.plan.retry_stamps
    return _complete(counts, stamps, failure, decision, reading, occasion, copy_id)


def park_mark(decision: Park, reading: Reading, occasion: Occasion) -> Mark:
    """Return the headers for a dead letter."""
    plan = reading.plan
    bare = Mark(plan.queue, decision.attempt, reading.history.snoozes)
    failure = _failure(decision, reading, occasion)
    return _complete(bare, plan.park_stamps, failure, decision, reading, occasion)


def _failure(decision: Retry | Park, reading: Reading, occasion: Occasion) -> Failure:
    """Return the failure record with the time of the first failure."""
    before = reading.history.failure
    now = occasion.failure or failure_from_outcome(decision.reason, occasion.status)
    host = clip(occasion.host, _NAME_BYTES)
    first = before.first if before is not None and before.first else occasion.now
    return Failure(*now[:5], host, first, occasion.now, decision.attempt)


def failure_from_outcome(reason: str, status: int | None) -> Failure:
    """Return a failure record for an HTTP status or a reason."""
    return failure_from_reason(reason) if status is None else failure_from_status(status, reason)


def _complete(
    counts: Mark,
    stamps: tuple[Stamp, ...],
    failure: Failure | None,
    decision: Retry | Park,
    reading: Reading,
    occasion: Occasion,
    copy_id: str | None = None,
) -> Mark:
    """Add the origin, the failure and the headers defined by the design.

    If there is no value for a header of the design, it is removed.
    """
    origin, present = reading.origin, reading.history.headers
    # Keyword arguments take twice as long here.
    complete = Mark(
        counts.queue, counts.attempts, counts.snoozes, *origin, failure, None, None, copy_id, counts.counters
    )  # fmt: skip
    due = [stamp for stamp in stamps if not (stamp.once and stamp.header in present)]
    if not due:
        return complete
    facts = _facts(counts.queue, origin, decision, occasion)
    values = {stamp.header: facts[stamp.fact] for stamp in due}
    return complete._replace(
        design={name: value for name, value in values.items() if value is not None},
        without=frozenset(name for name, value in values.items() if value is None),
    )


def _facts(
    queue: str, origin: tuple[str, str], decision: Retry | Park, occasion: Occasion
) -> Mapping[Fact, FieldValue]:
    failure = occasion.failure
    error = None if failure is None else clip(failure.message or failure.type, _TEXT_BYTES)
    return {
        Fact.NOW: timestamp(occasion.now),
        Fact.QUEUE: queue,
        Fact.ATTEMPT: decision.attempt,
        Fact.RETRIES: decision.attempt - 1,
        Fact.REASON: clip(decision.reason, _TEXT_BYTES),
        Fact.ERROR: error,
        Fact.STATUS: occasion.status,
        Fact.ORIGIN_EXCHANGE: field_text(origin[0]),
        Fact.ORIGIN_ROUTING_KEY: field_text(origin[1]),
    }


_ACK = (Settle(Settlement.ACK),)
_DEAD_LETTER = (Settle(Settlement.DEAD_LETTER),)


def effects(
    decision: Decision,
    delivery: Delivery,
    plan: Plan,
    occasion: Occasion,
    *,
    reading: Reading | None = None,
) -> tuple[Effect, ...]:
    """Return the effects of a decision. If the message stays unsettled, there are none.

    `reading` contains the parsed headers, if available.
    """
    match decision:
        case decided.Ack():
            return _ACK
        case decided.Requeue(delay=seconds):
            return (Hold(seconds), Settle(Settlement.RELEASE))
        case decided.Keep():
            return ()
        case decided.Retry(by=Leave.REJECT) | decided.Park(by=Leave.REJECT):
            return _DEAD_LETTER
        case decided.Retry(route=route):
            read = reading or Reading(delivery, plan)
            mark = retry_mark(decision, read, occasion)
            marked = retry_properties(delivery.properties, mark, read.history)
            if decision.delayed and marked is not None:
                back = Message("", plan.queue, delivery.body, marked)
                delay_ms = decision.tier.delay_ms
                due_ms = math.ceil(occasion.now * 1000) + delay_ms
                return (Publish(delay(back, delay_ms, due_ms)), *_ACK)
            return _move(delivery, route.exchange, route.routing_key, marked)
        case decided.Park():
            read, parking = reading or Reading(delivery, plan), plan.parking
            mark = park_mark(decision, read, occasion)
            marked = park_properties(delivery.properties, mark, read.history)
            return _move(delivery, parking.exchange, parking.routing_key, marked)
        case _:
            assert_never(decision)


def park_raw(
    delivery: Delivery, plan: Plan, reason: str, *, may_reject: bool = False
) -> list[tuple[Effect, ...]]:
    """Return several ways to dead-letter a message that cannot be rewritten. They are tried in
    order.

    The message is published with the reason first, then unchanged, then without its headers, and
    then only its body. If `may_reject` is True, the broker dead-letters the message at last. It
    does not check the size again when it does this.
    """
    if plan.parking.by is Leave.REJECT:
        return [_DEAD_LETTER]
    failure = failure_json(failure_from_reason(reason)) or ""
    note: dict[str, FieldValue] = {names.QUEUE: plan.queue, names.FAILURE: failure}
    bare = bare_properties(delivery.properties)
    forms = (
        bare.with_changes(headers={**bare.headers, **note}),
        bare,
        bare.with_changes(headers=note, further_headers=()),
        Properties(delivery_mode=2, headers=note),
    )
    parking = plan.parking
    ways = [_move(delivery, parking.exchange, parking.routing_key, form) for form in forms]
    return [*ways, _DEAD_LETTER] if may_reject else ways


def _move(
    delivery: Delivery, exchange: str, routing_key: str, properties: Properties | None
) -> tuple[Effect, ...]:
    """Publish the message and ack the delivery.

    Returns no effects if the headers do not fit into a frame. `decide` has already checked this.
    """
    if properties is None:
        return ()
    return (Publish(Message(exchange, routing_key, delivery.body, properties)), *_ACK)
