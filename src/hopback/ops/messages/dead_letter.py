"""A dead letter as a value: what it is, why it is here, how often it failed, what happened. Pure and total.

Headers and properties are asked first; a body only if it is short and may be JSON. Whatever a message
holds, nothing here raises, and the work on a large body is bounded. The command, the HTTP API and the page
show messages in the words of this module.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from hopback import fields as amqp
from hopback.fields import Timestamp
from hopback.headers import (
    Failure,
    canonical_text,
    clipped,
    counter_in,
    deaths,
    failure_from_reason,
    failure_from_status,
    failure_in,
    last_death_queue,
    marked_queue,
    read_history,
    text_in,
    timestamp,
)
from hopback.headers.names import FAILURE, is_broker_count, is_protected
from hopback.headers.raw import text_header_in
from hopback.message import Properties
from hopback.ops.contract.values import DeadLetter, Moment, TimelineEntry
from hopback.ops.messages.body import is_msgpack, kombu_message, parsed_content, unpacked
from hopback.ops.messages.frameworks import foreign_failure, task_call

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.fields import FieldValue, Headers
    from hopback.headers import Death, History
    from hopback.message import Delivery
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.messages.frameworks import ForeignFailure, TaskCall


SHOWN_HEADERS = 500
"""People send some tens; a frame has room for 25,000."""

_PARSED_BYTES = 256 * 1024  # a larger payload is downloaded, not shown
_FAILURE_NAME = FAILURE.encode()
_LARGEST_EXACT = 2**53
"""Beyond it, readers of JSON that know only floating point would change the number."""
_PROPERTIES = {
    "content_type": "contentType", "content_encoding": "contentEncoding",
    "delivery_mode": "deliveryMode", "priority": "priority", "correlation_id": "correlationId",
    "reply_to": "replyTo", "expiration": "expiration", "message_id": "messageId",
    "timestamp": "timestamp", "type": "type", "user_id": "userId", "app_id": "appId",
    "cluster_id": "clusterId",
}  # fmt: skip
_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "bool"), (amqp.Timestamp, "timestamp"), (amqp.Int8, "int8"),
    (amqp.UInt8, "uint8"), (amqp.Int16, "int16"), (amqp.UInt16, "uint16"),
    (amqp.Int32, "int32"), (amqp.UInt32, "uint32"), (amqp.UInt64, "uint64"), (int, "int64"),
    (amqp.Float32, "float"), (float, "double"), (Decimal, "decimal"), (str, "text"),
    (amqp.LongStr, "bytes as text"), (amqp.RawValue, "not decoded"), (bytes, "bytes"),
    (list, "array"), (tuple, "array"),
    (type(None), "void"),
)  # fmt: skip


def amqp_type(value: object) -> str:
    """The AMQP type of a header's value, in a word."""
    return next((name for kind, name in _TYPES if isinstance(value, kind)), "table")


