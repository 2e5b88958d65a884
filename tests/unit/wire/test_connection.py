"""The connection without I/O: both roles, any segmentation, every rule of the tables."""

from __future__ import annotations

from typing import Any

import pytest

from hopback.errors import ProtocolError
from hopback.message import Properties
from hopback.wire import (
    Delivered,
    Got,
    Limits,
    MethodReceived,
    Published,
    ReturnedMessage,
    SettlementReceived,
    Side,
    Violation,
    WireConnection,
)
from hopback.wire.frames import METHOD, ChannelState, ConnectionState, frame
from hopback.wire.methods import METHODS, encode_arguments
from hopback.wire.properties import encode_properties
from tests.unit.wire.pair import Pair, open_pair

_PROPERTIES = encode_properties(Properties(message_id="m", headers={"a": 1}))


def _method(name: str, channel: int = 1, **arguments: object) -> bytes:
    return frame(METHOD, channel, encode_arguments(METHODS[name], arguments))


def _deliver(pair: Pair, tag: int, body: bytes, *, channel: int = 1) -> None:
    method = _method(
        "basic.deliver",
        channel,
        consumer_tag="c",
        delivery_tag=tag,
        redelivered=tag % 2 == 0,
        exchange="x",
        routing_key="k.é",
    )
    pair.server.content(channel, method, _PROPERTIES, body)


def _violation(pair: Pair, raw: bytes) -> Violation:
    (found,) = pair.client.receive(raw)
    assert isinstance(found, Violation)
    assert isinstance(found.error, ProtocolError)
    return found


