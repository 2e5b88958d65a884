"""A dead letter as a value: what it is, why it is here, how often it failed. Pure and total.

Whatever a message holds, nothing here raises, and the work on a large body is bounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from hopback.deadletters.contract import DeadLetter, Moment
from hopback.deadletters.envelopes import envelope_of
from hopback.deadletters.foreign import foreign_failure
from hopback.deadletters.plain import plain_text
from hopback.headers import (
    Failure,
    broker_failures,
    canonical,
    clipped,
    counter_in,
    deaths,
    failure_from_reason,
    failure_in,
    last_death_queue,
    marked_queue,
    read_history,
    text_in,
)
from hopback.headers.names import FAILURE, is_broker_count
from hopback.message import Properties
from hopback.renamed import old_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.deadletters.discovery import DeadLetterQueue
    from hopback.deadletters.foreign import ForeignFailure
    from hopback.fields import Headers
    from hopback.headers import Death
    from hopback.message import Delivery

__all__ = ["content_digest", "delivery_count", "origin_queue", "read_dead_letter"]

_HASHED_BYTES = 512 * 1024
_MANY_VALUES = 1000
_TEXT_BYTES = 255
_NO_FAILURE = Failure(type="", message="")
_ORIGIN_HEADERS = ("x-parked-from-queue", "x-original-queue", "x-first-death-queue")


def read_dead_letter(
    delivery: Delivery, place: int, source: DeadLetterQueue | None = None
) -> DeadLetter:
    """The dead letter in a delivery; `place` is its number in the session, from 1."""
    headers = delivery.properties.headers
    foreign = foreign_failure(headers)
    origin = origin_queue(delivery, source, foreign)
    failure, recorded_by = _failure(headers, foreign)
    died = _death_in(headers, origin)
    reason = _reason(headers, died, origin, recorded_by)
    known = read_history(headers, origin)
    said = envelope_of(delivery)
    digest = content_digest(delivery)
    return DeadLetter(
        id=f"{place}-{digest[:16]}",
        place=place,
        digest=digest,
        queue=delivery.queue,
        reason=plain_text(reason),
        origin=plain_text(origin),
        type=plain_text(said.type),
        message_id=plain_text(said.id),
        sent=plain_text(said.time),
        error=plain_text(failure.type),
        error_message=plain_text(failure.message),
        fingerprint=plain_text(failure.fingerprint or _fingerprint(reason, origin)),
        recorded_by=recorded_by,
        attempts=_attempts(headers, origin, source, failure, foreign),
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


def origin_queue(
    delivery: Delivery,
    source: DeadLetterQueue | None = None,
    foreign: ForeignFailure | None = None,
) -> str:
    """The queue the message failed in, empty if nothing tells.

    What the broker parked names its queue in `x-death`; what we parked carries our mark. A queue
    that is known to send its dead letters here goes before any other that is named.
    """
    known = () if source is None else source.origins
    if len(known) == 1:
        return known[0]
    named = [name for name in _named_origins(delivery, foreign) if name]
    return next((name for name in named if name in known), next(iter(named), ""))


def content_digest(delivery: Delivery) -> str:
    """A hash of body and properties; counts that a quorum queue writes have no part in it.

    Of a body over 1 MiB its length, beginning and end are hashed.
    """
    digest = hashlib.sha256()
    body = delivery.body
    if len(body) > 2 * _HASHED_BYTES:
        body = body[:_HASHED_BYTES] + body[-_HASHED_BYTES:] + str(len(body)).encode()
    digest.update(body)
    for part in _canonical_properties(delivery.properties):
        digest.update(part.encode("utf-8", "backslashreplace"))
    digest.update(delivery.properties.opaque_headers)
    return digest.hexdigest()


def _canonical_properties(properties: Properties) -> Iterator[str]:
    for field in fields(Properties):
        if field.name not in {"headers", "further_headers", "opaque_headers"}:
            yield f"{field.name}={getattr(properties, field.name)!r}\n"
    headers = properties.headers
    lasting = {name: headers[name] for name in sorted(headers) if not is_broker_count(name)}
    if _count(lasting, _MANY_VALUES) < _MANY_VALUES:
        for name, value in lasting.items():
            yield f"{name!r}={canonical(value)!r}\n"
    else:
        # Tens of thousands fit into a frame. Written as they are they take a tenth of the time; a
        # queue hands the same message out in the same form each time.
        yield repr(lasting)
    yield repr(properties.further_headers)


def _count(value: object, most: int) -> int:
    """How many values are in it, at whatever depth; it stops counting at `most`."""
    if isinstance(value, str | bytes) or not isinstance(value, Mapping | list | tuple):
        return 1
    inner = value.values() if isinstance(value, Mapping) else value
    found = len(value)
    for each in inner:
        if found >= most:
            break
        found += _count(each, most - found)
    return found


def _named_origins(delivery: Delivery, foreign: ForeignFailure | None) -> Iterator[str | None]:
    headers = delivery.properties.headers
    here = delivery.queue
    yield None if last_death_queue(headers) == here else last_death_queue(headers)
    yield marked_queue(headers)
    yield foreign.queue if foreign is not None else None
    yield from (text_in(headers.get(name)) for name in _ORIGIN_HEADERS)
    yield from (death.queue for death in deaths(headers) if death.queue != here)


def _failure(headers: Headers, foreign: ForeignFailure | None) -> tuple[Failure, str]:
    """What went wrong and who says so; an empty record where nobody does."""
    own = failure_in(headers.get(FAILURE))
    if own is not None:
        return own, "hopback"
    if foreign is not None:
        return foreign.failure, foreign.framework
    said = text_in(headers.get("x-final-error"), 1024) or text_in(
        headers.get("x-parked-reason"), 1024
    )
    if said:
        return failure_from_reason(said), "its consumer"
    return _NO_FAILURE, ""


def _death_in(headers: Headers, origin: str) -> Death | None:
    """The death in the queue of origin, else the most recent one."""
    known = deaths(headers)
    return next((death for death in known if death.queue == origin), next(iter(known), None))


def _reason(headers: Headers, died: Death | None, origin: str, recorded_by: str) -> str:
    """Why it is here: the broker's word if its last death was in the queue of origin.

    A record of the failure and a last death elsewhere: it came back from a retry queue, ran again,
    and a consumer put it here itself.
    """
    recorded = bool(recorded_by or marked_queue(headers))
    if died is None or (recorded and last_death_queue(headers) != origin):
        return "parked" if recorded else "unknown"
    return clipped(died.reason, _TEXT_BYTES)


def _fingerprint(reason: str, origin: str) -> str:
    """Of a message without any record of its failure: why it died, and where."""
    return failure_from_reason(origin, kind=f"x-death {reason}").fingerprint


def _attempts(
    headers: Headers,
    origin: str,
    source: DeadLetterQueue | None,
    failure: Failure,
    foreign: ForeignFailure | None,
) -> int:
    """The largest of what anyone counted; never a sum. Where no consumer did, the broker tells."""
    plans = () if source is None else source.plans
    counters = [counter_in(headers, plan.count_header) for plan in plans if plan.queue == origin]
    counted = max(
        read_history(headers, origin).attempts,
        failure.attempts,
        1 + foreign.retries if foreign is not None else 0,
        *counters,
        0,
    )
    rejected = broker_failures(headers, origin)
    if counted or rejected > 1:
        return max(counted, rejected)
    # Its consumer published it into retry queues: a run before each wait, and one after the last.
    waits = sum(
        death.count
        for death in deaths(headers)
        if death.queue != origin and death.reason == "expired"
    )
    return waits + 1 if waits else rejected


def _moment(recorded: float, died: Death | None) -> Moment | None:
    if recorded > 0:
        return Moment(recorded)
    moment = died.time if died is not None else None
    # A time beyond the year 9999 was not written by a broker.
    return Moment(moment) if moment is not None and 0 < moment < 253_402_300_800 else None


def delivery_count(delivery: Delivery) -> int:
    """How often a quorum queue has handed it out before, by its own count."""
    headers = delivery.properties.headers
    return max(counter_in(headers, "x-delivery-count"), counter_in(headers, "x-acquired-count"))


__getattr__ = old_names(
    __name__, {"Letter": "hopback.deadletters.DeadLetter", "letter_of": "read_dead_letter"}
)