def plain_text(text: str) -> str:
    """The text without what UTF-8 cannot carry."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def plain_value(value: object) -> Any:
    """A value of AMQP as JSON can hold it."""
    match value:
        case str():
            return plain_text(value)
        case None | bool():
            return value
        case int():
            return int(value) if abs(value) < _LARGEST_EXACT else str(int(value))
        case float():
            return float(value) if value - value == 0 else str(float(value))
        case bytes():
            return plain_text(value.decode("utf-8", "backslashreplace"))
        case Mapping():
            return {plain_text(str(key)): plain_value(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain_value(inner) for inner in value]
    return plain_text(str(value))


def plain_properties(properties: Properties) -> dict[str, Any]:
    """Every property that is set, by its name in JSON; headers are apart."""
    found = ((shown, getattr(properties, name)) for name, shown in _PROPERTIES.items())
    return {shown: plain_value(value) for shown, value in found if value is not None}


def plain_headers(headers: Headers) -> tuple[list[tuple[str, FieldValue]], int]:
    """The headers to show, and how many more there are.

    Of very many those that a broker or Hopback wrote are shown before any others.
    """
    if len(headers) <= SHOWN_HEADERS:
        return list(headers.items()), 0
    known = [name for name in headers if is_protected(name)][:SHOWN_HEADERS]
    others = islice((name for name in headers if not is_protected(name)), SHOWN_HEADERS)
    shown = [*known, *others][:SHOWN_HEADERS]
    return [(name, headers[name]) for name in shown], len(headers) - len(shown)


def plain_payload(delivery: Delivery) -> tuple[Any, str]:
    """The payload and what it is: parsed JSON or MessagePack, or text; a large or binary one is left out.

    What is compressed is unpacked first.
    """
    body, is_whole, _ = unpacked(delivery, _PARSED_BYTES)
    if not is_whole:
        return None, "omitted"
    if is_msgpack(delivery.properties.content_type):
        try:
            parsed = parsed_content(delivery, _PARSED_BYTES)
            return (None, "binary") if parsed is None else (plain_value(parsed), "msgpack")
        except RecursionError:
            return None, "binary"
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return None, "binary"
    try:
        return json.loads(text, parse_constant=_no_constant), "json"
    except (ValueError, RecursionError):
        return text, "string"


def pretty_json(data: str | bytes, most: int) -> tuple[str, bool] | None:
    """JSON with indentation, at most so many characters, and whether it was cut; None if it is none.

    It is written only as far as it is shown: indentation can make a thousand times of what is
    nested deeply.
    """
    if data.lstrip()[:1] not in ("{", "[", b"{", b"["):
        return None
    try:
        chunks, length = list[str](), 0
        for chunk in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(data)):
            chunks.append(chunk)
            length += len(chunk)
            if length > most:
                break
    except (ValueError, RecursionError):
        return None
    return "".join(chunks)[:most], length > most


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_NAME_BYTES = 255  # of type, id and time: what a property of AMQP can hold
_TYPE_HEADERS = (
    "cloudEvents:type", "cloudEvents_type", "ce-type", "ce_type", "NServiceBus.EnclosedMessageTypes",
    "__TypeId__", "type", "x-message-type", "message-type", "event-type", "eventType",
)  # fmt: skip
_ID_HEADERS = (
    "cloudEvents:id", "cloudEvents_id", "ce-id", "ce_id", "NServiceBus.MessageId", "MT-MessageId",
)  # fmt: skip
_TIME_HEADERS = ("cloudEvents:time", "cloudEvents_time", "ce-time", "ce_time")
_TYPE_FIELDS = (
    "type", "eventType", "event_type", "messageType", "message_type", "eventName", "event", "name",
)  # fmt: skip
_ID_FIELDS = ("id", "eventId", "event_id", "messageId", "message_id", "uuid")
_TIME_FIELDS = (
    "time", "occurredAt", "occurred_at", "timestamp", "sentTime", "createdAt", "created_at",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Envelope:
    """Type, id and time as the message itself gives them; empty where it does not."""

    type: str = ""
    id: str = ""
    time: str = ""


def envelope_of(delivery: Delivery) -> Envelope:
    """What the message says it is, by its properties, its headers, then its body."""
    return _envelope(delivery.properties, parsed_content(delivery))


def _envelope(properties: Properties, parsed: object) -> Envelope:
    headers = properties.headers
    body = parsed if isinstance(parsed, dict) else {}
    kind = _first((properties.type, *_of(headers, _TYPE_HEADERS), *_of(body, _TYPE_FIELDS)))
    return Envelope(
        # A .NET type without its assembly, a MassTransit URN without its scheme.
        kind.split(";")[0].split(",")[0].removeprefix("urn:message:").strip(),
        _first((properties.message_id, *_of(headers, _ID_HEADERS), *_of(body, _ID_FIELDS))),
        _first((*_of(headers, _TIME_HEADERS), *_of(body, _TIME_FIELDS))),
    )


def _of(values: Mapping[str, object], names: Iterable[str]) -> Iterable[object]:
    return map(values.get, names) if values else ()


def _first(candidates: Iterable[object]) -> str:
    """The first text; of a list of texts (MassTransit names every type it implements) the first."""
    for value in candidates:
        found = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(found, str) and found:
            return clipped(found, _NAME_BYTES)
    return ""


_HASHED_BYTES = 512 * 1024  # of either end of a body: hashing takes a millisecond then
# More names than these are not kept for the next message: a stranger may make them up.
_USUAL_HEADERS = 64
_SINGLE = frozenset({str, int, bool, float, bytes, Timestamp, type(None)})
_MANY_VALUES = 1000  # people send some tens; a message of more is made to be slow
_TEXT_BYTES = 255  # of a reason: those of brokers are single words
_SIMPLE_PROPERTIES = tuple(
    field.name
    for field in fields(Properties)
    if field.name not in {"headers", "further_headers", "opaque_headers"}
)
_NO_FAILURE = Failure(type="", message="")
_ORIGIN_HEADERS = ("x-parked-from-queue", "x-original-queue", "x-first-death-queue")


def read_dead_letter(
    delivery: Delivery, place: int, source: DeadLetterQueue | None = None
) -> DeadLetter:
    """The dead letter in a delivery; `place` is its number in the session, from 1."""
    headers = delivery.properties.headers
    parsed = parsed_content(delivery)
    call = _task_call(delivery, parsed)
    foreign = foreign_failure(headers) or (None if call is None else call.failed)
    origin = origin_queue(delivery, source, foreign)
    failure, recorded_by = _failure(headers, foreign)
    known = read_history(headers, origin)
    died = _death_in(known)
    reason = _reason(headers, died, origin, recorded_by)
    # The retries that its framework counted; None if nothing says that it was run.
    retries = None if call is None else call.retries or None
    if foreign is not None:
        retries = foreign.retries
    attempts, at_least = _attempts(known, source, failure, retries)
    said = _envelope(delivery.properties, parsed)
    digest = content_digest(delivery)
    return DeadLetter(
        id=f"{place}-{digest[:16]}",
        place=place,
        digest=digest,
        queue=delivery.queue,
        reason=plain_text(reason),
        origin=plain_text(origin),
        type=plain_text(said.type or ("" if call is None else call.name)),
        message_id=plain_text(said.id or ("" if call is None else call.id)),
        sent=plain_text(said.time),
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


def recorded_failure(delivery: Delivery) -> Failure | None:
    """What a consumer wrote down about the failure, with its stack: ours, or that of its framework."""
    headers = delivery.properties.headers
    own = failure_in(headers.get(FAILURE))
    if own is not None:
        return own
    foreign = _foreign_failure(delivery)
    return None if foreign is None else foreign.failure


def _foreign_failure(delivery: Delivery) -> ForeignFailure | None:
    """What another framework wrote down; the body is read only where the headers do not tell."""
    found = foreign_failure(delivery.properties.headers)
    if found is not None:
        return found
    call = _task_call(delivery, parsed_content(delivery))
    return None if call is None else call.failed


def _task_call(delivery: Delivery, parsed: object) -> TaskCall | None:
    """The call in a message; also in one that Kombu had wrapped to store it in Redis or SQS."""
    inner = kombu_message(parsed)
    if inner is not None:
        return task_call(
            inner.properties.headers, inner.properties.content_type, parsed_content(inner)
        )
    said = delivery.properties
    return task_call(said.headers, said.content_type, parsed)


def last_failure(
    delivery: Delivery, source: DeadLetterQueue | None = None
) -> tuple[str, Moment | None]:
    """Fingerprint and time of its last failure, as `read_dead_letter` has them.

    No more is read than that takes: of most messages one header, and of few the body.
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
    """Its death in the queue of origin, else the most recent."""
    for death in known.broker_deaths:
        if death.queue == known.queue:
            return death
    return next(iter(known.broker_deaths), None)


