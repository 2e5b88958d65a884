"""Encode and decode message properties."""

from __future__ import annotations

import struct
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from hopback.errors import ProtocolError
from hopback.message import Properties
from hopback.wire.tables import decode_entries, encode_entries, encode_further

if TYPE_CHECKING:
    from collections.abc import Callable

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_TEXTS = (
    (15, "content_type"),
    (14, "content_encoding"),
    (10, "correlation_id"),
    (9, "reply_to"),
    (8, "expiration"),
    (7, "message_id"),
    (5, "type"),
    (4, "user_id"),
    (3, "app_id"),
    (2, "cluster_id"),
)
_HEADERS, _MODE, _PRIORITY, _TIMESTAMP = 1 << 13, 1 << 12, 1 << 11, 1 << 6
_EARLY = tuple((1 << bit, name) for bit, name in _TEXTS[:2])
_MIDDLE = tuple((1 << bit, name) for bit, name in _TEXTS[2:6])
_LATE = tuple((1 << bit, name) for bit, name in _TEXTS[6:])
_FLAGS = (
    *_EARLY,
    (_HEADERS, "headers"),
    (_MODE, "delivery_mode"),
    (_PRIORITY, "priority"),
    *_MIDDLE,
    (_TIMESTAMP, "timestamp"),
    *_LATE,
)
"""All properties in the order of AMQP."""
_NAMES = tuple(field.name for field in fields(Properties))


def encode_properties(properties: Properties, *, default_mode: int | None = None) -> bytes:
    """Encode properties. `default_mode` is used if there is no delivery mode."""
    parts: list[bytes] = [b""]
    present, flags = vars(properties), 0
    for flag, name, encode in _encoders(tuple(present)):
        value: Any = present.get(name)
        if flag == _HEADERS:
            if not properties.has_headers:
                continue
            # `opaque_headers` is omitted, because a broker may interpret it differently.
            entries = encode_entries(value)
            if properties.further_headers:
                entries += encode_further(properties.further_headers)
            parts += (_U32.pack(len(entries)), entries)
        elif (
            encode is None
        ):  # a short string, inlined because a function call would take twice as long
            if value is None:
                continue
            try:
                # Bytes that were not valid UTF-8 are sent unchanged.
                raw = value.encode("utf-8", "surrogateescape")
                parts += (_OCTETS[len(raw)], raw)
            except (UnicodeEncodeError, AttributeError, IndexError):
                # The message id is also the default correlation id, which is encoded first.
                is_id = name == "correlation_id" and value == properties.message_id
                raise _unfit_text("message_id" if is_id else name, value) from None
        else:
            if value is None and flag == _MODE:
                value = default_mode
            if value is None:
                continue
            parts.append(encode(name, value))
        flags |= flag
    parts[0] = _U16.pack(flags)
    return b"".join(parts)


def _unfit_text(name: str, value: Any) -> ProtocolError:
    """Return the error for an invalid string property."""
    try:
        size = len(value.encode("utf-8", "surrogateescape"))
    except (UnicodeEncodeError, AttributeError):
        return ProtocolError(f"property {name}: expected text, got {value!r}")
    return ProtocolError(f"property {name}: expected at most 255 bytes, got {size}")


def _octet(name: str, value: object) -> bytes:
    if not isinstance(value, int) or not 0 <= value <= 255:
        raise ProtocolError(f"property {name}: expected 0 to 255, got {value!r}")
    return bytes((value,))


def _timestamp(name: str, value: object) -> bytes:
    if not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise ProtocolError(f"property {name}: expected 0 to 2**64 - 1 seconds, got {value!r}")
    return _U64.pack(value)


_Encoder: TypeAlias = "Callable[[str, Any], bytes]"
_SPECIAL: dict[str, _Encoder] = {
    "delivery_mode": _octet,
    "priority": _octet,
    "timestamp": _timestamp,
}
_ALWAYS = frozenset({"headers", "delivery_mode"})


@lru_cache(maxsize=256)
def _encoders(present: tuple[str, ...]) -> tuple[tuple[int, str, _Encoder | None], ...]:
    """Return the encoders of these properties in wire order. None stands for a short string.

    The result is cached, because most messages have the same properties.
    """
    return tuple(
        (flag, name, _SPECIAL.get(name))
        for flag, name in _FLAGS
        if name in present or name in _ALWAYS
    )


_OCTETS = tuple(bytes((number,)) for number in range(256))


def decode_properties(raw: bytes) -> Properties:
    """Decode properties. Headers that cannot be decoded are stored in `opaque_headers`.

    Raises:
        ProtocolError: If the properties are invalid.
    """
    found: dict[str, Any] = {}
    position = 2
    try:
        for name, read in _readers((raw[0] << 8) | raw[1]):
            position = read(raw, position, name, found)
    except (IndexError, struct.error):
        raise ProtocolError(
            "expected message properties, got the end of the header frame"
        ) from None
    if position != len(raw):
        raise ProtocolError(f"expected {position} bytes of message properties, got {len(raw)}")
    return Properties.of(found)


def _read_text(raw: bytes, position: int, name: str, found: dict[str, Any]) -> int:
    start = position + 1
    end = start + raw[position]
    found[name] = raw[start:end].decode("utf-8", "surrogateescape")
    return end


def _read_octet(raw: bytes, position: int, name: str, found: dict[str, Any]) -> int:
    found[name] = raw[position]
    return position + 1


def _read_timestamp(raw: bytes, position: int, name: str, found: dict[str, Any]) -> int:
    (found[name],) = _U64.unpack_from(raw, position)
    return position + 8


def _read_headers(raw: bytes, position: int, name: str, found: dict[str, Any]) -> int:
    start = position + 4
    end = start + int(_U32.unpack_from(raw, position)[0])
    if end > len(raw):
        raise ProtocolError(f"expected {end - start} bytes of headers, got {len(raw) - start}")
    found[name], further, opaque = decode_entries(raw[start:end])
    if further:
        found["further_headers"] = further
    if opaque:
        found["opaque_headers"] = opaque
    return end


_Reader: TypeAlias = "Callable[[bytes, int, str, dict[str, Any]], int]"
_READERS: dict[str, _Reader] = {
    "headers": _read_headers,
    "delivery_mode": _read_octet,
    "priority": _read_octet,
    "timestamp": _read_timestamp,
}


@lru_cache(maxsize=256)
def _readers(flags: int) -> tuple[tuple[str, _Reader], ...]:
    """Return the readers for the given flags. The two lowest bits are ignored, as by RabbitMQ.

    The result is cached, because most messages have the same flags.
    """
    return tuple((name, _READERS.get(name, _read_text)) for flag, name in _FLAGS if flags & flag)


def canonical_properties(raw: bytes) -> bytes:
    """Return a normalized form of encoded properties, independent of the order of headers.

    RabbitMQ sorts headers since 4.0, so a returned message may differ from the published one.
    """
    try:
        properties = decode_properties(raw)
        ordered: Callable[[Any], Any] = _order
        found = {name: getattr(properties, name) for name in _NAMES}
        if properties.has_headers:
            found["headers"] = ordered(properties.headers)
        found["further_headers"] = tuple(
            sorted(
                ((name, ordered(value)) for name, value in properties.further_headers),
                key=lambda entry: entry[0],
            )
        )
        return encode_properties(Properties(**found))
    except ProtocolError:
        return raw


def _order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _order(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_order(inner) for inner in value]
    return value
