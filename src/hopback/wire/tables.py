"""Encode and decode field tables.

Each AMQP type corresponds to one Python type (see `hopback.fields`), so decoding and encoding a
table returns the same bytes. Values that exceed `MAX_DEPTH` are decoded as `RawValue`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from typing import NamedTuple, TypeAlias

from hopback.errors import ProtocolError
from hopback.fields import (
    MAX_DEPTH,
    FieldValue,
    Float32,
    FurtherHeaders,
    Headers,
    Int8,
    Int16,
    Int32,
    LayeredHeaders,
    LongStr,
    RawValue,
    SharedHeaders,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    value_end,
)

_KEPT_BYTES = 2048
"""Maximum size of a cached array in bytes. Ten entries of `x-death` are shorter."""
_U32 = struct.Struct(">I")
_pack_u32 = _U32.pack
_unpack_u32 = _U32.unpack_from
_TEXT = ord("S")
_DECIMAL = struct.Struct(">Bi")

_Encoder: TypeAlias = "Callable[[FieldValue, int], bytes]"
_Decoder: TypeAlias = "Callable[[bytes, int, int], tuple[FieldValue, int]]"


class Entries(NamedTuple):
    """The decoded entries of a table.

    `further` contains entries whose name is a duplicate or not UTF-8. `opaque` contains data that
    could not be decoded. It must not be sent as entries.
    """

    headers: dict[str, FieldValue]
    further: FurtherHeaders
    opaque: bytes


def encode_table(table: Headers) -> bytes:
    """Encode a table with its length. Raises ProtocolError if a value cannot be encoded."""
    entries = encode_entries(table)
    return _pack_u32(len(entries)) + entries


def encode_further(entries: FurtherHeaders) -> bytes:
    """Encode entries with duplicate or invalid names."""
    return b"".join(bytes((len(name),)) + name + _encode_value(value, 0) for name, value in entries)


def encode_entries(table: Headers, depth: int = 0) -> bytes:
    """Encode the entries of a table without its length."""
    if depth > MAX_DEPTH:
        raise ProtocolError(f"expected tables nested at most {MAX_DEPTH} deep, got a deeper one")
    if type(table) is SharedHeaders:
        return _encode_shared(table)
    if type(table) is LayeredHeaders:
        return _encode_each(table.own, depth) + _encode_shared(table.shared)
    return _encode_each(table, depth)


def _encode_each(table: Headers, depth: int) -> bytes:
    parts: list[bytes] = []
    for key, value in table.items():
        parts.append(_encode_key(key))
        try:
            if type(value) is str:  # the most common type
                raw = value.encode("utf-8", "surrogateescape")
                parts += (b"S", _pack_u32(len(raw)), raw)
            else:
                encoder = _ENCODERS.get(type(value)) or _fallback_encoder(value)
                parts.append(encoder(value, depth))
        except (struct.error, OverflowError, ValueError) as problem:
            raise ProtocolError(f"table key {key!r}: {value!r} does not fit: {problem}") from None
        except ProtocolError as problem:
            raise ProtocolError(f"table key {key!r}: {problem}") from None
    return b"".join(parts)


def _encode_shared(table: SharedHeaders) -> bytes:
    if table.encoded is None:
        table.encoded = _encode_each(table, 0)
    return table.encoded


@lru_cache(maxsize=1024)
def _encode_key(key: str) -> bytes:
    """Encode a key with its length. The result is cached, because most messages use the same names."""
    try:
        raw = key.encode("utf-8", "surrogateescape")
    except (UnicodeEncodeError, AttributeError):
        raise ProtocolError(f"expected a table key of valid text, got {key!r}") from None
    if len(raw) > 255:
        raise ProtocolError(f"expected a table key of at most 255 bytes, got {len(raw)}: {key!r}")
    return bytes((len(raw),)) + raw


def _encode_value(value: FieldValue, depth: int) -> bytes:
    return (_ENCODERS.get(type(value)) or _fallback_encoder(value))(value, depth)


def _fallback_encoder(value: object) -> _Encoder:
    """Return the encoder for a subclass of a supported type."""
    for known, encoder in _FALLBACKS:
        if isinstance(value, known):
            return encoder
    raise ProtocolError(
        f"expected an AMQP field value (see hopback.fields), got {type(value).__name__}: {value!r}"
    )


def _fixed_encoder(octet: str, form: str) -> _Encoder:
    pack = struct.Struct(f">c{form}").pack
    kind = octet.encode()
    return lambda value, _: pack(kind, value)


def _encode_text(value: FieldValue, _: int) -> bytes:
    raw = value.encode("utf-8", "surrogateescape")  # type: ignore[union-attr]
    return b"S" + _pack_u32(len(raw)) + raw


def _encode_long(value: FieldValue, _: int) -> bytes:
    return b"S" + _pack_u32(len(value)) + value  # type: ignore[arg-type, operator]


def _encode_bytes(value: FieldValue, _: int) -> bytes:
    return b"x" + _pack_u32(len(value)) + value  # type: ignore[arg-type, operator]


def _encode_decimal(value: FieldValue, _: int) -> bytes:
    assert isinstance(value, Decimal)  # noqa: S101 - dispatched by type
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or exponent < -255:
        raise ValueError("expected a finite decimal of at most 255 places")
    if exponent > 10:
        raise ValueError("expected at most 32 bits")
    unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    return b"D" + _DECIMAL.pack(max(-exponent, 0), -unscaled if sign else unscaled)


def _encode_array(value: FieldValue, depth: int) -> bytes:
    if depth >= MAX_DEPTH:
        raise ProtocolError(f"expected arrays nested at most {MAX_DEPTH} deep, got a deeper one")
    assert isinstance(value, Sequence)  # noqa: S101 - dispatched by type
    raw = b"".join([_encode_value(inner, depth + 1) for inner in value])
    return b"A" + _pack_u32(len(raw)) + raw


def _encode_nested(value: FieldValue, depth: int) -> bytes:
    raw = encode_entries(value, depth + 1)  # type: ignore[arg-type]
    return b"F" + _pack_u32(len(raw)) + raw


def _finite_encoder(tag: str, form: str) -> _Encoder:
    """Return an encoder that rejects infinity and NaN, because RabbitMQ closes the connection (541)."""
    encode_fixed = _fixed_encoder(tag, form)

    def encode(value: FieldValue, depth: int) -> bytes:
        if not isfinite(value):  # type: ignore[arg-type]
            raise ValueError("expected a finite number")
        return encode_fixed(value, depth)

    return encode


_encode_int = _fixed_encoder("l", "q")
_encode_float = _finite_encoder("d", "d")

_ENCODERS: dict[type, _Encoder] = {
    str: _encode_text,
    int: _encode_int,
    bool: _fixed_encoder("t", "?"),
    dict: _encode_nested,
    list: _encode_array,
    tuple: _encode_array,
    bytes: _encode_bytes,
    LongStr: _encode_long,
    RawValue: lambda value, _depth: bytes(value),  # type: ignore[arg-type]
    type(None): lambda _value, _depth: b"V",
    float: _encode_float,
    Float32: _finite_encoder("f", "f"),
    Timestamp: _fixed_encoder("T", "Q"),
    Int8: _fixed_encoder("b", "b"),
    UInt8: _fixed_encoder("B", "B"),
    Int16: _fixed_encoder("s", "h"),
    UInt16: _fixed_encoder("u", "H"),
    Int32: _fixed_encoder("I", "i"),
    UInt32: _fixed_encoder("i", "I"),
    UInt64: _fixed_encoder("L", "Q"),
    Decimal: _encode_decimal,
}
_FALLBACKS: tuple[tuple[type, _Encoder], ...] = (
    (str, _encode_text),
    (Mapping, _encode_nested),
    (list, _encode_array),
    (tuple, _encode_array),
    (bytes, _encode_bytes),
    (int, _encode_int),
    (float, _encode_float),
    (Decimal, _encode_decimal),
)


def decode_table(data: bytes, position: int = 0) -> tuple[dict[str, FieldValue], int]:
    """Decode the table at `position` and return it with its end.

    Raises ProtocolError if it is invalid.
    """
    raw, end = _read_sized(data, position)
    headers, further, opaque = decode_entries(raw)
    if opaque or further or any(type(value) is RawValue for value in headers.values()):
        raise ProtocolError(
            f"expected a field table with each key once, at most {MAX_DEPTH} deep, got {raw[:40]!r}"
        )
    return headers, end


def decode_entries(raw: bytes) -> Entries:
    """Decode the entries of a table. Never raises an exception.

    If the end of an entry cannot be determined, the rest is kept as bytes. For duplicate keys, the
    first value is used, like RabbitMQ does.
    """
    headers: dict[str, FieldValue] = {}
    further: list[tuple[bytes, FieldValue]] = []
    opaque: list[bytes] = []
    position, size = 0, len(raw)
    while position < size:
        start = position
        try:
            # Inlined, because function calls would take twice as long.
            position += 1 + raw[position]
            key = raw[start + 1 : position].decode()
            if raw[position] == _TEXT:
                # Strings are the most common type. `_read_past` handles invalid UTF-8.
                begin = position + 5
                position = begin + _unpack_u32(raw, position + 1)[0]
                if position > size:
                    raise ProtocolError("expected a text, got the end of the table")
                value: FieldValue = raw[begin:position].decode()
            else:
                value, position = _DECODERS[raw[position]](raw, position + 1, 0)
        except (ProtocolError, KeyError, IndexError, struct.error, ValueError):
            position = _read_past(raw, start, headers, further, opaque)
            continue
        if key in headers:
            further.append((key.encode(), value))
        else:
            headers[key] = value
    return Entries(headers, tuple(further), b"".join(opaque))


def _read_past(
    raw: bytes,
    start: int,
    headers: dict[str, FieldValue],
    further: list[tuple[bytes, FieldValue]],
    opaque: list[bytes],
) -> int:
    """Keep the entry at `start` as bytes and return its end.

    If the end is unknown, the rest of the table is kept as bytes.
    """
    name_end = start + 1 + raw[start]
    end = value_end(raw, name_end, len(raw))
    if end is None:
        opaque.append(raw[start:])
        return len(raw)
    name = raw[start + 1 : name_end]
    try:
        value = _value_or_raw(raw[name_end:end])
    except ValueError:
        # Its content is unknown, and a broker would reject it.
        opaque.append(raw[start:end])
        return end
    key = name.decode("utf-8", "surrogateescape")
    # Keys that are not UTF-8 contain surrogates.
    if key in headers or (not key.isascii() and any("\udc80" <= sign <= "\udcff" for sign in key)):
        further.append((name, value))
    else:
        headers[key] = value
    return end


def _value_or_raw(raw: bytes) -> FieldValue:
    """Decode a value. Returns a RawValue if it is nested too deep or has duplicate keys.

    Raises:
        ValueError: If the value is invalid.
    """
    try:
        return _DECODERS[raw[0]](raw, 1, 0)[0]
    except (ProtocolError, KeyError, IndexError, struct.error, UnicodeDecodeError):
        return RawValue(raw)


def _nested_entries(raw: bytes, depth: int) -> dict[str, FieldValue]:
    headers: dict[str, FieldValue] = {}
    position, size = 0, len(raw)
    while position < size:
        begin = position + 1
        position = begin + raw[position]
        key = raw[begin:position].decode()
        if key in headers:
            raise ProtocolError(f"expected each key once in a nested table, got {key!r} twice")
        if raw[position] == _TEXT:  # inlined, because most values in `x-death` are strings
            begin = position + 5
            position = begin + _unpack_u32(raw, position + 1)[0]
            if position > size:
                raise ProtocolError("expected a text, got the end of the table")
            text = raw[begin:position]
            try:
                headers[key] = text.decode()
            except UnicodeDecodeError:
                headers[key] = LongStr(text)
        else:
            headers[key], position = _DECODERS[raw[position]](raw, position + 1, depth)
    return headers


def _read_sized(data: bytes, position: int) -> tuple[bytes, int]:
    """Return the bytes after a 32-bit length."""
    if position + 4 > len(data):
        raise ProtocolError("expected a 32-bit length, got the end of the bytes")
    start = position + 4
    end = start + _unpack_u32(data, position)[0]
    if end > len(data):
        raise ProtocolError(f"expected {end - start} bytes, got {len(data) - start}")
    return data[start:end], end


def _fixed_decoder(form: str, kind: Callable[[object], FieldValue] | None = None) -> _Decoder:
    layout = struct.Struct(f">{form}")
    unpack, size = layout.unpack_from, layout.size
    if kind is None:
        return lambda data, position, _: (unpack(data, position)[0], position + size)
    return lambda data, position, _: (kind(unpack(data, position)[0]), position + size)


def _finite_decoder(form: str, kind: Callable[[object], FieldValue] = float) -> _Decoder:  # type: ignore[assignment]
    """Return a decoder that rejects infinity and NaN, as RabbitMQ does."""
    decode_fixed = _fixed_decoder(form, kind)

    def decode(data: bytes, position: int, depth: int) -> tuple[FieldValue, int]:
        value, end = decode_fixed(data, position, depth)
        if not isfinite(value):  # type: ignore[arg-type]
            raise ValueError(f"expected a finite number, got {value}")
        return value, end

    return decode


def _decode_text(data: bytes, position: int, _: int) -> tuple[FieldValue, int]:
    start = position + 4
    end = start + _unpack_u32(data, position)[0]
    if end > len(data):
        raise ProtocolError(f"expected {end - start} bytes, got {len(data) - start}")
    try:
        return data[start:end].decode(), end
    except UnicodeDecodeError:
        return LongStr(data[start:end]), end


def _decode_bytes(data: bytes, position: int, _: int) -> tuple[FieldValue, int]:
    return _read_sized(data, position)


def _decode_decimal(data: bytes, position: int, _: int) -> tuple[FieldValue, int]:
    scale, unscaled = _DECIMAL.unpack_from(data, position)
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((int(unscaled < 0), digits, -scale)), position + 5


def _decode_array(data: bytes, position: int, depth: int) -> tuple[FieldValue, int]:
    if depth >= MAX_DEPTH:
        raise ProtocolError(f"expected arrays nested at most {MAX_DEPTH} deep, got a deeper one")
    raw, end = _read_sized(data, position)
    if depth == 0 and len(raw) <= _KEPT_BYTES:
        return _copy(_kept_array(raw)), end
    return _array(raw, depth), end


def _array(raw: bytes, depth: int) -> list[FieldValue]:
    values: list[FieldValue] = []
    inner = 0
    while inner < len(raw):
        value, inner = _DECODERS[raw[inner]](raw, inner + 1, depth + 1)
        values.append(value)
    return values


# The result is cached, because messages that were dead-lettered in the same second often have the
# same `x-death`. Callers must copy it.
@lru_cache(maxsize=256)
def _kept_array(raw: bytes) -> list[FieldValue]:
    return _array(raw, 0)


def _copy(values: list[FieldValue]) -> list[FieldValue]:
    return [
        _copy_table(value) if type(value) is dict
        else _copy(value) if type(value) is list
        else value
        for value in values
    ]  # fmt: skip


def _copy_table(table: dict[str, FieldValue]) -> dict[str, FieldValue]:
    made = dict(table)
    for key, value in table.items():
        if type(value) is list:
            made[key] = _copy(value)
        elif type(value) is dict:
            made[key] = _copy_table(value)
    return made


def _decode_nested(data: bytes, position: int, depth: int) -> tuple[FieldValue, int]:
    if depth >= MAX_DEPTH:
        raise ProtocolError(f"expected tables nested at most {MAX_DEPTH} deep, got a deeper one")
    raw, end = _read_sized(data, position)
    return _nested_entries(raw, depth + 1), end


_DECODERS: dict[int, _Decoder] = {
    ord(octet): decoder
    for octet, decoder in {
        "S": _decode_text,
        "l": _fixed_decoder("q"),
        "I": _fixed_decoder("i", Int32),  # type: ignore[arg-type]
        "t": _fixed_decoder("?"),
        "F": _decode_nested,
        "A": _decode_array,
        "T": _fixed_decoder("Q", Timestamp),  # type: ignore[arg-type]
        "x": _decode_bytes,
        "V": lambda _data, position, _depth: (None, position),
        "d": _finite_decoder("d"),
        "f": _finite_decoder("f", Float32),  # type: ignore[arg-type]
        "b": _fixed_decoder("b", Int8),  # type: ignore[arg-type]
        "B": _fixed_decoder("B", UInt8),  # type: ignore[arg-type]
        "s": _fixed_decoder("h", Int16),  # type: ignore[arg-type]
        "u": _fixed_decoder("H", UInt16),  # type: ignore[arg-type]
        "i": _fixed_decoder("I", UInt32),  # type: ignore[arg-type]
        "L": _fixed_decoder("Q", UInt64),  # type: ignore[arg-type]
        "D": _decode_decimal,
    }.items()
}
