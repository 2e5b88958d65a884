"""A recorded session with RabbitMQ 3.10.8: the server's bytes after the channels were open.

It contains declarations, publishes with every header type, confirms, a return, deliveries through a
retry queue, gets, a recover, a cancel by the server and a channel closed with 404.
"""

from __future__ import annotations

from pathlib import Path

from hopback.wire import Side, WireConnection
from hopback.wire.channel import ChannelCore
from hopback.wire.frames import ChannelState, ConnectionState
from hopback.wire.methods import METHODS

__all__ = ["CAPTURE", "listening_client"]

CAPTURE = (Path(__file__).parent / "wire_capture.bin").read_bytes()
_REQUESTS = {
    1: [
        "confirm.select",
        *["queue.delete"] * 2,
        *["queue.declare"] * 2,
        "basic.qos",
        "basic.consume",
        "basic.cancel",
        *["basic.get"] * 3,
        "basic.recover",
        "queue.purge",
        "exchange.declare",
        "queue.bind",
        "queue.unbind",
        "exchange.delete",
        "basic.consume",
    ],
    2: ["confirm.select", *["queue.delete"] * 2, "queue.declare"],
}
_REPLIES = {
    number: [METHODS[name].replies for name in names] for number, names in _REQUESTS.items()
}


def listening_client() -> WireConnection:
    """Return a client that has sent all requests of the capture. Without a handshake, for speed."""
    client = WireConnection(Side.CLIENT)
    client.take()
    client.state = ConnectionState.OPEN
    for number, replies in _REPLIES.items():
        channel = client.channels[number] = ChannelCore(number)
        channel.enter(ChannelState.OPEN)
        channel.owed[Side.SERVER].extend(replies)
    return client
