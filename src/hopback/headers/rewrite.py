"""Create the properties of messages that are retried, dead-lettered or re-driven.

Headers of the producer are kept, except for headers that would cause problems. Hopback's headers
are added at the end. If there is not enough room in the frame, the failure record is shortened
first, followed by the deaths, the headers of the design, the origin and the undecoded headers. The
retry count is required. If it does not fit, no properties are created.

Headers that could not be decoded (`opaque_headers`) may contain anything, such as `CC`. They are
never published as headers, but as the value of a Hopback header.
"""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from hopback.fields import (
    FieldValue,
    FurtherHeaders,
    Headers,
    LayeredHeaders,
    SharedHeaders,
    field_text,
    further_size,
    table_size,
    text_bytes,
)
from hopback.headers import names
from hopback.headers.failure import FAILURE_BYTES, Failure, failure_json
from hopback.headers.history import (
    Death,
    History,
    deaths_json,
    read_deaths,
    well_formed_deaths,
)
from hopback.message import NO_HEADERS, Properties
from hopback.text import clip, count_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet


FRAME_BYTES = 131_072
"""Maximum size of a header frame with the default frame_max. RabbitMQ does not count the 8 bytes of
the envelope. It closes the connection if a frame is larger.
"""

ADDED_BYTES = 32 * 1024 - 1
"""Maximum size of the headers added by Hopback, in bytes."""

# Reserved for the death that is added when the message leaves the retry queue.
_ROOM_FOR_A_DEATH = 2048
DEATHS_BYTES = 12 * 1024
"""Maximum size of `hopback-deaths`, in bytes."""
_NAME_BYTES = 255
_PERSISTENT = 2
_FRAME_OVERHEAD = 14
_EMPTY: Headers = MappingProxyType({})
_TABLE_OVERHEAD = table_size(_EMPTY)
_MOST_WITHOUT_HEADERS = 14 + 10 * 256 + 10
"""Maximum size of all properties except the headers."""
_SHORT_DESIGN_BYTES = 4096
"""Maximum size of the headers of a design. With the deaths, the failure record and the other
headers, the total is below `ADDED_BYTES`.
"""
_ROOMY = FRAME_BYTES - ADDED_BYTES - _ROOM_FOR_A_DEATH - _MOST_WITHOUT_HEADERS
"""If the header table is not larger than this, all added headers fit, and their sizes don't have to be
calculated.
"""


class Mark(NamedTuple):
    """The headers that Hopback adds to a message. None means that the current value is kept.

    Attributes:
        counters: Counters of the design. They are required like Hopback's.
        design: Other headers of the design. They are omitted if there is not enough room.
        without: Headers of the design to remove.
        copy_id: Only written for retries. A message that was moved out of a dead-letter queue must
            not be mistaken for a duplicate.
    """

    queue: str
    attempts: int
    snoozes: int = 0
    origin_exchange: str | None = None
    origin_routing_key: str | None = None
    failure: Failure | None = None
    redrives: int | None = None
    redrive_job: str | None = None
    copy_id: str | None = None
    counters: Headers = _EMPTY
    design: Headers = _EMPTY
    without: frozenset[str] = frozenset()


class _Kept(NamedTuple):
    """Headers that are published unchanged."""

    headers: dict[str, FieldValue]
    further: FurtherHeaders


def retry_properties(
    properties: Properties, mark: Mark, history: History | None = None
) -> Properties | None:
    """Return the properties of a retry, with the entries of `x-death` moved to `hopback-deaths`.

    Returns None if there is no room for the retry count. `history` contains the parsed headers, if
    available.
    """
    history = history or History(properties.headers, mark.queue)
    kept = _kept(properties, mark, is_harmful)
    return _mark(properties, kept, mark, history, history.deaths)


