"""An AMQP 0-9-1 implementation for clients and servers.

`WireConnection` implements the protocol without I/O. `Wire` connects it to an asyncio transport.
This package is only used by `hopback.broker` and the tests.
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
