"""Encode messages for clients. Most results are cached, because this is called for each delivery."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from hopback.wire.properties import encode_properties

if TYPE_CHECKING:
    from hopback.message import Delivery, Properties

_head = struct.Struct(">BHII").pack
_tag_and_bit = struct.Struct(">QB").pack
_count = struct.Struct(">I").pack
_settled = struct.Struct(">BHIIQBB").pack
_code = struct.Struct(">H").pack

_DELIVER, _GET_OK, _RETURN = (60 << 16) | 60, (60 << 16) | 71, (60 << 16) | 50
_ACK, _NACK = (60 << 16) | 80, (60 << 16) | 120
_ROUTES = 512
"""Maximum number of cached pairs of exchange and routing key. They need a few hundred kilobytes per
client.
"""
_NO_ROUTE = b"NO_ROUTE"


def short_text(text: str) -> bytes:
    """Encode a short string. Bytes that are not valid UTF-8 are not changed.

    Only a dead-letter routing key may be too long, because it comes from an argument. It is
    truncated.
    """
    raw = text.encode("utf-8", "surrogateescape")[:255]
    return bytes((len(raw),)) + raw


def confirm_frame(channel: int, tag: int, *, stored: bool, multiple: bool = False) -> bytes:
    return _settled(1, channel, 13, _ACK if stored else _NACK, tag, multiple, 0xCE)


class Envelopes:
    """Encodes the frames before and after a message body.

    The routes and the last properties are cached. They rarely change while a queue is busy.
    """

    __slots__ = ("_properties", "_raw", "_routes")

    def __init__(self) -> None:
        self._routes: dict[tuple[str, str], bytes] = {}
        self._properties: Properties | None = None
        self._raw = b""

    def properties(self, properties: Properties) -> bytes:
        if properties is not self._properties:
            self._raw = encode_properties(properties)
            self._properties = properties
        return self._raw

    def deliver(self, channel: int, consumer: bytes, taken: Delivery) -> bytes:
        """Encode the `basic.deliver` method. `consumer` is the tag as a short string."""
        route = self._route(taken.exchange, taken.routing_key)
        return b"".join(
            (
                _head(1, channel, 13 + len(consumer) + len(route), _DELIVER),
                consumer,
                _tag_and_bit(taken.tag, taken.redelivered),
                route,
                b"\xce",
            )
        )

    def get_ok(self, channel: int, taken: Delivery, remaining: int) -> bytes:
        route = self._route(taken.exchange, taken.routing_key)
        return b"".join(
            (
                _head(1, channel, 17 + len(route), _GET_OK),
                _tag_and_bit(taken.tag, taken.redelivered),
                route,
                _count(remaining),
                b"\xce",
            )
        )

    def return_frame(self, channel: int, exchange: str, routing_key: str) -> bytes:
        payload = b"".join(
            (_code(312), bytes((len(_NO_ROUTE),)), _NO_ROUTE, self._route(exchange, routing_key))
        )
        return _head(1, channel, 4 + len(payload), _RETURN) + payload + b"\xce"

    def _route(self, exchange: str, routing_key: str) -> bytes:
        found = self._routes.get((exchange, routing_key))
        if found is None:
            if len(self._routes) >= _ROUTES:
                self._routes.clear()
            found = short_text(exchange) + short_text(routing_key)
            self._routes[exchange, routing_key] = found
        return found
