"""Create the messages that are sent by a re-drive.

Most messages are created directly from their encoded properties, because decoding and encoding all
headers is slow. A typical dead letter has twenty headers. A re-drive only reads six of them and
writes eight. If the result could be different from `redrive_message`, the fast path returns None
and the caller has to use `redrive_message` instead.

Messages of a queue tend to have the same headers. We remember the structure of the last ones and
compare the next message with it. This is about ten times faster than looking at each header.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, NamedTuple

from hopback.errors import UnsafeOperation
from hopback.fields import (
    FieldValue,
    LayeredHeaders,
    SharedHeaders,
    field_text,
    table_size,
    value_end,
)
from hopback.headers import (
    Mark,
    clip,
    counter_in,
    deaths,
    last_death_queue,
    names,
    queue_of_count,
    redrive_properties,
    timestamp,
)
from hopback.headers.failure import failure_text_in
from hopback.headers.history import History, deaths_json
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
from hopback.headers.raw import cut_properties
from hopback.headers.rewrite import DEATHS_BYTES, is_harmful
from hopback.message import Delivery, Message, Properties
from hopback.policy.reading import Reading
from hopback.text import json_in
from hopback.topology.plan import MAX_REDRIVES, Fact, Plan, Redrive

if TYPE_CHECKING:
    from collections.abc import Iterable


_NAME_BYTES = 255  # maximum length of a name in AMQP 0-9-1
_SMALL_BYTES = 64 * 1024
"""Up to this size, there is always enough room for the new headers in a frame."""
# Maximum number of routes to cache, in case there are many different routing keys.
_SHARED_ROUTES = 256
_BROKERS = ("CC", "BCC", "x-death", "x-delivery-count", "x-acquired-count")


class RedriveOccasion(NamedTuple):
    """The context of a re-drive: time, job and operator.

    If `stamped` is True, headers of the file pipeline are added (`x-redriven-…` and
    `x-original-routing-key`). `operation` is the correlation id.
    """

    now: float
    job: str
    user_id: str = ""
    user_name: str = ""
    operation: str = ""
    stamped: bool = False


def plan_of(delivery: Delivery, plans: Iterable[Plan]) -> Plan | None:
    """Return the plan of the queue in which a message failed. Returns None if this is unknown.

    A dead-letter queue may be used by several queues. If the broker has dead-lettered the message,
    `x-death` contains the right one. Otherwise, Hopback's header does. It is used second, because
    it may belong to a copy in another queue.
    """
    candidates = {plan.queue: plan for plan in plans if plan.parking.queue == delivery.queue}
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    headers = delivery.properties.headers
    named = (
        last_death_queue(headers),
        queue_of_count(headers),
        *(death.queue for death in deaths(headers)),
    )
    return next((candidates[name] for name in named if name in candidates), None)


def redrive_refusal(
    delivery: Delivery, plan: Plan, *, max_redrives: int | None = MAX_REDRIVES
) -> str | None:
    """Explain why a message must not be re-driven. Returns None if it may be.

    If `max_redrives` is None, there is no limit.
    """
    refusal = loop_guard(delivery, max_redrives)
    if refusal is not None:
        return refusal
    if _properties(delivery, plan, plan.redrive, RedriveOccasion(0.0, "")) is None:
        return "its headers leave no room for the counts that a re-drive needs"
    return None


def loop_guard(delivery: Delivery, max_redrives: int | None = MAX_REDRIVES) -> str | None:
    """Return an error if a message was re-driven too often."""
    redrives = counter_in(delivery.properties.headers, REDRIVES)
    if max_redrives is not None and redrives >= max_redrives:
        return f"re-driven {redrives} times already, expected fewer than {max_redrives}"
    return None


def redrive_message(
    delivery: Delivery, plan: Plan, occasion: RedriveOccasion, *, target: Redrive | None = None
) -> Message:
    """Create the message for a re-drive.

    The target defines whether attempts are reset. All other headers are kept.

    Args:
        delivery: The dead letter.
        plan: The plan of the queue.
        occasion: The time and job of the re-drive.
        target: The target. Defaults to the target of the plan.

    Raises:
        UnsafeOperation: If the retry count does not fit into the headers.
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
    """Creates messages for a re-drive. Faster than `redrive_message` in most cases.

    Dead letters of other consumers rarely have headers that need special care. The headers to add
    are the same for all messages.
    """

    def __init__(self, plan: Plan, target: Redrive, occasion: RedriveOccasion) -> None:
        self._plan = plan
        self._target = target
        self._occasion = occasion
        self._job = clip(occasion.job, _NAME_BYTES)
        # All messages have the same counts if attempts are reset.
        self._is_simple = target.reset and not occasion.stamped
        # Messages that have one of these headers use the slow path.
        design = {stamp.header for stamp in (*plan.retry_stamps, *plan.park_stamps)}
        self._careful = frozenset({*OURS, *_BROKERS, *design, *_counter_names(plan)})
        self._shared: dict[tuple[str, str], SharedHeaders] = {}
        self._raw: RawRedriver | None = None
        if self._is_simple and not target.keep_deaths and plan.queue.isascii():
            self._raw = RawRedriver(plan, target, occasion.job, _counter_names(plan))

    def raw_message(self, delivery: Delivery) -> RawMessage | None:
        """Create the message from its encoded properties.

        Returns None if they are not available or need special care. Messages that were re-driven
        before also have to use the slow path, so the number of re-drives is not checked here.
        """
        return None if self._raw is None else self._raw.message(delivery)

    def message(self, delivery: Delivery) -> Message:
        """Create the message for a re-drive.

        Raises:
            UnsafeOperation: If the retry count does not fit into the headers.
        """
        properties = delivery.properties
        if self._is_simple and self._is_plain(properties):
            made = self._mark(properties, delivery.exchange, delivery.routing_key)
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

    def _mark(self, properties: Properties, exchange: str, routing_key: str) -> Properties:
        shared = self._shared.get((exchange, routing_key))
        if shared is None:
            # The headers that are added to all messages of this route.
            shared = SharedHeaders(
                {
                    QUEUE: self._plan.queue,
                    ATTEMPTS: 0,
                    REDRIVES: 1,
                    ORIGIN_ROUTING_KEY: field_text(routing_key),
                    ORIGIN_EXCHANGE: field_text(exchange),
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
    """Return the names of the counters used by the design.

    They are removed to make all attempts available again.
    """
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
    }
    stamps: dict[str, FieldValue] = {
        name: clip(text, _NAME_BYTES) for name, text in said.items() if text
    }
    if routing_key:
        stamps["x-original-routing-key"] = field_text(routing_key)
    return stamps


_JUDGED_NAMES, _KNOWN_DEATHS, _KNOWN_ORIGINS, _KNOWN_RECORDS, _SHAPES = 1024, 256, 256, 256, 64
"""Maximum sizes of caches."""
_TEXT, _ZERO = ord("S"), ord("0")
_DIGITS_AS_0 = bytes.maketrans(b"123456789", b"000000000")
_written = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_NESTED = frozenset(b"AF")
_SIZED = frozenset(b"SxAF")
"""Types with a length prefix."""
_KEEP, _DROP, _READ, _CARE = range(4)
"""What to do with a header: copy it, drop it, read and drop it, or use the slow path."""
_QUEUE, _FAILURE, _DEATHS, _X_DEATH, _ORIGIN_KEY, _ORIGIN_EXCHANGE = (
    name.encode()
    for name in (
        names.QUEUE, names.FAILURE, names.DEATHS, names.X_DEATH,
        names.ORIGIN_ROUTING_KEY, names.ORIGIN_EXCHANGE,
    )
)  # fmt: skip
_READ_NAMES = (_QUEUE, _FAILURE, _DEATHS, _X_DEATH, _ORIGIN_KEY, _ORIGIN_EXCHANGE)
_RECORDS = frozenset({_X_DEATH, _DEATHS})
"""Arrays that are cached in their encoded form."""
_LEFT_OUT = frozenset({names.ATTEMPTS, names.SNOOZES, names.COPY_ID})
"""Headers that are never copied."""
_pack_u32 = struct.Struct(">I").pack
_unpack_u32 = struct.Struct(">I").unpack_from


class RawMessage(NamedTuple):
    exchange: str
    routing_key: str
    body: bytes
    raw_properties: bytes


class _Known(NamedTuple):
    """The `hopback-deaths` header of a message, and its origin."""

    header: bytes
    entered_by: tuple[str, str] | None


class _Header(NamedTuple):
    """The position of a header, and what to do with it."""

    at: int
    value_at: int
    end: int
    name: bytes
    fate: int


class _ShapeStep(NamedTuple):
    """A part of the header table: constant bytes, followed by a value that may vary.

    `width` is the number of bytes of the value, or 0 if it has a length prefix. `kept` is the part
    of the constant bytes that is copied. `name` is set if the value is needed. `goes_on` is True if
    the value is copied.
    """

    run: bytes
    width: int
    kept: bytes
    name: bytes | None
    goes_on: bool


class _Shape:
    """The structure of a header table. It learns which values vary between messages."""

    def __init__(self) -> None:
        self._differ: set[int] = set()
        self._last: tuple[bytes, list[_Header]] = b"", []
        self._steps: list[_ShapeStep] = []
        self._tail = b""
        self._kept_tail = b""
        self._read: dict[bytes, bytes] = {}

    def learn(self, entries: bytes, headers: list[_Header]) -> None:
        """Add a message with this structure. Values that are different are treated as variable."""
        before, known = self._last
        for number, (old, new) in enumerate(zip(known, headers, strict=False)):
            if before[old.value_at : old.end] != entries[new.value_at : new.end]:
                self._differ.add(number)
        self._last = entries, headers
        self._steps, self._read, kept, begin = [], {}, b"", 0
        for number, (at, value_at, end, name, fate) in enumerate(headers):
            if number not in self._differ:
                if fate == _KEEP:
                    kept += entries[at:end]
                elif fate == _READ:
                    self._read[name] = entries[value_at:end]
                continue
            goes_on, behind = fate == _KEEP, value_at + 1
            width = 0 if entries[value_at] in _SIZED else end - behind
            if goes_on:
                kept += entries[at:behind]
            of = name if fate == _READ else None
            self._steps.append(_ShapeStep(entries[begin:behind], width, kept, of, goes_on))
            kept, begin = b"", end
        self._tail, self._kept_tail = entries[begin:], kept

    def take(self, entries: bytes) -> tuple[bytes, dict[bytes, bytes]] | None:
        """Return the copied headers and the values to read. Returns None if the message has a
        different structure.
        """
        at, read = 0, self._read.copy()
        pieces: list[bytes] = []
        for run, width, kept, name, goes_on in self._steps:
            if not entries.startswith(run, at):
                return None
            at += len(run)
            end = at + (width or 4 + _unpack_u32(entries, at)[0])
            if goes_on:
                pieces += (kept, entries[at:end])
            elif name is not None:
                read[name] = entries[at - 1 : end]  # includes the byte of the type
                pieces.append(kept)
            else:
                pieces.append(kept)
            at = end
        if at + len(self._tail) != len(entries) or not entries.endswith(self._tail):
            return None
        pieces.append(self._kept_tail)
        return b"".join(pieces), read


class RawRedriver:
    """Creates messages from encoded properties. Attempts are reset, and deaths are not kept."""

    def __init__(self, plan: Plan, target: Redrive, job: str, without: frozenset[str]) -> None:
        self._plan = plan
        self._target = target
        self._queue = _text(plan.queue)
        self._counts = b"".join(
            (
                _header(names.QUEUE, self._queue),
                _header(names.ATTEMPTS, _number(0)),
                _header(names.REDRIVES, _number(1)),
            )
        )
        self._job = _header(names.REDRIVE_JOB, _text(clip(job, _NAME_BYTES)))
        self._without = without | _LEFT_OUT
        self._judged = dict.fromkeys(_READ_NAMES, _READ)
        self._shapes: dict[tuple[tuple[bytes, int], ...], _Shape] = {}
        self._shape = _Shape()
        self._known: dict[tuple[bytes | None, bytes | None], _Known] = {}
        self._records: dict[bytes, int] = {}
        self._origins: dict[tuple[bytes | str, bytes | str], bytes] = {}
        stamps = (*plan.retry_stamps, *plan.park_stamps)
        self._design_tells = any(stamp.fact is Fact.ORIGIN_ROUTING_KEY for stamp in stamps)

    def message(self, delivery: Delivery) -> RawMessage | None:
        """Create the message. Returns None if the slow path is needed."""
        raw: bytes | None = getattr(delivery, "raw_properties", None)
        if raw is None or len(raw) > _SMALL_BYTES:
            return None
        cut = cut_properties(raw)
        if cut is None or cut.has_user:
            return None
        try:
            taken = self._shape.take(cut.entries) or self._walk(cut.entries)
        except (IndexError, struct.error):
            return None
        if taken is None:
            return None
        kept, read = taken
        known = self._known.get((read.get(_X_DEATH), read.get(_DEATHS)))
        if known is None:
            known = self._deaths(read, delivery)
        origin = None if known is None else self._origin(read, known, delivery)
        failure = None if origin is None else self._failure(read)
        if known is None or origin is None or failure is None:
            return None
        entries = b"".join((kept, self._counts, origin, self._job, known.header, failure))
        target = self._target
        return RawMessage(target.exchange, target.routing_key, delivery.body, cut.join(entries))

    def _walk(self, entries: bytes) -> tuple[bytes, dict[bytes, bytes]] | None:
        """Parse headers with a new structure. Returns None if the slow path is needed."""
        headers: list[_Header] = []
        seen: set[bytes] = set()
        judged, at, size = self._judged, 0, len(entries)
        while at < size:
            value_at = at + 1 + entries[at]
            name = entries[at + 1 : value_at]
            kind = entries[value_at]
            if kind == _TEXT:  # inlined, because a function call would take twice as long
                end = value_at + 5 + _unpack_u32(entries, value_at + 1)[0]
            else:
                found = value_end(entries, value_at, size)
                # Malformed nested values can only be found by decoding them.
                if found is None or (kind in _NESTED and name not in _RECORDS):
                    return None
                end = found
            fate = judged.get(name)
            if fate is None:
                fate = self._judge(name)
            if fate == _CARE or name in seen:
                return None
            seen.add(name)
            headers.append(_Header(at, value_at, end, name, fate))
            at = end
        if at != size:
            return None
        key = tuple([(header.name, entries[header.value_at]) for header in headers])
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= _SHAPES:
                self._shapes.clear()
            shape = self._shapes[key] = _Shape()
        taken = shape.take(entries)
        if taken is None:
            shape.learn(entries, headers)
            taken = shape.take(entries)
        self._shape = shape
        return taken

    def _judge(self, name: bytes) -> int:
        """Return what to do with a header. The result is cached by name."""
        try:
            text = name.decode()
        except UnicodeDecodeError:
            return _CARE
        fate = _KEEP
        if text in self._without or is_harmful(text):
            fate = _DROP
        elif text in names.OURS:
            fate = _CARE  # already re-driven, or some headers could not be decoded
        if len(self._judged) < _JUDGED_NAMES:
            self._judged[name] = fate
        return fate

    def _deaths(self, read: dict[bytes, bytes], delivery: Delivery) -> _Known | None:
        """Return the deaths of a message. Cached, because many messages have the same encoded
        headers.
        """
        properties = delivery.properties
        if properties.further_headers or properties.opaque_headers:
            return None
        history = History(properties.headers, self._plan.queue)
        pieces = deaths_json(history.deaths, DEATHS_BYTES)
        header = b"" if pieces is None else _header(names.DEATHS, _texts(pieces))
        known = _Known(header, history.entry_route)
        if len(self._known) >= _KNOWN_DEATHS:
            self._known.clear()
        self._known[read.get(_X_DEATH), read.get(_DEATHS)] = known
        return known

    def _origin(self, read: dict[bytes, bytes], known: _Known, delivery: Delivery) -> bytes | None:
        """Return the headers for the origin. Returns None if the slow path is needed."""
        key = read.get(_ORIGIN_KEY)
        said: tuple[bytes | str, bytes | str]
        if key is not None:
            said = read.get(_ORIGIN_EXCHANGE, _EMPTY), key
        elif self._design_tells:
            return None
        else:
            said = known.entered_by or (delivery.exchange, delivery.routing_key)
        made = self._origins.get(said)
        if made is None:
            if not all(value.isascii() for value in said):
                return None
            values = [_text(value) if isinstance(value, str) else value for value in said]
            if not all(map(_is_name, values)):
                return None
            exchange, key = values
            made = b"".join((_ORIGIN_KEY_HEADER, key, _ORIGIN_EXCHANGE_HEADER, exchange))
            if len(self._origins) >= _KNOWN_ORIGINS:
                self._origins.clear()
            self._origins[said] = made
        return made

    def _failure(self, read: dict[bytes, bytes]) -> bytes | None:
        """Return the failure record if it is from this queue. Returns None if it is malformed."""
        value = read.get(_FAILURE)
        if value is None or read.get(_QUEUE) != self._queue:
            return b""
        # Often records only differ in their times, so the digits are ignored.
        form = value.translate(_DIGITS_AS_0)
        digits = self._records.get(form)
        # JSON does not allow leading zeros.
        if digits is None or (digits > 1 and value[-1 - digits] == _ZERO):
            try:
                text = value[5:].decode() if value[0] == _TEXT else ""
            except UnicodeDecodeError:
                return None
            if failure_text_in(text) is None:
                return None
            digits = _last_digits(text)
            if digits and len(self._records) < _KNOWN_RECORDS:
                self._records[form] = digits
        return _FAILURE_HEADER + value


def _last_digits(text: str) -> int:
    """Return the number of digits in the last value if it is the only number, and 0 otherwise.

    This means that other digits can be used and the record remains valid, unless the first one is
    0.
    """
    found = json_in(text)
    if (
        not isinstance(found, dict) or _written(found) != text
    ):  # there is unusual whitespace or a duplicate name
        return 0
    *others, last = found.values()
    is_number = isinstance(last, int) and not isinstance(last, bool) and last >= 0
    return len(str(last)) if is_number and all(isinstance(one, str) for one in others) else 0


def _is_name(value: bytes) -> bool:
    """Return True if the value is an ASCII string with less than 256 bytes."""
    return value[0] == _TEXT and len(value) <= 5 + _NAME_BYTES and value[5:].isascii()


def _header(name: str, value: bytes) -> bytes:
    raw = name.encode()
    return bytes((len(raw),)) + raw + value


def _text(text: str) -> bytes:
    raw = text.encode()
    return b"S" + _pack_u32(len(raw)) + raw


def _texts(texts: list[str]) -> bytes:
    raw = b"".join(map(_text, texts))
    return b"A" + _pack_u32(len(raw)) + raw


def _number(number: int) -> bytes:
    return b"l" + number.to_bytes(8, "big")


_EMPTY = _text("")
_ORIGIN_KEY_HEADER = _header(names.ORIGIN_ROUTING_KEY, b"")
_ORIGIN_EXCHANGE_HEADER = _header(names.ORIGIN_EXCHANGE, b"")
_FAILURE_HEADER = _header(names.FAILURE, b"")
