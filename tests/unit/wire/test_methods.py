"""The table of methods, and arguments to bytes and back."""

from __future__ import annotations

from collections import Counter

import pytest

from hopback.errors import ProtocolError
from hopback.wire.methods import BY_ID, METHODS, Side, decode_arguments, encode_arguments


def test_method_table_is_complete() -> None:
    classes = Counter(name.partition(".")[0] for name in METHODS)
    assert classes == {
        "connection": 14,
        "channel": 6,
        "exchange": 8,
        "queue": 10,
        "basic": 18,
        "confirm": 2,
        "tx": 6,
    }
    assert len(BY_ID) == len(METHODS)
    assert METHODS["basic.nack"].id == 60 << 16 | 120
    assert METHODS["exchange.unbind-ok"].id == 40 << 16 | 51
    assert METHODS["connection.update-secret"].id == 10 << 16 | 70


def test_every_request_has_replies_of_other_side() -> None:
    answers = {name for method in METHODS.values() for name in method.replies}
    assert answers == {method.name for method in METHODS.values() if method.is_reply}
    for method in METHODS.values():
        for name in method.replies:
            asked = {sender.other for sender in method.senders}
            assert asked <= METHODS[name].senders


def test_queue_declare_has_bytes_of_specification() -> None:
    raw = encode_arguments(
        METHODS["queue.declare"],
        {"queue": "q", "durable": True, "auto_delete": True, "arguments": {"a": True}},
    )
    assert raw == b"\x00\x32\x00\x0a\x00\x00\x01q\x0a\x00\x00\x00\x04\x01at\x01"


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_round_trips(name: str) -> None:
    samples = {
        "octet": 7,
        "short": 300,
        "long": 70_000,
        "longlong": 2**40,
        "bit": True,
        "shortstr": "née",
        "longstr": b"\x00long",
        "table": {"k": "v"},
    }
    method = METHODS[name]
    given = {key: samples[kind] for key, kind in method.arguments if key != "_"}
    assert decode_arguments(method, encode_arguments(method, given)) == given


@pytest.mark.parametrize("name", sorted(METHODS))
def test_truncated_or_padded_method_is_refused(name: str) -> None:
    raw = encode_arguments(METHODS[name], {})
    with pytest.raises(ProtocolError):
        decode_arguments(METHODS[name], raw + b"\x00")
    if len(raw) > 4:
        with pytest.raises(ProtocolError):
            decode_arguments(METHODS[name], raw[:-1])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("queue.declare", {"queue": "x" * 256}),
        ("queue.declare", {"queue": "\ud800"}),
        ("queue.declare", {"nonsense": 1}),
        ("basic.qos", {"prefetch_count": 65_536}),
        ("basic.qos", {"prefetch_count": -1}),
        ("queue.declare", {"arguments": {"x": object()}}),
    ],
)
def test_invalid_method_arguments_are_refused_by_name(
    name: str, arguments: dict[str, object]
) -> None:
    with pytest.raises(ProtocolError, match=f"{name}|field value"):
        encode_arguments(METHODS[name], arguments)


def test_nowait_method_awaits_no_reply() -> None:
    declare = METHODS["queue.declare"]
    assert declare.awaits_reply({})
    assert not declare.awaits_reply({"nowait": True})
    assert not METHODS["basic.ack"].awaits_reply({})


def test_sides_are_opposites() -> None:
    assert Side.CLIENT.other is Side.SERVER
    assert Side.SERVER.other is Side.CLIENT