def park_properties(
    properties: Properties, mark: Mark, history: History | None = None
) -> Properties:
    """Return the properties of a dead letter. `x-death` is kept.

    If there is no room for the retry count, Hopback's headers are omitted. If that is not enough,
    `x-death` and then the largest headers are removed.
    """
    history = history or History(properties.headers, mark.queue)
    kept, own = _kept(properties, mark, _is_stale), _kept(properties, mark, is_harmful)
    return (
        _mark(properties, kept, mark, history, read_deaths(properties.headers))
        or _fit(properties, kept)
        or _fit(properties, own)
        or _shorten(properties, own, mark, history)
    )


def bare_properties(properties: Properties) -> Properties:
    """Return the properties of a message that cannot be rewritten.

    The message becomes persistent, and headers that the broker would interpret are removed. Only
    the names of headers are inspected, so this cannot fail because of a value.
    """
    headers: dict[str, FieldValue] = {
        name: value for name, value in properties.headers.items() if not _is_stale(name)
    }
    if properties.opaque_headers:
        headers[names.UNREAD] = properties.opaque_headers
    return _plain(properties, _Kept(headers, _further(properties, frozenset())))


def can_retry(properties: Properties, mark: Mark, history: History | None = None) -> bool:
    """Return True if there is room for the retry count."""
    roomy = _is_roomy(properties, properties.headers, properties.further_headers)
    if roomy and _is_short(mark, properties):
        return True
    history = history or History(properties.headers, mark.queue)
    needed = _indispensable(_shared(properties, history, mark), mark)
    if roomy:
        return table_size(needed) - _TABLE_OVERHEAD <= ADDED_BYTES
    return _Budget(properties, _kept(properties, mark, is_harmful)).take(needed)


def can_park(properties: Properties, mark: Mark) -> bool:
    """Return True if all headers of the producer can be kept when the message is dead-lettered."""
    if _is_roomy(properties, properties.headers, properties.further_headers):
        return True
    return _plain_size(properties, _kept(properties, mark, is_harmful)) <= FRAME_BYTES


def redrive_properties(
    properties: Properties,
    mark: Mark,
    history: History | None = None,
    *,
    keep_deaths: bool = False,
) -> Properties | None:
    """Return the properties of a re-driven message.

    `x-death` is only kept if the design requires it and if it is well-formed. Returns None if there
    is no room for the retry count.
    """
    history = history or History(properties.headers, mark.queue)
    keep = keep_deaths and well_formed_deaths(properties.headers)
    kept = _kept(properties, mark, _is_stale if keep else is_harmful)
    known = read_deaths(properties.headers) if keep else history.deaths
    return _mark(properties, kept, mark, history, known)


def properties_for_move(properties: Properties) -> Properties:
    """Return the properties of a message that is moved to another queue.

    `expiration`, `user_id`, `CC`, `BCC` and delivery counts are removed, because they could cause
    the message to be lost, rejected or copied. The copy id is also removed, because a message that is
    imported twice must be handled twice.
    """
    held = {
        name: value
        for name, value in properties.headers.items()
        if not _is_stale(name) and name != names.COPY_ID
    }
    budget = _Budget(properties, _Kept(held, _further(properties, frozenset())))
    budget.keep_unread(properties)
    return _plain(properties, budget.kept)


def without_unread(properties: Properties) -> Properties:
    """Return the properties for publishing. Headers that could not be decoded are kept as bytes."""
    if not properties.opaque_headers:
        return properties
    budget = _Budget(properties, _Kept(dict(properties.headers), properties.further_headers))
    budget.keep_unread(properties)
    headers = MappingProxyType(budget.kept.headers)
    return properties.with_changes(headers=headers, opaque_headers=b"")


def unread_headers(properties: Properties) -> bytes:
    """Return the headers that could not be decoded."""
    kept = properties.headers.get(names.UNREAD)
    return properties.opaque_headers or (kept if type(kept) is bytes else b"")


def frame_size(properties: Properties) -> int:
    """Return the size of the header frame."""
    size = _size_without_headers(properties)
    if properties.has_headers:
        size += table_size(properties.headers) + further_size(properties.further_headers)
    return size


