"""Frames of the server are readable by the client."""

from __future__ import annotations

import pytest

from hopback.broker.server.outgoing import Envelopes, confirm_frame, short_text
from hopback.message import Properties, Received
from hopback.wire import Side, WireConnection
from hopback.wire.channel import ChannelCore
from hopback.wire.events import Delivered, ReturnedMessage
from hopback.wire.frames import ChannelState, ConnectionState


def _reading() -> WireConnection:
    """A client with channel 3 open."""
    client = WireConnection(Side.CLIENT)
    client.state = ConnectionState.OPEN
    channel = client.channels[3] = ChannelCore(3)
    channel.enter(ChannelState.OPEN)
    return client


def _sent(method: bytes, properties: Properties, body: bytes) -> object:
    server = WireConnection(Side.SERVER)
    server.content(3, method, Envelopes().properties(properties), body)
    [event] = _reading().receive(server.take())
    return event


@pytest.mark.parametrize("route", [("", "q"), ("é", "k" * 255), ("e\udcff", "\udc80")])
@pytest.mark.parametrize("size", [0, 5, 400_000])
def test_delivery_round_trips(route: tuple[str, str], size: int) -> None:
    properties = Properties(headers={"a": [1]}, message_id="m")
    sent = Received("", *route, b"x" * size, properties, True, tag=2**40)
    found = _sent(Envelopes().deliver(3, short_text("consumer"), sent), properties, sent.body)
    assert isinstance(found, Delivered)
    assert (found.exchange, found.routing_key) == route
    assert (found.tag, found.redelivered, found.consumer) == (2**40, True, b"consumer")
    assert (found.body, found.properties) == (sent.body, properties)


def test_return_round_trips() -> None:
    found = _sent(Envelopes().return_frame(3, "e", "k"), Properties(), b"m")
    assert isinstance(found, ReturnedMessage)
    assert (found.code, found.text) == (312, "NO_ROUTE")
    assert (found.exchange, found.routing_key) == ("e", "k")


def test_confirms_round_trip() -> None:
    frames = confirm_frame(3, 7, stored=True, multiple=True) + confirm_frame(3, 8, stored=False)
    ack, nack = _reading().receive(frames)
    assert str(ack) == "<basic.ack channel=3 tag=7 multiple=True requeue=False>"
    assert str(nack) == "<basic.nack channel=3 tag=8 multiple=False requeue=False>"


def test_too_long_route_is_truncated() -> None:
    """Only a dead-letter routing key can be too long."""
    assert short_text("k" * 300) == b"\xff" + b"k" * 255


def test_cache_of_routes_is_bounded() -> None:
    envelopes = Envelopes()
    for number in range(2000):
        envelopes.return_frame(3, "e", str(number))
    assert len(envelopes._routes) <= 512
