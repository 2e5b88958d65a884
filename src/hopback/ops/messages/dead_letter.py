"""Read a dead letter from a delivery, including its origin, reason, failure and attempts.

The functions are pure and accept any message without raising an error. The time for large messages
is limited. Properties and headers are read first, and bodies only if they are short. Commands, the
HTTP API and the page show the resulting values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.headers import (
    Death,
    Failure,
    History,
    clip,
    counter_in,
    deaths,
    failure_from_reason,
    failure_from_status,
    failure_in,
    last_death_queue,
    queue_of_count,
    read_history,
    text_in,
)
from hopback.headers.names import FAILURE
from hopback.headers.raw import text_header_in
from hopback.ops.contract.values import DeadLetter, Moment
from hopback.ops.messages.attempts import count_attempts
from hopback.ops.messages.body import parse_content
from hopback.ops.messages.digest import content_digest
from hopback.ops.messages.envelope import read_envelope
from hopback.ops.messages.frameworks import ForeignFailure, foreign_failure
from hopback.ops.messages.plain import plain_text
from hopback.ops.messages.tasks import read_task_call

if TYPE_CHECKING:
    from hopback.fields import Headers
    from hopback.message import Delivery
    from hopback.ops.brokers.discovery import DeadLetterQueue


_FAILURE_NAME = FAILURE.encode()
_TEXT_BYTES = 255  # bytes of a reason, which is normally one word. The rest is cut off.
_NO_FAILURE = Failure(type="", message="")
_ORIGIN_HEADERS = ("x-parked-from-queue", "x-original-queue", "x-first-death-queue")


def read_dead_letter(
    delivery: Delivery, place: int, source: DeadLetterQueue | None = None
) -> DeadLetter:
    """Read the dead letter in a delivery. `place` is its position in the queue, starting with 1."""
    headers = delivery.properties.headers
    parsed = parse_content(delivery)
    call = read_task_call(delivery, parsed)
    foreign = foreign_failure(headers) or (None if call is None else call.failed)
    origin = origin_queue(delivery, source, foreign)
    failure, recorded_by = _failure(headers, foreign)
    known = read_history(headers, origin)
    died = _death_in(known)
    reason = _reason(headers, died, origin, recorded_by)
    # None means that the message does not show whether it was tried.
    retries = None if call is None else call.retries or None
    if foreign is not None:
        retries = foreign.retries
    attempts, at_least = count_attempts(known, source, failure, retries)
    envelope = read_envelope(delivery.properties, parsed)
    digest = content_digest(delivery)
    return DeadLetter(
        id=f"{place}-{digest[:16]}",
        place=place,
        digest=digest,
        queue=delivery.queue,
        reason=plain_text(reason),
        origin=plain_text(origin),
        type=plain_text(envelope.type or ("" if call is None else call.name)),
        message_id=plain_text(envelope.id or ("" if call is None else call.id)),
        sent=plain_text(envelope.time),
        error=plain_text(failure.type),
        error_message=plain_text(failure.message),
        fingerprint=_fingerprint(failure, origin, reason),
        recorded_by=recorded_by,
        attempts=attempts,
        attempts_at_least=at_least,
        redrives=known.redrives,
        redrive_job=plain_text(known.redrive_job or ""),
        first_failed=_moment(failure.first, died),
        last_failed=_moment(failure.last, died),
        size=len(delivery.body),
        delivery_count=delivery_count(delivery),
        exchange=plain_text(delivery.exchange),
        routing_key=plain_text(delivery.routing_key),
        redelivered=delivery.redelivered,
    )


def read_failure(delivery: Delivery) -> Failure | None:
    """Return the failure recorded by Hopback or another framework, with its stack."""
    headers = delivery.properties.headers
    own = failure_in(headers.get(FAILURE))
    if own is not None:
        return own
    foreign = _foreign_failure(delivery)
    return None if foreign is None else foreign.failure


def _foreign_failure(delivery: Delivery) -> ForeignFailure | None:
    """Return the failure that another framework has recorded in the headers or in the body."""
    found = foreign_failure(delivery.properties.headers)
    if found is not None:
        return found
    call = read_task_call(delivery, parse_content(delivery))
    return None if call is None else call.failed


def last_failure(
    delivery: Delivery, source: DeadLetterQueue | None = None
) -> tuple[str, Moment | None]:
    """Return the fingerprint and the time of the last failure, with the same result as
    `read_dead_letter`.

    This is faster. For most messages it only reads one header and not the body.
    """
    raw: bytes | None = getattr(delivery, "raw_properties", None)
    text = None if raw is None else text_header_in(raw, _FAILURE_NAME)
    own = failure_in(delivery.properties.headers.get(FAILURE) if text is None else text)
    if own is not None and own.fingerprint and own.last > 0:
        return plain_text(own.fingerprint), Moment(own.last)
    headers = delivery.properties.headers
    foreign = _foreign_failure(delivery)
    origin = origin_queue(delivery, source, foreign)
    failure, recorded_by = _failure(headers, foreign)
    died = _death_in(read_history(headers, origin))
    reason = _reason(headers, died, origin, recorded_by)
    return _fingerprint(failure, origin, reason), _moment(failure.last, died)


def _death_in(known: History) -> Death | None:
    """Return the last death in the queue of origin. If there is none, return the last death in any
    queue.
    """
    for death in known.broker_deaths:
        if death.queue == known.queue:
            return death
    return next(iter(known.broker_deaths), None)


def _fingerprint(failure: Failure, origin: str, reason: str) -> str:
    """Return the fingerprint of a failure. If none was recorded, it is derived from reason and origin."""
    return plain_text(
        failure.fingerprint or failure_from_reason(origin, kind=f"x-death {reason}").fingerprint
    )


def origin_queue(
    delivery: Delivery,
    source: DeadLetterQueue | None = None,
    foreign: ForeignFailure | None = None,
) -> str:
    """Return the queue in which the message failed, or an empty string if it is unknown.

    If the broker dead-lettered the message, the queue is in `x-death`. If Hopback parked it, the
    queue is in its own headers. Queues that are known to dead-letter to `source` take precedence.
    """
    known = () if source is None else source.origins
    if len(known) == 1:
        return known[0]
    headers, here = delivery.properties.headers, delivery.queue
    last = last_death_queue(headers)
    candidates = [
        None if last == here else last,
        queue_of_count(headers),
        None if foreign is None else foreign.queue,
        *(text_in(headers.get(name)) for name in _ORIGIN_HEADERS),
        *(death.queue for death in deaths(headers) if death.queue != here),
    ]
    named = [name for name in candidates if name]
    return next((name for name in named if name in known), next(iter(named), ""))


def _failure(headers: Headers, foreign: ForeignFailure | None) -> tuple[Failure, str]:
    """Return the failure and the name of its recorder. Both are empty if nothing was recorded."""
    own = failure_in(headers.get(FAILURE))
    if own is not None:
        return own, "hopback"
    if foreign is not None:
        return foreign.failure, foreign.framework
    text = text_in(headers.get("x-final-error"), 1024) or text_in(
        headers.get("x-parked-reason"), 1024
    )
    status = headers.get("x-final-status-code")
    if type(status) is int and 100 <= status <= 599:
        return failure_from_status(status, text or ""), "its consumer"
    if text:
        return failure_from_reason(text), "its consumer"
    return _NO_FAILURE, ""


def _reason(headers: Headers, died: Death | None, origin: str, recorded_by: str) -> str:
    """Return the broker's reason, `parked` if the consumer has parked the message, or `unknown`.

    If a failure was recorded and the last death was not in the queue of origin, the message came
    from a retry queue, was tried again, and was then parked by its consumer.
    """
    recorded = bool(recorded_by or queue_of_count(headers))
    if died is None or (recorded and last_death_queue(headers) != origin):
        return "parked" if recorded else "unknown"
    return clip(died.reason, _TEXT_BYTES)


def _moment(recorded: float, died: Death | None) -> Moment | None:
    if recorded > 0:
        return Moment(recorded)
    moment = died.time if died is not None else None
    # Ignore times after the year 9999, which a broker does not write.
    return Moment(moment) if moment is not None and 0 < moment < 253_402_300_800 else None


def delivery_count(delivery: Delivery) -> int:
    """Return how often a quorum queue has requeued the message, as counted for its delivery limit.

    RabbitMQ 4.3 counts all deliveries in `x-acquired-count`, but no limit applies to this count.
    """
    return counter_in(delivery.properties.headers, "x-delivery-count")