@pytest.mark.parametrize("step", [None, 1, 7, 64])
@pytest.mark.parametrize("size", [0, 1, 1000, 131_064, 131_065, 300_000])
def test_deliveries_are_equal_for_any_chunking(step: int | None, size: int) -> None:
    if step == 1 and size > 1000:
        step = 4096
    pair = open_pair(step=step)
    body = bytes(range(256)) * (size // 256 + 1)
    for tag in (1, 2, 3):
        _deliver(pair, tag, body[:size])
    pair.pump()
    found = pair.seen_by_client
    assert [type(event) for event in found] == [Delivered] * 3
    delivery = found[1]
    assert isinstance(delivery, Delivered)
    assert (delivery.tag, delivery.redelivered, delivery.consumer) == (2, True, b"c")
    assert (delivery.exchange, delivery.routing_key) == ("x", "k.é")
    assert delivery.body == body[:size]
    assert delivery.raw_properties == _PROPERTIES
    assert delivery.properties == Properties(message_id="m", headers={"a": 1})
    assert list(pair.client.channels[1].settlements.unsettled) == [1, 2, 3]


def test_messages_on_two_channels_may_interleave() -> None:
    pair = open_pair(channels=2)
    _deliver(pair, 1, b"a" * 200_000, channel=1)
    first = pair.server.take()
    _deliver(pair, 1, b"b" * 200_000, channel=2)
    second = pair.server.take()
    cut = len(first) - 8 - (200_000 - 131_064)
    assert first[cut - 1 : cut + 3] == b"\xce\x03\x00\x01"
    events = pair.client.receive(first[:cut] + second + first[cut:])
    bodies = [event.body for event in events if isinstance(event, Delivered)]
    assert bodies == [b"b" * 200_000, b"a" * 200_000]


def test_returns_gets_publishes_and_settlements_are_parsed() -> None:
    pair = open_pair()
    pair.client.content(
        1,
        _method("basic.publish", exchange="x", routing_key="k", mandatory=True),
        _PROPERTIES,
        b"p",
    )
    pair.client.send(1, "basic.get", queue="q")
    pair.client.send(1, "basic.nack", delivery_tag=5, multiple=True, requeue=True)
    pair.client.send(1, "basic.reject", delivery_tag=6, requeue=True)
    pair.pump()
    published, _, nack, reject = pair.seen_by_server
    assert isinstance(published, Published)
    assert (published.exchange, published.routing_key, published.body) == ("x", "k", b"p")
    assert (published.mandatory, published.immediate) == (True, False)
    assert isinstance(nack, SettlementReceived)
    assert (nack.name, nack.tag, nack.multiple, nack.requeue) == ("basic.nack", 5, True, True)
    assert isinstance(reject, SettlementReceived)
    assert (reject.name, reject.multiple, reject.requeue) == ("basic.reject", False, True)
    got: dict[str, Any] = {
        "delivery_tag": 1,
        "redelivered": True,
        "exchange": "e",
        "message_count": 4,
    }
    pair.server.content(1, _method("basic.get-ok", **got), _PROPERTIES, b"g")
    back: dict[str, Any] = {
        "reply_code": 312,
        "reply_text": "NO_ROUTE",
        "exchange": "x",
        "routing_key": "k",
    }
    pair.server.content(1, _method("basic.return", **back), _PROPERTIES, b"r")
    pair.server.send(1, "basic.ack", delivery_tag=9, multiple=True)
    pair.pump()
    found, returned, ack = pair.seen_by_client
    assert isinstance(found, Got)
    assert (found.tag, found.remaining, found.exchange, found.redelivered) == (1, 4, "e", True)
    assert isinstance(returned, ReturnedMessage)
    assert (returned.code, returned.text, returned.routing_key) == (312, "NO_ROUTE", "k")
    assert isinstance(ack, SettlementReceived)
    assert (ack.name, ack.tag, ack.multiple, ack.requeue) == ("basic.ack", 9, True, False)


def test_message_with_broken_properties_can_be_read() -> None:
    """`properties` never raises, and the raw bytes stay."""
    pair = open_pair()
    method = _method("basic.deliver", consumer_tag="c", delivery_tag=1)
    pair.server.content(1, method, b"\x80\x00\x09abc", b"x")
    pair.pump()
    (found,) = pair.seen_by_client
    assert isinstance(found, Delivered)
    assert found.properties == Properties(opaque_headers=b"\x80\x00\x09abc")
    assert found.raw_properties == b"\x80\x00\x09abc"


def test_request_and_reply_are_transferred() -> None:
    pair = open_pair()
    pair.client.send(1, "queue.declare", queue="q", durable=True, arguments={"x-expires": 5})
    pair.pump()
    ((number, name, arguments),) = pair.heard_by_server()
    assert (number, name, arguments["queue"], arguments["durable"]) == (
        1,
        "queue.declare",
        "q",
        True,
    )
    pair.server.send(1, "queue.declare-ok", queue="q", message_count=3, consumer_count=1)
    pair.pump()
    ((_, name, arguments),) = pair.heard_by_client()
    assert name == "queue.declare-ok"
    assert arguments == {"queue": "q", "message_count": 3, "consumer_count": 1}


def test_settlements_are_sent_before_later_frames() -> None:
    pair = open_pair()
    _deliver(pair, 1, b"x")
    pair.pump()
    pair.client.channels[1].settlements.ack(1)
    pair.client.send(1, "channel.close", reply_code=200)
    pair.pump()
    assert [getattr(event, "name", "") for event in pair.seen_by_server] == [
        "basic.ack",
        "channel.close",
    ]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", 501),
        (b"AMQP\x00\x01\x00\x00", 501),
        (b"\x09\x00\x00\x00\x00\x00\x00\xce", 501),
        (b"\x00\x00\x00\x00\x00\x00\x00\xce", 501),
        (b"\x01\x00\x01\xff\xff\xff\xff", 501),
        (b"\x08\x00\x00\x00\x00\x00\x00\x00", 501),
        (b"\x08\x00\x01\x00\x00\x00\x00\xce", 505),
        (b"\x01\x00\x01\x00\x00\x00\x02\x00\x3c\xce", 501),
        (b"\x01\x00\x01\x00\x00\x00\x04\x00\x63\x00\x01\xce", 503),
        (_method("queue.declare", queue="q"), 503),
        (_method("queue.declare-ok"), 503),
        (_method("basic.get-empty"), 503),
        (_method("connection.blocked", channel=1, reason="x"), 503),
        (_method("connection.tune", channel=0), 503),
        (_method("channel.open-ok"), 504),
        (_method("basic.ack", channel=9, delivery_tag=1), 504),
        (b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c" + bytes(12) + b"\xce", 505),
        (b"\x03\x00\x01\x00\x00\x00\x01x\xce", 505),
        (b"\x03\x00\x05\x00\x00\x00\x01x\xce", 505),
        (b"\x01\x00\x01\x00\x00\x00\x05\x00\x3c\x00\x50\x00\xce", 501),
    ],
)
def test_protocol_violation_closes_connection(raw: bytes, code: int) -> None:
    pair = open_pair()
    assert _violation(pair, raw).code == code
    closing = pair.client.take()
    assert closing[7:11] == b"\x00\x0a\x00\x32"
    assert int.from_bytes(closing[11:13], "big") == code
    assert pair.client.state is ConnectionState.CLOSED
    assert pair.client.receive(_method("basic.ack", delivery_tag=1)) == []


def test_events_before_violation_are_delivered() -> None:
    pair = open_pair()
    sound = _method("basic.ack", delivery_tag=1)
    ack, violation = pair.client.receive(sound + b"garbage!")
    assert isinstance(ack, SettlementReceived)
    assert isinstance(violation, Violation)


def _begun(pair: Pair, size: int) -> bytes:
    method = _method("basic.deliver", consumer_tag="c", delivery_tag=1)
    header = b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + b"\x00\x00"
    return method + frame(2, 1, header)