def _fingerprint(failure: Failure, origin: str, reason: str) -> str:
    """That of the record; of a message without any: why it died, and where."""
    said = failure.fingerprint or failure_from_reason(origin, kind=f"x-death {reason}").fingerprint
    return plain_text(said)


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
    headers, here = delivery.properties.headers, delivery.queue
    last = last_death_queue(headers)
    said = [
        None if last == here else last,
        marked_queue(headers),
        None if foreign is None else foreign.queue,
        *(text_in(headers.get(name)) for name in _ORIGIN_HEADERS),
        *(death.queue for death in deaths(headers) if death.queue != here),
    ]
    named = [name for name in said if name]
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
    properties = delivery.properties
    said, headers = vars(properties), properties.headers
    written = [f"{name}={said.get(name)!r}\n" for name in _SIMPLE_PROPERTIES]
    names = _lasting(tuple(headers)) if len(headers) <= _USUAL_HEADERS else _lasting_of(headers)
    lasting = {name: headers[name] for name in names}
    if _count(lasting, _MANY_VALUES) < _MANY_VALUES:
        written += [f"{name!r}={canonical_text(value)}\n" for name, value in lasting.items()]
    else:
        # Tens of thousands fit into a frame. Written as they are they take a tenth of the time; a
        # queue hands the same message out in the same form each time.
        written.append(repr(lasting))
    # Nothing where there are none: selections of jobs that 0.1.0 has begun hold digests without it.
    if properties.further_headers:
        written.append(repr(properties.further_headers))
    digest.update("".join(written).encode("utf-8", "backslashreplace"))
    digest.update(properties.opaque_headers)
    return digest.hexdigest()


