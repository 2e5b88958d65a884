"""AMQP 0-9-1: a sans-I/O library for both roles, and the asyncio shell that owns the socket.

`WireConnection` converts bytes to events and commands to bytes without I/O. `Wire` connects it to a
socket. Only `hopback.broker.rabbitmq`, the broker's server side and the conformance suite use this
package.
"""

from __future__ import annotations

from hopback.wire.connection import WireConnection
from hopback.wire.events import (
    Delivered,
    Event,
    Got,
    HeaderReceived,
    MethodReceived,
    Published,
    ReturnedMessage,
    SettlementReceived,
    Violation,
)
from hopback.wire.frames import Limits
from hopback.wire.handshake import Credentials
from hopback.wire.methods import Side
from hopback.wire.url import Address, parse_url

__all__ = [
    "Address",
    "Credentials",
    "Delivered",
    "Event",
    "Got",
    "HeaderReceived",
    "Limits",
    "MethodReceived",
    "Published",
    "ReturnedMessage",
    "SettlementReceived",
    "Side",
    "Violation",
    "WireConnection",
    "parse_url",
]