def _size_without_headers(properties: Properties) -> int:
    texts = (
        properties.content_type,
        properties.content_encoding,
        properties.correlation_id,
        properties.reply_to,
        properties.expiration,
        properties.message_id,
        properties.type,
        properties.user_id,
        properties.app_id,
        properties.cluster_id,
    )
    numbers = ((properties.delivery_mode, 1), (properties.priority, 1), (properties.timestamp, 8))
    return (
        _FRAME_OVERHEAD
        + sum(1 + text_bytes(text) for text in texts if text is not None)
        + sum(size for number, size in numbers if number is not None)
    )


# The result is cached, because messages of a queue have the same header names.
@lru_cache(maxsize=1024)
def _is_stale(name: str) -> bool:
    """Return True if the header must be removed before publishing."""
    return names.is_broker_count(name) or names.is_routing(name)


@lru_cache(maxsize=1024)
def is_harmful(name: str) -> bool:
    """Return True if the header must be removed before publishing a message that returns to its
    queue.
    """
    return _is_stale(name) or names.is_death(name)


def _kept(properties: Properties, mark: Mark, drop: Callable[[str], bool]) -> _Kept:
    """Return the headers to keep, without those that are going to be rewritten."""
    rewritten: AbstractSet[str] = names.OURS
    if mark.counters or mark.design or mark.without:
        rewritten = names.OURS | mark.counters.keys() | mark.design.keys() | mark.without
    return _Kept(
        {
            name: value
            for name, value in properties.headers.items()
            if name not in rewritten and not drop(name)
        },
        _further(properties, rewritten),
    )


def _further(properties: Properties, rewritten: AbstractSet[str]) -> FurtherHeaders:
    if not properties.further_headers:
        return ()
    gone = {name.encode() for name in rewritten}
    return tuple(
        (name, value)
        for name, value in properties.further_headers
        if name not in gone and names.may_repeat(name)
    )


def _plain(properties: Properties, kept: _Kept) -> Properties:
    """Return persistent properties with the given headers, without expiration and user id."""
    headers: Headers = kept.headers
    if type(headers) is not LayeredHeaders:
        has_headers = properties.has_headers or headers
        headers = MappingProxyType(kept.headers) if has_headers else NO_HEADERS
    return properties.with_changes(
        headers=headers,
        further_headers=kept.further,
        opaque_headers=b"",
        delivery_mode=_PERSISTENT,
        expiration=None,
        user_id=None,
    )


def _is_roomy(properties: Properties, headers: Headers, further: FurtherHeaders) -> bool:
    """Return True if there is enough room for all headers that may be added."""
    if properties.opaque_headers or names.UNREAD in properties.headers:
        return False
    return table_size(headers) + (further_size(further) if further else 0) <= _ROOMY


def _plain_size(properties: Properties, kept: _Kept) -> int:
    """Return the frame size of the properties created by `_plain`."""
    unsent = (properties.expiration, properties.user_id)
    dropped = sum(1 + text_bytes(text) for text in unsent if text is not None)
    mode = 1 if properties.delivery_mode is None else 0
    table = table_size(kept.headers) + further_size(kept.further)
    return _size_without_headers(properties) - dropped + mode + table


def _fit(properties: Properties, kept: _Kept) -> Properties | None:
    """Return the properties with undecoded headers, or None if they do not fit."""
    budget = _Budget(properties, kept)
    budget.keep_unread(properties)
    return _plain(properties, budget.kept) if budget.fits else None


def _shorten(properties: Properties, kept: _Kept, mark: Mark, history: History) -> Properties:
    """Remove the largest headers until the rest fits. Their size is stored in `UNREAD_BYTES`."""
    headers, left_out = dict(kept.headers), further_size(kept.further)
    sizes = {name: table_size({name: value}) - _TABLE_OVERHEAD for name, value in headers.items()}
    excess = _plain_size(properties, _Kept(headers, ())) - (FRAME_BYTES - _ROOM_FOR_A_DEATH)
    for name in sorted(sizes, key=lambda name: sizes[name], reverse=True):
        if excess <= 0:
            break
        excess -= sizes[name]
        left_out += sizes[name]
        del headers[name]
    headers[names.UNREAD_BYTES] = left_out
    read = properties.with_changes(headers=headers, further_headers=(), opaque_headers=b"")
    short = _Kept(headers, ())
    return _mark(read, short, mark, history, ()) or _plain(read, short)


