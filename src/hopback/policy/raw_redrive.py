"""A re-driven message made from the bytes it came as: what nobody changes is copied, not read.

A real dead letter has twenty headers, of which a re-drive reads six and writes eight. Reading all of them
into values and writing them again costs several times as much as cutting the table where it changes. What
comes out says the same as the message of `hopback.policy.redrive.redrive_message`; where that is not certain,
nothing comes out, and that way is to be taken.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from hopback.fields import value_end
from hopback.headers import clipped, names
from hopback.headers.failure import failure_text_in
from hopback.headers.history import History, deaths_json
from hopback.headers.raw import cut_properties
from hopback.headers.rewrite import DEATHS_BYTES, is_harmful
from hopback.topology.plan import Fact

if TYPE_CHECKING:
    from hopback.message import Delivery
    from hopback.topology.plan import Plan, Redrive

__all__ = ["RawMessage", "RawRedriver"]

_NAME_BYTES = 255  # what every name in AMQP 0-9-1 is held to
_SMALL_BYTES = 64 * 1024
"""With so little in its header frame a message has room for everything that is added."""
_JUDGED_NAMES, _KNOWN_DEATHS = 1024, 256
"""What strangers write must not fill the memory: beyond that it is judged anew for each message."""
_TEXT = ord("S")
_NESTED = frozenset(b"AF")
_KEEP, _DROP, _READ, _CARE = range(4)
"""What becomes of a header: it is copied, left out, read and left out, or the careful way is taken."""
_QUEUE, _FAILURE, _DEATHS, _X_DEATH, _ORIGIN_KEY, _ORIGIN_EXCHANGE = (
    name.encode()
    for name in (
        names.QUEUE, names.FAILURE, names.DEATHS, names.X_DEATH,
        names.ORIGIN_ROUTING_KEY, names.ORIGIN_EXCHANGE,
    )
)  # fmt: skip
_READ_NAMES = (_QUEUE, _FAILURE, _DEATHS, _X_DEATH, _ORIGIN_KEY, _ORIGIN_EXCHANGE)
_LEFT_OUT = frozenset({names.ATTEMPTS, names.SNOOZES, names.LINEAGE})
"""Ours that a re-drive writes anew or not at all, whatever they say."""
_pack_u32 = struct.Struct(">I").pack
_unpack_u32 = struct.Struct(">I").unpack_from


class RawMessage(NamedTuple):
    """A message on its way to an exchange, its properties as they stand on the wire."""

    exchange: str
    routing_key: str
    body: bytes
    raw_properties: bytes


class _Known(NamedTuple):
    """What the records of deaths of a message come to: the header that remembers them, and its way in."""

    header: bytes
    entered_by: tuple[str, str] | None


class RawRedriver:
    """Makes the messages of one way back whose attempts begin anew and whose deaths are not kept."""

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
        self._job = _header(names.REDRIVE_JOB, _text(clipped(job, _NAME_BYTES)))
        self._without = without | _LEFT_OUT
        self._judged = dict.fromkeys(_READ_NAMES, _READ)
        self._known: dict[tuple[bytes | None, bytes | None], _Known] = {}
        stamps = (*plan.retry_stamps, *plan.park_stamps)
        self._design_tells = any(stamp.fact is Fact.ORIGIN_ROUTING_KEY for stamp in stamps)

    def message(self, delivery: Delivery) -> RawMessage | None:
        """The message that goes back; None if only the careful way can tell what it is."""
        raw: bytes | None = getattr(delivery, "raw_properties", None)
        if raw is None or len(raw) > _SMALL_BYTES:
            return None
        cut = cut_properties(raw)
        if cut is None or cut.has_user:
            return None
        read: dict[bytes, bytes] = {}
        try:
            kept = self._kept(cut.entries, read)
        except (IndexError, struct.error):
            return None
        known = None if kept is None else self._deaths(read, delivery)
        origin = None if known is None else self._origin(read, known, delivery)
        failure = None if origin is None else self._failure(read)
        if kept is None or known is None or origin is None or failure is None:
            return None
        entries = b"".join((kept, self._counts, origin, self._job, known.header, failure))
        target = self._target
        return RawMessage(target.exchange, target.routing_key, delivery.body, cut.joined(entries))

    def _kept(self, entries: bytes, read: dict[bytes, bytes]) -> bytes | None:
        """The headers that go on as they are; `read` gets the values of those that mean something."""
        kept: list[bytes] = []
        seen: set[bytes] = set()
        judged, at, begin, size = self._judged, 0, 0, len(entries)
        while at < size:
            value_at = at + 1 + entries[at]
            name = entries[at + 1 : value_at]
            kind = entries[value_at]
            if kind == _TEXT:  # as most are: read right here, a function costs as much again
                end = value_at + 5 + _unpack_u32(entries, value_at + 1)[0]
            else:
                found = value_end(entries, value_at, size)
                # What is nested may be broken inside, and only reading it tells.
                if found is None or (kind in _NESTED and name != _X_DEATH):
                    return None
                end = found
            fate = judged.get(name)
            if fate is None:
                fate = self._judge(name)
            if fate == _CARE or name in seen:
                return None
            seen.add(name)
            if fate != _KEEP:
                kept.append(entries[begin:at])
                begin = end
                if fate == _READ:
                    read[name] = entries[value_at:end]
            at = end
        if at != size:
            return None
        kept.append(entries[begin:])
        return b"".join(kept)

    def _judge(self, name: bytes) -> int:
        """What becomes of a header of this name; asked once for each."""
        try:
            text = name.decode()
        except UnicodeDecodeError:
            return _CARE
        fate = _KEEP
        if text in self._without or is_harmful(text):
            fate = _DROP
        elif text in names.OURS:
            fate = _CARE  # it was re-driven before, or something of it could not be read
        if len(self._judged) < _JUDGED_NAMES:
            self._judged[name] = fate
        return fate

    def _deaths(self, read: dict[bytes, bytes], delivery: Delivery) -> _Known | None:
        """The same for all that died in the same second and for the same reason: read once."""
        key = (read.get(_X_DEATH), read.get(_DEATHS))
        known = self._known.get(key)
        if known is None:
            properties = delivery.properties
            if properties.further_headers or properties.opaque_headers:
                return None
            history = History(properties.headers, self._plan.queue)
            text = deaths_json(history.deaths, DEATHS_BYTES)
            header = b"" if text is None else _header(names.DEATHS, _text(text))
            known = _Known(header, history.entered_by)
            if len(self._known) >= _KNOWN_DEATHS:
                self._known.clear()
            self._known[key] = known
        return known

    def _origin(self, read: dict[bytes, bytes], known: _Known, delivery: Delivery) -> bytes | None:
        """The headers that say where it first came from; None if that needs care."""
        key, exchange = read.get(_ORIGIN_KEY), read.get(_ORIGIN_EXCHANGE, _EMPTY)
        if key is None:
            if self._design_tells:
                return None
            entered = known.entered_by or (delivery.exchange, delivery.routing_key)
            if not all(map(str.isascii, entered)):
                return None
            exchange, key = map(_text, entered)
        if not (_is_name(key) and _is_name(exchange)):
            return None
        return b"".join((_ORIGIN_KEY_HEADER, key, _ORIGIN_EXCHANGE_HEADER, exchange))

    def _failure(self, read: dict[bytes, bytes]) -> bytes | None:
        """The record of the failure as it stands, if it was written for this queue; None if it is odd."""
        value = read.get(_FAILURE)
        if value is None or read.get(_QUEUE) != self._queue:
            return b""
        try:
            text = value[5:].decode() if value[0] == _TEXT else ""
        except UnicodeDecodeError:
            return None
        return None if failure_text_in(text) is None else _FAILURE_HEADER + value


def _is_name(value: bytes) -> bool:
    """Whether the value is a text as names are: short, and without anything that needs care."""
    return value[0] == _TEXT and len(value) <= 5 + _NAME_BYTES and value[5:].isascii()


def _header(name: str, value: bytes) -> bytes:
    raw = name.encode()
    return bytes((len(raw),)) + raw + value


def _text(text: str) -> bytes:
    raw = text.encode()
    return b"S" + _pack_u32(len(raw)) + raw


def _number(number: int) -> bytes:
    return b"l" + number.to_bytes(8, "big")


_EMPTY = _text("")
_ORIGIN_KEY_HEADER = _header(names.ORIGIN_ROUTING_KEY, b"")
_ORIGIN_EXCHANGE_HEADER = _header(names.ORIGIN_EXCHANGE, b"")
_FAILURE_HEADER = _header(names.FAILURE, b"")
