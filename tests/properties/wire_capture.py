"""A real session with RabbitMQ 3.10.8: what it said after the channels were open.

Declarations, publishes with every header type, confirms, a return, deliveries that went round a
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
_ASKED = {
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
_OWED = {number: [METHODS[name].replies for name in names] for number, names in _ASKED.items()}


def listening_client() -> WireConnection:
    """A client that has asked all that the capture answers; made without a handshake, for speed."""
    client = WireConnection(Side.CLIENT)
    client.take()
    client.state = ConnectionState.OPEN
    for number, replies in _OWED.items():
        channel = client.channels[number] = ChannelCore(number)
        channel.enter(ChannelState.OPEN)
        channel.owed[Side.SERVER].extend(replies)
    return client