def test_method_within_message_is_a_violation() -> None:
    pair = open_pair()
    raw = _begun(pair, 10) + _method("basic.ack", delivery_tag=1)
    assert _violation(pair, raw).code == 505


def test_body_longer_than_announced_is_refused() -> None:
    pair = open_pair()
    assert _violation(pair, _begun(pair, 3) + frame(3, 1, b"four")).code == 501


def test_second_header_is_refused() -> None:
    pair = open_pair()
    header = b"\x00\x3c\x00\x00" + (3).to_bytes(8, "big") + b"\x00\x00"
    assert _violation(pair, _begun(pair, 3) + frame(2, 1, header)).code == 505


def test_header_of_another_class_is_refused() -> None:
    pair = open_pair()
    method = _method("basic.deliver", consumer_tag="c", delivery_tag=1)
    header = b"\x00\x0a\x00\x00" + (3).to_bytes(8, "big") + b"\x00\x00"
    assert _violation(pair, method + frame(2, 1, header)).code == 505


def test_oversized_body_is_refused_at_its_header() -> None:
    pair = open_pair(limits=Limits(body_max=1000))
    assert _violation(pair, _begun(pair, 1001)).code == 506
    pair = open_pair(limits=Limits(body_max=1000))
    body = frame(3, 1, b"x" * 1001)
    assert _violation(pair, _begun(pair, 1001) + body).code == 506


def test_unfinished_messages_are_limited_in_total() -> None:
    pair = open_pair(limits=Limits(partial_max=1000))
    assert _violation(pair, _begun(pair, 5000) + frame(3, 1, b"x" * 1001)).code == 506


def test_finished_messages_do_not_count_toward_limit() -> None:
    pair = open_pair(limits=Limits(partial_max=1000))
    for _ in range(5):
        raw = _begun(pair, 600) + frame(3, 1, b"x" * 300) + frame(3, 1, b"x" * 300)
        assert [type(event) for event in pair.client.receive(raw)] == [Delivered]


def test_too_many_pending_requests_are_refused() -> None:
    pair = open_pair(limits=Limits(requests_max=3))
    for _ in range(3):
        pair.server.receive(_method("queue.declare", queue="q"))
    (found,) = pair.server.receive(_method("queue.declare", queue="q"))
    assert isinstance(found, Violation)
    assert found.code == 506


def test_channels_beyond_channel_max_are_refused() -> None:
    """It is the number of channels, not the highest number."""
    pair = open_pair()
    (found,) = pair.server.receive(_method("channel.open", channel=65_535))
    assert isinstance(found, MethodReceived)
    pair.server.tune(frame_max=131_072, channel_max=2)
    (found,) = pair.server.receive(_method("channel.open", channel=2))
    assert isinstance(found, Violation)
    assert found.code == 530


def test_headers_beyond_frame_are_refused_by_sender() -> None:
    pair = open_pair()
    method = _method("basic.publish", exchange="x")
    with pytest.raises(ProtocolError, match="one frame"):
        pair.client.content(1, method, b"x" * 131_061, b"")
    pair.client.content(1, method, _PROPERTIES, b"")
    pair.pump()
    assert [type(event) for event in pair.seen_by_server] == [Published]


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (1, "queue.declare-ok"),
        (1, "channel.open"),
        (2, "queue.declare"),
        (0, "connection.start-ok"),
    ],
)
def test_sender_refuses_methods_of_other_side(number: int, name: str) -> None:
    pair = open_pair()
    with pytest.raises(ProtocolError):
        pair.client.send(number, name)


def test_server_answers_wrong_protocol_header() -> None:
    server = WireConnection(Side.SERVER)
    assert server.receive(b"AM") == []
    (found,) = WireConnection(Side.SERVER).receive(b"GET / HTTP/1.1\r\n")
    assert isinstance(found, Violation)
    (found,) = server.receive(b"QP\x01\x01\x00\x09")
    assert isinstance(found, Violation)
    assert server.take() == b"AMQP\x00\x00\x09\x01"


def test_client_names_other_protocol_version() -> None:
    client = WireConnection(Side.CLIENT)
    (found,) = client.receive(b"AMQP\x00\x01\x00\x00")
    assert isinstance(found, Violation)
    assert "AMQP 1.0.0" in str(found.error)


def test_channel_state_follows_close_from_either_side() -> None:
    pair = open_pair(channels=2)
    pair.server.send(1, "channel.close", reply_code=404, reply_text="NOT_FOUND")
    pair.client.send(2, "channel.close", reply_code=200)
    pair.pump()
    assert 1 not in pair.client.channels
    assert 1 not in pair.server.channels
    assert pair.client.channels.get(2) is None
    pair.client.send(1, "channel.open")
    pair.pump()
    assert pair.server.channels[1].state is ChannelState.OPENING
