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


def test_all_fourteen_survive() -> None:
    """Every property comes back, in the order AMQP gives them."""
    raw = encode_properties(FULL)
    assert raw[:2] == b"\xff\xfc"
    assert decode_properties(raw) == FULL


@pytest.mark.parametrize("name", [field.name for field in fields(Properties)][:-1])
def test_each_one_alone_survives(name: str) -> None:
    """No property leans on another being there."""
    alone = replace(Properties(), **{name: getattr(FULL, name)})
    assert decode_properties(encode_properties(alone)) == alone


def test_none_at_all_is_two_zero_bytes() -> None:
    """Absent stays absent."""
    assert encode_properties(Properties()) == b"\x00\x00"
    assert decode_properties(b"\x00\x00") == Properties()


def test_a_default_mode_fills_only_a_gap() -> None:
    """Persistent unless said otherwise: what the sender chose is kept."""
    assert decode_properties(encode_properties(Properties(), default_mode=2)).delivery_mode == 2
    chosen = encode_properties(Properties(delivery_mode=1), default_mode=2)
    assert decode_properties(chosen).delivery_mode == 1


def test_unreadable_headers_are_kept_and_never_written() -> None:
    """A broker could find in them what nobody here has read."""
    broken = b"\x01kz\x00"
    raw = b"\x20\x00" + len(broken).to_bytes(4, "big") + broken
    found = decode_properties(raw)
    assert (dict(found.headers), found.opaque_headers) == ({}, broken)
    assert encode_properties(found) == encode_properties(Properties(headers={}))
    ours = decode_properties(encode_properties(replace(found, headers={"hopback-attempts": 1})))
    assert (dict(ours.headers), ours.opaque_headers) == ({"hopback-attempts": 1}, b"")


def test_absent_and_empty_headers_are_different_values() -> None:
    absent, empty = Properties(), Properties(headers={})
    assert encode_properties(absent) == b"\x00\x00"
    assert encode_properties(empty) == b"\x20\x00" + bytes(4)
    assert decode_properties(encode_properties(absent)) == absent != empty
    assert decode_properties(encode_properties(empty)) == empty != absent


def test_a_header_that_comes_twice_and_one_without_text_travel_on() -> None:
    """What has no place in a mapping is written behind it, as it was."""
    entries = b"\x01aV\x01at\x01\x01\xffV"
    raw = b"\x20\x00" + len(entries).to_bytes(4, "big") + entries
    found = decode_properties(raw)
    assert dict(found.headers) == {"a": None}
    assert found.further_headers == ((b"a", True), (b"\xff", None))
    assert encode_properties(found) == raw


def test_text_that_is_no_utf8_survives() -> None:
    """A producer's broken content type does not stop its message."""
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
        b"\x00\x02",
        b"\x00\x00\x00",
    ],
)
def test_properties_that_do_not_fill_their_frame_are_an_error(raw: bytes) -> None:
    """Too short, too long and unknown flags are told apart from sound ones."""
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
def test_what_does_not_fit_is_refused_before_it_is_sent(wrong: Properties) -> None:
    """The broker would close the connection; we say which property it is."""
    with pytest.raises(ProtocolError, match="property"):
        encode_properties(wrong)


def test_canonical_form_forgets_order_and_nothing_else() -> None:
    """Headers sorted by a broker are equal; another type or value is not."""

    def canonical(**headers: object) -> bytes:
        return canonical_properties(encode_properties(Properties(headers=headers)))  # type: ignore[arg-type]

    assert canonical(a=1, b={"d": 1, "c": 2}) == canonical(b={"c": 2, "d": 1}, a=1)
    assert canonical(a=1) != canonical(a=Int32(1))
    assert canonical(a=True) != canonical(a=1)
    assert canonical(a=[1, 2]) != canonical(a=[2, 1])
    assert canonical_properties(b"\x80\x00") == b"\x80\x00"