def _lasting_of(names: Iterable[str]) -> tuple[str, ...]:
    """Those that a queue does not write itself, sorted."""
    return tuple(sorted(name for name in names if not is_broker_count(name)))


# The messages of a queue have the same few headers.
_lasting = lru_cache(maxsize=256)(_lasting_of)


def _count(value: object, most: int) -> int:
    """How many values are in it, at whatever depth; it stops counting at `most`."""
    # What the wire reads is a dict or a list; to ask for an abstract class costs ten times as much.
    kind = type(value)
    if kind is dict or (kind is not list and isinstance(value, Mapping)):
        inner: Iterable[object] = value.values()  # type: ignore[attr-defined]
    elif kind is list or kind is tuple:
        inner = value  # type: ignore[assignment]
    else:
        return 1
    found = len(value)  # type: ignore[arg-type]
    for each in inner:
        if found >= most:
            break
        found += 1 if type(each) in _SINGLE else _count(each, most - found)
    return found


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
    status = headers.get("x-final-status-code")
    if type(status) is int and 100 <= status <= 599:
        return failure_from_status(status, said or ""), "its consumer"
    if said:
        return failure_from_reason(said), "its consumer"
    return _NO_FAILURE, ""


def _reason(headers: Headers, died: Death | None, origin: str, recorded_by: str) -> str:
    """Why it is here: the broker's word if its last death was in the queue of origin.

    A record of the failure and a last death elsewhere: it came back from a retry queue, ran again,
    and a consumer put it here itself.
    """
    recorded = bool(recorded_by or marked_queue(headers))
    if died is None or (recorded and last_death_queue(headers) != origin):
        return "parked" if recorded else "unknown"
    return clipped(died.reason, _TEXT_BYTES)


_RETRY_COUNTERS = ("x-retry-count", "x-retries", "x-retry", "retry-count", "retry_count", "retries")
_RUN_COUNTERS = ("x-attempts", "x-attempt", "attempts", "x-delivery-attempts")
_MOST_RUNS = 100  # a larger number counts something else


def _runs_in_headers(headers: Headers) -> int:
    """The runs that a consumer without a framework counted under a usual name; 0 if it did not."""
    retries = max((counter_in(headers, name) for name in _RETRY_COUNTERS), default=0)
    runs = max((counter_in(headers, name) for name in _RUN_COUNTERS), default=0)
    counted = max(runs, retries + 1 if retries else 0)
    return counted if counted <= _MOST_RUNS else 0


def _attempts(
    known: History,
    source: DeadLetterQueue | None,
    failure: Failure,
    retries: int | None,
) -> tuple[int, bool]:
    """How often its handler ran, and whether it may have been more often.

    What consumers count is right. The broker's record tells of rejects, and of laps through retry
    queues. A lap that began with a reject is that run again; one into which the consumer published
    the message itself is another. What was requeued or came back unanswered is in no record.
    """
    headers, origin = known.headers, known.queue
    plans = () if source is None else source.plans
    counters = [counter_in(headers, plan.count_header) for plan in plans if plan.queue == origin]
    counted = max(
        known.attempts,
        failure.attempts,
        # A framework that says of no retry may not know of those that the broker made.
        1 + retries if retries else 0,
        *counters,
        _runs_in_headers(headers),
        0,
    )
    rejected = known.broker_failures
    laps = {
        death.queue: death.count
        for death in known.broker_deaths
        if death.queue != origin and death.reason == "expired"
    }
    waited = sum(laps.values())
    taken_back = any(
        death.reason == "delivery_limit" and death.queue == origin for death in known.broker_deaths
    )
    if counted:
        return max(counted, rejected), False
    if not waited:
        # A framework that tells of no retry may have tried again within its own process.
        return max(rejected, int(retries is not None)), taken_back or not rejected
    ways = {} if source is None else {wait.queue: wait.by_broker for wait in source.waits}
    by_broker, most = all(ways.get(queue) for queue in laps), max(laps.values())
    # Laps through several queues after one reject are one lap.
    by_reject = by_broker or (rejected > 1 and rejected >= most)
    runs = max(rejected, most + 1) if by_reject else max(rejected, 1) + waited
    return runs, taken_back or not (by_broker or rejected <= 1)


