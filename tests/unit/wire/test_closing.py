"""Ends of channels and connections, also when both sides want them at once."""

from __future__ import annotations

from hopback.wire.events import Delivered, MethodReceived
from hopback.wire.frames import METHOD, ChannelState, ConnectionState, frame
from hopback.wire.methods import METHODS, encode_arguments
from tests.unit.wire.pair import Pair, open_pair


def _names(pair: Pair) -> tuple[list[str], list[str]]:
    return (
        [name for _, name, _ in pair.heard_by_client()],
        [name for _, name, _ in pair.heard_by_server()],
    )


def test_a_close_is_answered_at_once() -> None:
    """close-ok needs nobody to ask for it, on channels and connections alike."""
    pair = open_pair()
    pair.server.send(1, "channel.close", reply_code=404, reply_text="NOT_FOUND")
    pair.pump()
    assert _names(pair) == (["channel.close"], ["channel.close-ok"])
    pair.server.send(0, "connection.close", reply_code=320, reply_text="CONNECTION_FORCED")
    pair.pump()
    assert _names(pair) == (["connection.close"], ["connection.close-ok"])
    assert pair.client.state is pair.server.state is ConnectionState.CLOSED


def test_a_channel_closed_from_both_sides_at_once_ends_cleanly() -> None:
    """Each answers the other; neither takes the other's answer for a violation."""
    pair = open_pair()
    pair.client.send(1, "channel.close", reply_code=200)
    pair.server.send(1, "channel.close", reply_code=406, reply_text="PRECONDITION_FAILED")
    pair.pump()
    assert pair.client.channels == {}
    assert pair.server.channels == {}
    assert pair.client.state is pair.server.state is ConnectionState.OPEN


def test_a_connection_closed_from_both_sides_at_once_ends_cleanly() -> None:
    """The same for the whole connection."""
    pair = open_pair()
    pair.client.send(0, "connection.close", reply_code=200)
    pair.server.send(0, "connection.close", reply_code=320)
    pair.pump()
    assert pair.client.state is pair.server.state is ConnectionState.CLOSED


def test_whatever_comes_before_the_answer_to_a_close_is_ignored() -> None:
    """Deliveries, replies and half messages on a closing channel neither count nor disturb."""
    pair = open_pair()
    pair.client.send(1, "queue.declare", queue="q")
    pair.pump()
    deliver = encode_arguments(METHODS["basic.deliver"], {"consumer_tag": "c", "delivery_tag": 1})
    pair.server.content(1, frame(METHOD, 1, deliver), b"\x00\x00", b"x" * 200_000)
    pair.server.send(1, "queue.declare-ok", queue="q")
    late = pair.server.take()
    pair.client.send(1, "channel.close", reply_code=200)
    assert pair.client.receive(late) == []
    pair.heard_by_server()
    pair.pump()
    assert _names(pair) == (["channel.close-ok"], ["channel.close"])
    assert pair.client.channels == {}


def test_a_close_drops_a_message_half_received() -> None:
    """A channel that ends in the middle of a message leaves nothing behind."""
    pair = open_pair()
    deliver = encode_arguments(METHODS["basic.deliver"], {"consumer_tag": "c", "delivery_tag": 1})
    pair.client.receive(frame(METHOD, 1, deliver))
    pair.server.send(1, "channel.close", reply_code=541, reply_text="INTERNAL_ERROR")
    pair.pump()
    assert [name for _, name, _ in pair.heard_by_client()] == ["channel.close"]
    assert pair.client.channels == {}


def test_a_cancel_by_the_server_is_told_and_answered_if_it_asks() -> None:
    """RabbitMQ asks for no answer; a server that does gets one, even among our own requests."""
    pair = open_pair()
    pair.client.send(1, "queue.declare", queue="q")
    pair.pump()
    pair.heard_by_server()
    pair.server.send(1, "basic.cancel", consumer_tag="a", nowait=True)
    pair.server.send(1, "basic.cancel", consumer_tag="b")
    pair.server.send(1, "queue.declare-ok", queue="q")
    pair.pump()
    assert pair.heard_by_client() == [
        (1, "basic.cancel", {"consumer_tag": "a", "nowait": True}),
        (1, "basic.cancel", {"consumer_tag": "b", "nowait": False}),
        (1, "queue.declare-ok", {"queue": "q", "message_count": 0, "consumer_count": 0}),
    ]
    assert pair.heard_by_server() == [(1, "basic.cancel-ok", {"consumer_tag": "b"})]


def test_blocking_and_flow_are_told() -> None:
    """connection.blocked reaches whoever publishes; channel.flow is answered."""
    pair = open_pair()
    pair.server.send(0, "connection.blocked", reason="low on memory")
    pair.server.send(0, "connection.unblocked")
    pair.server.send(1, "channel.flow", active=False)
    pair.pump()
    assert [name for _, name, _ in pair.heard_by_client()] == [
        "connection.blocked",
        "connection.unblocked",
        "channel.flow",
    ]
    assert pair.heard_by_server() == [(1, "channel.flow-ok", {"active": False})]


def test_a_secret_can_be_updated() -> None:
    """update-secret goes out and its answer comes back."""
    pair = open_pair()
    pair.client.send(0, "connection.update-secret", new_secret="token", reason="rotated")
    pair.pump()
    ((_, _, arguments),) = pair.heard_by_server()
    assert arguments == {"new_secret": b"token", "reason": "rotated"}
    pair.server.send(0, "connection.update-secret-ok")
    pair.pump()
    assert pair.seen_by_client == [MethodReceived(0, "connection.update-secret-ok", {})]


def test_heartbeats_are_no_events() -> None:
    """They only show that the line lives."""
    pair = open_pair()
    pair.server.heartbeat()
    pair.pump()
    assert pair.seen_by_client == []
    assert pair.client.channels[1].state is ChannelState.OPEN


def test_nothing_is_delivered_once_the_connection_is_closing() -> None:
    """Whole messages that come before the answer to our close are ignored too."""
    pair = open_pair()
    pair.client.send(0, "connection.close", reply_code=200)
    deliver = encode_arguments(METHODS["basic.deliver"], {"consumer_tag": "c", "delivery_tag": 1})
    pair.server.content(1, frame(METHOD, 1, deliver), b"\x00\x00", b"whole")
    assert pair.client.receive(pair.server.take()) == []
    pair.pump()
    assert pair.client.state is ConnectionState.CLOSED


def test_frames_on_a_channel_that_the_broker_closed_are_ignored_until_it_is_opened_again() -> None:
    """RabbitMQ 4.3 sends deliveries after its close, also between our next open and its answer."""
    pair = open_pair()
    deliver = encode_arguments(METHODS["basic.deliver"], {"consumer_tag": "c", "delivery_tag": 1})

    def late(body: bytes) -> bytes:
        pair.server.content(1, frame(METHOD, 1, deliver), b"\x00\x00", body)
        return pair.server.take()

    whole, pieces = late(b"x"), late(b"y" * 200_000)
    pair.server.send(1, "channel.close", reply_code=406, reply_text="timed out")
    pair.pump()
    _names(pair)
    assert pair.client.receive(whole + pieces) == []
    pair.client.send(1, "channel.open")
    opening = pair.client.take()
    assert pair.client.receive(pieces) == []
    pair.server.receive(opening)
    pair.server.send(1, "channel.open-ok")
    pair.pump()
    assert _names(pair)[0] == ["channel.open-ok"]
    (delivered,) = pair.client.receive(whole)
    assert isinstance(delivered, Delivered)
    assert pair.client.state is ConnectionState.OPEN
