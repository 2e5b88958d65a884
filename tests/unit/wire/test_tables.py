"""Field tables: exact both ways, and bounded."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from hopback.errors import ProtocolError
from hopback.fields import (
    MAX_DEPTH,
    Float32,
    Int8,
    Int16,
    Int32,
    LongStr,
    RawValue,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    table_size,
)
from hopback.wire.tables import decode_entries, decode_table, encode_entries, encode_table

if TYPE_CHECKING:
    from hopback.fields import FieldValue

_BYTES_OF = [
    (True, b"t\x01"),
    (False, b"t\x00"),
    (Int8(-2), b"b\xfe"),
    (UInt8(254), b"B\xfe"),
    (Int16(-2), b"s\xff\xfe"),
    (UInt16(65534), b"u\xff\xfe"),
    (Int32(-2), b"I\xff\xff\xff\xfe"),
    (UInt32(2**32 - 2), b"i\xff\xff\xff\xfe"),
    (-2, b"l\xff\xff\xff\xff\xff\xff\xff\xfe"),
    (UInt64(2**64 - 2), b"L\xff\xff\xff\xff\xff\xff\xff\xfe"),
    (Float32(0.5), b"f\x3f\x00\x00\x00"),
    (0.5, b"d\x3f\xe0\x00\x00\x00\x00\x00\x00"),
    (Decimal("-1.25"), b"D\x02\xff\xff\xff\x83"),
    ("é", b"S\x00\x00\x00\x02\xc3\xa9"),
    (LongStr(b"\xff"), b"S\x00\x00\x00\x01\xff"),
    (b"\x00\x01", b"x\x00\x00\x00\x02\x00\x01"),
    ([True, None], b"A\x00\x00\x00\x03t\x01V"),
    ({"a": None}, b"F\x00\x00\x00\x03\x01aV"),
    (Timestamp(2**64 - 1), b"T\xff\xff\xff\xff\xff\xff\xff\xff"),
    (None, b"V"),
]


@pytest.mark.parametrize(("value", "raw"), _BYTES_OF, ids=repr)
def test_each_table_type_round_trips(value: FieldValue, raw: bytes) -> None:
    entry = b"\x01k" + raw
    assert encode_table({"k": value}) == len(entry).to_bytes(4, "big") + entry
    found, end = decode_table(encode_table({"k": value}))
    assert found == {"k": value}
    assert type(found["k"]) is type(value)
    assert end == table_size({"k": value})


class _Word(StrEnum):
    HELLO = "hello"


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (_Word.HELLO, "hello"),
        (MappingProxyType({"a": (1, 2)}), {"a": [1, 2]}),
        (Decimal("1E2"), Decimal(100)),
    ],
)
def test_related_python_types_are_encoded(given: FieldValue, same: FieldValue) -> None:
    assert encode_table({"k": given}) == encode_table({"k": same})


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        Int8(128),
        UInt8(-1),
        Float32(1e300),
        Decimal("NaN"),
        Decimal(2**31),
        Decimal("1E-256"),
        Decimal("1E99999"),
        "\ud800",
        object(),
        [object()],
        Timestamp(-1),
    ],
)
def test_values_without_amqp_form_are_refused(value: Any) -> None:
    with pytest.raises(ProtocolError):
        encode_table({"k": value})


def test_refused_value_names_key() -> None:
    with pytest.raises(ProtocolError, match="'x-big'"):
        encode_table({"x-big": 2**63})


@pytest.mark.parametrize("key", ["é" * 128, "\ud800"])
def test_table_key_must_be_short_valid_text(key: str) -> None:
    with pytest.raises(ProtocolError, match="key"):
        encode_table({key: 1})


def test_key_of_255_bytes_is_accepted() -> None:
    assert decode_table(encode_table({"k" * 255: 1}))[0] == {"k" * 255: 1}


def _nested(depth: int, kind: type) -> FieldValue:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind is list else {"k": value}
    return value  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [list, dict])
def test_nesting_is_limited_to_32_levels(kind: type) -> None:
    deepest = {"k": _nested(MAX_DEPTH, kind)}
    assert decode_table(encode_table(deepest))[0] == deepest
    with pytest.raises(ProtocolError, match="deep"):
        encode_table({"k": _nested(MAX_DEPTH + 1, kind)})
    inner = encode_table(deepest)[4:]
    octet = b"F" if kind is dict else b"A"
    wrapped = inner if kind is dict else inner[2:]
    deeper = b"\x01k" + octet + len(wrapped).to_bytes(4, "big") + wrapped
    headers, further, opaque = decode_entries(deeper + b"\x01aV")
    assert (further, opaque) == ((), b"")
    assert headers == {"k": RawValue(deeper[2:]), "a": None}
    assert encode_entries(headers) == deeper + b"\x01aV"


def test_hundred_thousand_levels_do_not_exhaust_stack() -> None:
    raw = b""
    for _ in range(1000):
        raw = b"A" + len(raw).to_bytes(4, "big") + raw
    assert decode_entries(b"\x01k" + raw).headers == {"k": raw}


@pytest.mark.parametrize(
    "rest",
    [
        b"\x01kz\x00",
        b"\x01kS\x00\x00\x00\x09short",
        b"\x01kI\x00",
        b"\x01k",
        b"\x09k",
        b"\x01kA\xff\xff\xff\xff",
        b"\x01kd\x7f\xf8" + bytes(6),  # NaN, which RabbitMQ refuses
    ],
)
def test_unreadable_entry_is_kept_as_bytes(rest: bytes) -> None:
    good = encode_table({"good": 1})[4:]
    assert decode_entries(good + rest) == ({"good": 1}, (), rest)


@pytest.mark.parametrize(
    "broken",
    [b"\x01kF\x00\x00\x00\x03\x01kz", b"\x01kA\x00\x00\x00\x01z", b"\x01kF\x00\x00\x00\x01\x09"],
)
def test_entries_behind_broken_value_of_known_length_are_read(broken: bytes) -> None:
    good, more = encode_table({"good": 1})[4:], encode_table({"CC": ["vault"]})[4:]
    found = decode_entries(good + broken + more)
    assert found == ({"good": 1, "CC": ["vault"]}, (), broken)


@pytest.mark.parametrize(
    "odd",
    [
        b"F\x00\x00\x00\x06\x01aV\x01aV",
        b"F\x00\x00\x00\x03\x01\xffV",
        b"A\x00\x00\x00\x08F\x00\x00\x00\x03\x01\xffV",
    ],
)
def test_nested_table_with_repeated_key_is_kept_raw(odd: bytes) -> None:
    found = decode_entries(b"\x01k" + odd + b"\x01aV")
    assert (found.headers, found.opaque) == ({"k": RawValue(odd), "a": None}, b"")
    assert encode_entries(found.headers) == b"\x01k" + odd + b"\x01aV"


@pytest.mark.parametrize(
    "raw",
    [b"", b"z", b"VV", b"S\x00\x00\x00\x09short", b"F\x00\x00\x00\x01k", b"A\x00\x00\x00\x01z"],
)
def test_raw_value_must_be_complete(raw: bytes) -> None:
    with pytest.raises(ValueError, match="exactly one AMQP value"):
        RawValue(raw)


def test_texts_of_raw_array_are_read() -> None:
    deep = RawValue(b"A\x00\x00\x00\x0dS\x00\x00\x00\x05vaultVt\x01")
    assert deep.texts() == ["vault"]
    assert RawValue(b"F\x00\x00\x00\x00").texts() is None


def test_repeated_key_keeps_first_value() -> None:
    """RabbitMQ does the same."""
    once, twice, after = b"\x01at\x01", b"\x01at\x00", b"\x01bV"
    assert decode_entries(once + twice + after) == ({"a": True, "b": None}, ((b"a", False),), b"")


def test_equal_arrays_of_two_messages_are_separate() -> None:
    death: Any = {"queue": "orders", "routing-keys": ["orders"], "more": {"deep": [1]}}
    raw = encode_entries({"x-death": [death, [2]]})
    first: Any = decode_entries(raw).headers["x-death"]
    second = decode_entries(raw).headers["x-death"]
    assert first == second == [death, [2]]
    first[0]["queue"] = "other"
    first[0]["routing-keys"].append("other")
    first[0]["more"]["deep"].append(3)
    first[1].append(4)
    assert decode_entries(raw).headers["x-death"] == second == [death, [2]]


def test_strict_table_is_read_whole_or_refused() -> None:
    with pytest.raises(ProtocolError):
        decode_table(b"\x00\x00\x00\x03\x01kz")
    with pytest.raises(ProtocolError):
        decode_table(b"\x00\x00\x00\x09\x01kV")
    with pytest.raises(ProtocolError):
        decode_table(b"\x00\x00")
