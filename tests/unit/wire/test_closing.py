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


def test_close_is_answered_at_once() -> None:
    pair = open_pair()
    pair.server.send(1, "channel.close", reply_code=404, reply_text="NOT_FOUND")
    pair.pump()
    assert _names(pair) == (["channel.close"], ["channel.close-ok"])
    pair.server.send(0, "connection.close", reply_code=320, reply_text="CONNECTION_FORCED")
    pair.pump()
    assert _names(pair) == (["connection.close"], ["connection.close-ok"])
    assert pair.client.state is pair.server.state is ConnectionState.CLOSED


def test_channel_closed_by_both_sides_ends_cleanly() -> None:
    pair = open_pair()
    pair.client.send(1, "channel.close", reply_code=200)
    pair.server.send(1, "channel.close", reply_code=406, reply_text="PRECONDITION_FAILED")
    pair.pump()
    assert pair.client.channels == {}
    assert pair.server.channels == {}
    assert pair.client.state is pair.server.state is ConnectionState.OPEN


def test_connection_closed_by_both_sides_ends_cleanly() -> None:
    pair = open_pair()
    pair.client.send(0, "connection.close", reply_code=200)
    pair.server.send(0, "connection.close", reply_code=320)
    pair.pump()
    assert pair.client.state is pair.server.state is ConnectionState.CLOSED


def test_frames_before_close_ok_are_ignored() -> None:
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


def test_close_drops_incomplete_message() -> None:
    pair = open_pair()
    deliver = encode_arguments(METHODS["basic.deliver"], {"consumer_tag": "c", "delivery_tag": 1})
    pair.client.receive(frame(METHOD, 1, deliver))
    pair.server.send(1, "channel.close", reply_code=541, reply_text="INTERNAL_ERROR")
    pair.pump()
    assert [name for _, name, _ in pair.heard_by_client()] == ["channel.close"]
    assert pair.client.channels == {}


def test_cancel_by_server_is_reported_and_answered_on_request() -> None:
    """RabbitMQ requests no answer."""
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


def test_blocked_is_reported_and_flow_is_answered() -> None:
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


def test_update_secret_is_sent_and_answered() -> None:
    pair = open_pair()
    pair.client.send(0, "connection.update-secret", new_secret="token", reason="rotated")
    pair.pump()
    ((_, _, arguments),) = pair.heard_by_server()
    assert arguments == {"new_secret": b"token", "reason": "rotated"}
    pair.server.send(0, "connection.update-secret-ok")
    pair.pump()
    assert pair.seen_by_client == [MethodReceived(0, "connection.update-secret-ok", {})]


def test_heartbeats_are_not_events() -> None:
    pair = open_pair()
    pair.server.heartbeat()
    pair.pump()
    assert pair.seen_by_client == []
    assert pair.client.channels[1].state is ChannelState.OPEN


def test_deliveries_on_closing_connection_are_ignored() -> None:
    pair = open_pair()
    pair.client.send(0, "connection.close", reply_code=200)
    deliver = encode_arguments(METHODS["basic.deliver"], {"consumer_tag": "c", "delivery_tag": 1})
    pair.server.content(1, frame(METHOD, 1, deliver), b"\x00\x00", b"whole")
    assert pair.client.receive(pair.server.take()) == []
    pair.pump()
    assert pair.client.state is ConnectionState.CLOSED


def test_frames_on_channel_closed_by_broker_are_ignored_until_reopened() -> None:
    """RabbitMQ 4.3 sends deliveries after its close, also between the next open and its answer."""
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