def _moment(recorded: float, died: Death | None) -> Moment | None:
    if recorded > 0:
        return Moment(recorded)
    moment = died.time if died is not None else None
    # A time beyond the year 9999 was not written by a broker.
    return Moment(moment) if moment is not None and 0 < moment < 253_402_300_800 else None


def delivery_count(delivery: Delivery) -> int:
    """How often it came back to a quorum queue, as its delivery limit counts.

    RabbitMQ 4.3 counts in `x-acquired-count` what was given back unharmed, too; no limit asks for that.
    """
    return counter_in(delivery.properties.headers, "x-delivery-count")


_BROKER = {
    "rejected": "A consumer of {queue} rejected it",
    "expired": "It waited in {queue} until its time to live was over",
    "maxlen": "It was pushed out of {queue}, which was full",
    "delivery_limit": (
        "The broker took it from {queue} because it came back unanswered too often; its consumer"
        " probably crashed or was killed, and left no record of a failure"
    ),
}


def what_happened(dead_letter: DeadLetter, delivery: Delivery | None = None) -> str:
    """A few sentences that say why this message is here, and which task it is if it is one."""
    times, before = dead_letter.redrives, ""
    if times:
        before = f" It was re-driven{_times(times) or ' once'} before{_by(dead_letter)}."
    task = ""
    if delivery is not None:
        call = _task_call(delivery, parsed_content(delivery))
        task = "" if call is None else f" It is the {plain_text(str(call))}."
    return f"{_cause(dead_letter)}.{before}{task}"


def timeline(delivery: Delivery, dead_letter: DeadLetter) -> tuple[TimelineEntry, ...]:
    """Attempts, deaths and re-drives, the oldest first; what has no time comes last."""
    known = read_history(delivery.properties.headers, dead_letter.origin)
    events = [
        TimelineEntry(
            None if death.time is None or death.time < 0 else Moment(death.time),
            plain_text(f"left {death.queue} ({death.reason}{_times(death.count)})"),
        )
        for death in known.deaths
    ]
    if dead_letter.recorded_by:
        if (
            dead_letter.first_failed is not None
            and dead_letter.first_failed != dead_letter.last_failed
        ):
            events.append(
                TimelineEntry(dead_letter.first_failed, f"failed first in {_queue(dead_letter)}")
            )
        events.append(
            TimelineEntry(
                dead_letter.last_failed,
                f"failed last in {_queue(dead_letter)}: {_error(dead_letter)}",
            )
        )
    if dead_letter.redrives:
        events.append(
            TimelineEntry(None, f"re-driven{_times(dead_letter.redrives)}{_by(dead_letter)}")
        )
    return tuple(sorted(events, key=lambda event: (event.time is None, event.time or 0.0)))


def _cause(dead_letter: DeadLetter) -> str:
    if dead_letter.recorded_by:
        by = (
            ""
            if dead_letter.recorded_by == "hopback"
            else f" (recorded by {dead_letter.recorded_by})"
        )
        when = (
            "" if dead_letter.last_failed is None else f" at {timestamp(dead_letter.last_failed)}"
        )
        return (
            f"{_queue(dead_letter)} gave up{_after(dead_letter)}{when}{by}: {_error(dead_letter)}"
        )
    if dead_letter.reason in _BROKER:
        return _BROKER[dead_letter.reason].format(queue=_queue(dead_letter)) + _after(dead_letter)
    if dead_letter.reason == "parked":
        return (
            f"A consumer of {_queue(dead_letter)} parked it without a record{_after(dead_letter)}"
        )
    if dead_letter.reason == "unknown":
        return "Nothing in it says why it is here"
    return f"It left {_queue(dead_letter)} for the reason {dead_letter.reason!r}"


def _after(dead_letter: DeadLetter) -> str:
    if not dead_letter.attempts:
        return ""
    least = "at least " if dead_letter.attempts_at_least else ""
    times = "1 attempt" if dead_letter.attempts == 1 else f"{dead_letter.attempts} attempts"
    return f" after {least}{times}"


def _by(dead_letter: DeadLetter) -> str:
    return f", last by job {dead_letter.redrive_job}" if dead_letter.redrive_job else ""


def _times(count: int) -> str:
    return "" if count == 1 else f" {count} times"


def _queue(dead_letter: DeadLetter) -> str:
    return dead_letter.origin or "an unknown queue"


def _error(dead_letter: DeadLetter) -> str:
    parts = [part for part in (dead_letter.error, dead_letter.error_message) if part]
    return ": ".join(parts).rstrip(".") or "no reason given"
