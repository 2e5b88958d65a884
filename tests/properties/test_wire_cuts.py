"""Valid frames give the same events and answers regardless of the read boundaries."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from hopback.wire import Event, MethodReceived, Side, Violation, WireConnection
from hopback.wire.channel import ChannelCore
from hopback.wire.events import Content
from hopback.wire.frames import (
    BODY,
    HEADER,
    HEARTBEAT_FRAME,
    METHOD,
    ChannelState,
    ConnectionState,
    frame,
)
from hopback.wire.methods import METHODS, encode_arguments
from tests.properties.hostile import no_deadline

_CHANNELS = (1, 2, 7)


def _method(channel: int, name: str, **arguments: Any) -> bytes:
    return frame(METHOD, channel, encode_arguments(METHODS[name], arguments))


_bodies = st.lists(st.binary(min_size=1, max_size=12), max_size=3)


def _content(method: bytes, channel: int, pieces: list[bytes]) -> list[bytes]:
    """Return the frames of one message with these body frames."""
    size = len(b"".join(pieces)).to_bytes(8, "big")
    header = frame(HEADER, channel, b"\0\x3c\0\0" + size + b"\x20\x00\x00\x00\x00\x03\x01kV")
    return [method, header, *(frame(BODY, channel, piece) for piece in pieces)]


def _client_frames(channel: int) -> st.SearchStrategy[list[bytes]]:
    """Frames that a client sends on an open channel."""
    alone = (
        _method(channel, "basic.qos", prefetch_count=3),
        _method(channel, "queue.declare", queue="q", arguments={"x-max-length": 1}),
        _method(channel, "queue.declare", queue="q", nowait=True),
        _method(channel, "basic.ack", delivery_tag=1, multiple=True),
        _method(channel, "basic.nack", delivery_tag=2, requeue=True),
        _method(channel, "basic.reject", delivery_tag=3),
        _method(channel, "basic.get", queue="q"),
        _method(channel, "tx.select"),
    )
    publish = _method(channel, "basic.publish", routing_key="q", mandatory=True)
    return st.one_of(
        st.sampled_from(alone).map(lambda found: [found]),
        _bodies.map(lambda pieces: _content(publish, channel, pieces)),
        st.just([_method(channel, "channel.close"), _method(channel, "channel.open")]),
    )


def _server_frames(channel: int) -> st.SearchStrategy[list[bytes]]:
    """Frames that a server sends on a channel with pending requests for each of them."""
    alone = (
        _method(channel, "queue.declare-ok", queue="q", message_count=1),
        _method(channel, "basic.ack", delivery_tag=1, multiple=True),
        _method(channel, "basic.nack", delivery_tag=2),
        _method(channel, "basic.cancel", consumer_tag="c"),
        _method(channel, "channel.flow", active=True),
        _method(0, "connection.blocked", reason="low on memory"),
        _method(0, "connection.unblocked"),
    )
    deliver = _method(channel, "basic.deliver", consumer_tag="c", delivery_tag=1, routing_key="q")
    returned = _method(channel, "basic.return", reply_code=312, reply_text="NO_ROUTE")
    return st.one_of(
        st.sampled_from(alone).map(lambda found: [found]),
        _bodies.map(lambda pieces: _content(deliver, channel, pieces)),
        _bodies.map(lambda pieces: _content(returned, channel, pieces)),
    )


@st.composite
def _interleave(draw: st.DrawFn, side: Side) -> list[bytes]:
    """Interleave several channels and heartbeats. The order within each channel is kept."""
    lanes = []
    for channel in draw(st.lists(st.sampled_from(_CHANNELS), unique=True, max_size=3)):
        frames = _client_frames(channel) if side is Side.CLIENT else _server_frames(channel)
        lane = [part for parts in draw(st.lists(frames, max_size=4)) for part in parts]
        if side is Side.CLIENT:
            lane.insert(0, _method(channel, "channel.open"))
        if draw(st.booleans()):
            lane.append(_method(channel, "channel.close", reply_code=404, reply_text="gone"))
        lanes.append(lane)
    lanes.append([HEARTBEAT_FRAME] * draw(st.integers(0, 4)))
    order = draw(st.permutations([n for n, lane in enumerate(lanes) for _ in lane]))
    iterators = [iter(lane) for lane in lanes]
    mixed = [next(iterators[lane]) for lane in order]
    if draw(st.booleans()):
        mixed.append(_method(0, "connection.close", reply_code=200))
    return mixed


def _server() -> WireConnection:
    server = WireConnection(Side.SERVER)
    server.state = ConnectionState.OPEN
    return server


def _client() -> WireConnection:
    """Return a client whose channels wait for more answers than a test sends."""
    client = WireConnection(Side.CLIENT)
    client.take()
    client.state = ConnectionState.OPEN
    for number in _CHANNELS:
        channel = client.channels[number] = ChannelCore(number)
        channel.enter(ChannelState.OPEN)
        channel.owed[Side.SERVER].extend([METHODS["queue.declare"].replies] * 9)
    return client


def _result(core: WireConnection, pieces: list[bytes]) -> tuple[list[str], bytes]:
    """Return every event and every byte of the answers. Events are handled after each read."""
    events: list[Event] = []
    answers = b""
    for piece in pieces:
        found = core.receive(piece)
        while True:
            for event in found:
                _answer(core, event)
            answers += core.take()
            events += found
            if not core.unread:
                break
            found = core.receive(b"")
    assert not [event for event in events if isinstance(event, Violation)]
    assert core.unfinished_bytes == 0
    return [_describe(event) for event in events], answers


def _answer(core: WireConnection, event: Event) -> None:
    """Grant every request, as a server does."""
    if core.role is Side.SERVER and isinstance(event, MethodReceived):
        method = METHODS[event.name]
        if method.awaits_reply(event.arguments) and not event.name.endswith(".close"):
            core.send(event.channel, method.replies[-1])


def _describe(event: Event) -> str:
    if isinstance(event, Content):
        return f"{event!r} {event.raw_properties!r} {event.body!r}"
    return repr(event)


def _cut(frames: list[bytes], cuts: list[float]) -> list[bytes]:
    stream = b"".join(frames)
    edges = sorted({0, *(round(cut * len(stream)) for cut in cuts), len(stream)})
    return [stream[low:high] for low, high in itertools.pairwise(edges)]


_cuts = st.lists(st.floats(0, 1), max_size=12)
_open, _close = _method(1, "channel.open"), _method(1, "channel.close")


@given(_interleave(Side.CLIENT), _cuts)
@example([_open, _method(1, "tx.select"), HEARTBEAT_FRAME], [])
@example([_open, _close, HEARTBEAT_FRAME], [])
@no_deadline
def test_cut_frames_give_a_server_the_same_events_and_answers(
    frames: list[bytes], cuts: list[float]
) -> None:
    expected = _result(_server(), frames)
    stream = b"".join(frames)
    assert _result(_server(), _cut(frames, cuts)) == expected
    assert _result(_server(), [stream[at : at + 1] for at in range(len(stream))]) == expected


@given(_interleave(Side.SERVER), _cuts)
@no_deadline
def test_cut_frames_give_a_client_the_same_events_and_answers(
    frames: list[bytes], cuts: list[float]
) -> None:
    expected = _result(_client(), frames)
    stream = b"".join(frames)
    assert _result(_client(), _cut(frames, cuts)) == expected
    assert _result(_client(), [stream[at : at + 1] for at in range(len(stream))]) == expected
