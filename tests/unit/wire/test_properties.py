"""Message properties: exact both ways, and forgiving only where a message must survive."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from hopback.errors import ProtocolError
from hopback.fields import Int32
from hopback.message import Properties
from hopback.wire.properties import canonical_properties, decode_properties, encode_properties

FULL = Properties(
    content_type="application/json",
    content_encoding="utf-8",
    headers={"a": Int32(1), "b": {"c": [1, "x", None]}},
    delivery_mode=2,
    priority=9,
    correlation_id="corr",
    reply_to="reply",
    expiration="60000",
    message_id="id-1",
    timestamp=1_700_000_000,
    type="order.created",
    user_id="guest",
    app_id="shop",
    cluster_id="east",
)


def test_all_fourteen_properties_round_trip() -> None:
    raw = encode_properties(FULL)
    assert raw[:2] == b"\xff\xfc"
    assert decode_properties(raw) == FULL


@pytest.mark.parametrize("name", [field.name for field in fields(Properties)][:-1])
def test_each_property_round_trips_alone(name: str) -> None:
    alone = replace(Properties(), **{name: getattr(FULL, name)})
    assert decode_properties(encode_properties(alone)) == alone


def test_empty_properties_are_two_zero_bytes() -> None:
    assert encode_properties(Properties()) == b"\x00\x00"
    assert decode_properties(b"\x00\x00") == Properties()


def test_default_delivery_mode_fills_only_missing_value() -> None:
    assert decode_properties(encode_properties(Properties(), default_mode=2)).delivery_mode == 2
    chosen = encode_properties(Properties(delivery_mode=1), default_mode=2)
    assert decode_properties(chosen).delivery_mode == 1


def test_unreadable_headers_are_kept_and_never_written() -> None:
    broken = b"\x01kz\x00"
    raw = b"\x20\x00" + len(broken).to_bytes(4, "big") + broken
    found = decode_properties(raw)
    assert (dict(found.headers), found.opaque_headers) == ({}, broken)
    assert encode_properties(found) == encode_properties(Properties(headers={}))
    ours = decode_properties(encode_properties(replace(found, headers={"hopback-attempts": 1})))
    assert (dict(ours.headers), ours.opaque_headers) == ({"hopback-attempts": 1}, b"")


def test_unused_flags_are_ignored() -> None:
    """RabbitMQ 3.10 passes them on to consumers."""
    assert decode_properties(b"\x10\x03\x02") == Properties(delivery_mode=2)


def test_absent_and_empty_headers_differ() -> None:
    absent, empty = Properties(), Properties(headers={})
    assert encode_properties(absent) == b"\x00\x00"
    assert encode_properties(empty) == b"\x20\x00" + bytes(4)
    assert decode_properties(encode_properties(absent)) == absent != empty
    assert decode_properties(encode_properties(empty)) == empty != absent


def test_repeated_header_and_header_without_text_round_trip() -> None:
    entries = b"\x01aV\x01at\x01\x01\xffV"
    raw = b"\x20\x00" + len(entries).to_bytes(4, "big") + entries
    found = decode_properties(raw)
    assert dict(found.headers) == {"a": None}
    assert found.further_headers == ((b"a", True), (b"\xff", None))
    assert encode_properties(found) == raw


def test_text_with_invalid_utf8_round_trips() -> None:
    raw = b"\x80\x00\x02\xff\xfe"
    assert encode_properties(decode_properties(raw)) == raw


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00",
        b"\x80\x00",
        b"\x80\x00\x05abc",
        b"\x20\x00\x00\x00\x00\x09",
        b"\x00\x40\x00\x00",
        b"\x00\x01\x00\x00",
        b"\x00\x00\x00",
    ],
)
def test_truncated_or_padded_properties_are_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_properties(raw)


@pytest.mark.parametrize(
    "wrong",
    [
        Properties(priority=256),
        Properties(delivery_mode=-1),
        Properties(timestamp=-1),
        Properties(timestamp=2**64),
        Properties(message_id="x" * 256),
        Properties(type="\ud800x"),
    ],
)
def test_property_that_does_not_fit_is_refused_before_sending(wrong: Properties) -> None:
    with pytest.raises(ProtocolError, match="property"):
        encode_properties(wrong)


def test_canonical_properties_ignore_only_header_order() -> None:
    def canonical(**headers: object) -> bytes:
        return canonical_properties(encode_properties(Properties(headers=headers)))  # type: ignore[arg-type]

    assert canonical(a=1, b={"d": 1, "c": 2}) == canonical(b={"c": 2, "d": 1}, a=1)
    assert canonical(a=1) != canonical(a=Int32(1))
    assert canonical(a=True) != canonical(a=1)
    assert canonical(a=[1, 2]) != canonical(a=[2, 1])
    assert canonical_properties(b"\x80\x00") == b"\x80\x00"
