"""Messages on their way to a client, as frames. This is a hot path, so most results are cached."""

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
"""Encoded pairs of exchange and routing key that are kept: a few hundred kilobytes at most per client."""
_NO_ROUTE = b"NO_ROUTE"


def short_text(text: str) -> bytes:
    """A short string with its length. Bytes that are not UTF-8 are unchanged.

    Only a dead-letter routing key can be too long, because it is an argument. It is cut.
    """
    raw = text.encode("utf-8", "surrogateescape")[:255]
    return bytes((len(raw),)) + raw


def confirm_frame(channel: int, tag: int, *, stored: bool, multiple: bool = False) -> bytes:
    return _settled(1, channel, 13, _ACK if stored else _NACK, tag, multiple, 0xCE)


class Envelopes:
    """Writes the frames before and after the bodies of one client's messages.

    Routes and the last properties are cached, because they rarely change in a busy queue.
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
        """The method frame of `basic.deliver`. `consumer` is the tag as a short string."""
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