def _mark(
    properties: Properties, kept: _Kept, mark: Mark, history: History, known: tuple[Death, ...]
) -> Properties | None:
    """Add as many of the headers as fit. Returns None if there is no room for the retry count."""
    if _is_short(mark, properties) and _is_roomy(properties, kept.headers, kept.further):
        return _mark_in_full(properties, kept, mark, history, known)
    budget, shared = _Budget(properties, kept), _shared(properties, history, mark)
    if not budget.take(_indispensable(shared, mark)):
        return None
    budget.keep_unread(properties)
    desirable = _desirable(shared, mark)
    if not budget.offer(desirable):
        for name, value in desirable.items():
            budget.offer({name: value})
    budget.offer_text(names.DEATHS, DEATHS_BYTES, lambda room: deaths_json(known, room))
    known_text = history.failure_text() if mark.failure is None else None
    if known_text is not None and budget.offer({names.FAILURE: known_text}):
        return _plain(properties, budget.kept)  # no new headers
    failure = mark.failure or history.failure
    if failure is not None:
        budget.offer_text(names.FAILURE, FAILURE_BYTES, lambda room: failure_json(failure, room))
    return _plain(properties, budget.kept)


def _is_short(mark: Mark, properties: Properties) -> bool:
    """Return True if the headers are certain to fit into `ADDED_BYTES`."""
    for text in (
        mark.queue, mark.origin_exchange, mark.origin_routing_key, mark.copy_id, properties.user_id,
    ):  # fmt: skip
        if text is not None and not (len(text) <= _NAME_BYTES and text.isascii()):
            return False
    if not (mark.counters or mark.design):
        return True
    return table_size(mark.counters) + table_size(mark.design) <= _SHORT_DESIGN_BYTES


def _mark_in_full(
    properties: Properties, kept: _Kept, mark: Mark, history: History, known: tuple[Death, ...]
) -> Properties:
    """Add all headers without checking their size."""
    own = kept.headers
    if mark.counters or mark.design:
        own.update(mark.counters)
        own.update(_permitted(mark.design))
    if mark.copy_id is not None:
        own[names.COPY_ID] = field_text(mark.copy_id)
    deaths = deaths_json(known, DEATHS_BYTES)
    if deaths is not None:
        own[names.DEATHS] = deaths
    text = history.failure_text() if mark.failure is None else None
    if text is None:
        failure = mark.failure or history.failure
        text = None if failure is None else failure_json(failure)
    if text is not None:
        own[names.FAILURE] = text
    headers = LayeredHeaders(own, _shared(properties, history, mark))
    return _plain(properties, _Kept(headers, kept.further))


def _shared(properties: Properties, known: History, mark: Mark) -> SharedHeaders:
    """Return the counts and the origin. Many messages of a queue share them."""
    return _shared_headers(
        mark.queue,
        mark.attempts,
        mark.snoozes,
        known.redrives if mark.redrives is None else mark.redrives,
        mark.origin_routing_key,
        mark.origin_exchange,
        known.redrive_job if mark.redrive_job is None else clip(mark.redrive_job, _NAME_BYTES),
        known.origin_user or properties.user_id,
    )


@lru_cache(maxsize=256)
def _shared_headers(
    queue: str, attempts: int, snoozes: int, redrives: int, *origin: str | None
) -> SharedHeaders:
    routing_key, exchange, job, user = origin
    found: dict[str, FieldValue] = {names.QUEUE: queue, names.ATTEMPTS: attempts}
    if snoozes:
        found[names.SNOOZES] = snoozes
    if redrives:
        found[names.REDRIVES] = redrives
    texts = (
        (names.ORIGIN_ROUTING_KEY, routing_key),
        (names.ORIGIN_EXCHANGE, exchange),
        (names.REDRIVE_JOB, job),
        (names.ORIGIN_USER, user),
    )
    found.update((name, field_text(value)) for name, value in texts if value is not None)
    return SharedHeaders(found)


_COUNTS = (names.QUEUE, names.ATTEMPTS, names.SNOOZES, names.REDRIVES)
_ORIGINS = (
    names.ORIGIN_ROUTING_KEY,
    names.ORIGIN_EXCHANGE,
    names.COPY_ID,
    names.REDRIVE_JOB,
    names.ORIGIN_USER,
)
"""Optional headers, the most important first."""


def _indispensable(shared: SharedHeaders, mark: Mark) -> dict[str, FieldValue]:
    """Return the headers that are required to limit retries and re-drives."""
    return {**{name: shared[name] for name in _COUNTS if name in shared}, **mark.counters}


def _desirable(shared: SharedHeaders, mark: Mark) -> dict[str, FieldValue]:
    """Return the optional headers, most important first."""
    known: dict[str, FieldValue] = dict(shared)
    if mark.copy_id is not None:
        known[names.COPY_ID] = field_text(mark.copy_id)
    return {name: known[name] for name in _ORIGINS if name in known} | _permitted(mark.design)


def _permitted(design: Headers) -> dict[str, FieldValue]:
    return {name: value for name, value in design.items() if not names.is_protected(name)}


class _Budget:
    """Adds headers while checking the size of the frame and of the added headers."""

    def __init__(self, properties: Properties, kept: _Kept) -> None:
        self.kept = _Kept(dict(kept.headers), kept.further)
        self._ours = ADDED_BYTES
        self._frame = ADDED_BYTES + _ROOM_FOR_A_DEATH
        if not _is_roomy(properties, kept.headers, kept.further):
            self._frame = FRAME_BYTES - _plain_size(properties, kept)

    @property
    def fits(self) -> bool:
        """True if the headers fit into the frame."""
        return self._frame >= 0

    def take(self, entries: dict[str, FieldValue]) -> bool:
        """Add required headers. Returns False if they do not fit."""
        return self._take(entries, table_size(entries) - _TABLE_OVERHEAD)

    def _take(self, entries: dict[str, FieldValue], size: int) -> bool:
        if size > self._frame or size > self._ours:
            return False
        self._frame -= size
        self._ours -= size
        self.kept.headers.update(entries)
        return True

    def keep_unread(self, properties: Properties) -> None:
        """Keep undecoded headers as bytes. If they are truncated, the original size is also stored.

        They do not count as added, because the original frame already contained them.
        """
        unread = unread_headers(properties)
        if not unread:
            return
        cut_before = count_in(properties.headers.get(names.UNREAD_BYTES))
        length = len(unread) if properties.opaque_headers else max(len(unread), cut_before)
        entries: dict[str, FieldValue] = {names.UNREAD: b""}
        if length > self._frame - (table_size(entries) - _TABLE_OVERHEAD) or length > len(unread):
            entries[names.UNREAD_BYTES] = length
        self._frame -= table_size(entries) - _TABLE_OVERHEAD
        if self._frame < 0:
            return
        entries[names.UNREAD] = unread[: self._frame]
        self._frame -= len(unread[: self._frame])
        self.kept.headers.update(entries)

    def offer(self, entries: dict[str, FieldValue]) -> bool:
        """Add optional headers if they fit, leaving room for headers added by the broker."""
        size = table_size(entries) - _TABLE_OVERHEAD
        return size <= self._frame - _ROOM_FOR_A_DEATH and self._take(entries, size)

    def offer_text(
        self, name: str, limit: int, written: Callable[[int], str | list[str] | None]
    ) -> None:
        """Add a value that can be shortened. `written` is called with the available size."""
        empty = 6 + len(name)
        room = min(self._frame - _ROOM_FOR_A_DEATH, self._ours) - empty
        text = written(min(room, limit))
        if text is not None:
            self.take({name: text})
