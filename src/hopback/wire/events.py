"""Events of a connection."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from hopback.errors import ProtocolError
from hopback.message import Properties
from hopback.wire.frames import undecodable
from hopback.wire.methods import BY_ID
from hopback.wire.properties import decode_properties

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


_tag_and_bit = struct.Struct(">QB").unpack_from
_unpack_u32 = struct.Struct(">I").unpack_from
_unpack_u16 = struct.Struct(">H").unpack_from


class Content:
    """Base class of all messages."""

    __slots__ = ("_properties", "_route", "body", "channel", "raw_properties")

    channel: int
    body: bytes
    raw_properties: bytes
    """The encoded properties. They can be published again without decoding."""
    _route: bytes
    _properties: Properties | None

    def __init__(self, channel: int, route: bytes, raw_properties: bytes, body: bytes) -> None:
        self.channel = channel
        self._route = route
        self.raw_properties = raw_properties
        self.body = body
        self._properties = None

    @property
    def exchange(self) -> str:
        route = self._route
        return route[1 : 1 + route[0]].decode("utf-8", "surrogateescape")

    @property
    def routing_key(self) -> str:
        route = self._route
        return route[2 + route[0] :].decode("utf-8", "surrogateescape")

    @property
    def properties(self) -> Properties:
        """The properties. They are decoded on first access, or kept as bytes if they are invalid."""
        found = self._properties
        if found is None:
            try:
                found = decode_properties(self.raw_properties)
            except ProtocolError:
                found = Properties(opaque_headers=self.raw_properties)
            self._properties = found
        return found

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} channel={self.channel} exchange={self.exchange!r} "
            f"routing_key={self.routing_key!r} body={len(self.body)} bytes>"
        )


class Delivered(Content):
    """A basic.deliver method with its message.

    The channel sets `queue`, and the consumer sets `session_ended`.
    """

    __slots__ = ("consumer", "queue", "redelivered", "session_ended", "tag")

    def __init__(
        self,
        channel: int,
        tag: int,
        redelivered: bool,
        consumer: bytes,
        route: bytes,
        raw_properties: bytes,
        body: bytes,
    ) -> None:
        self.channel = channel
        self.tag: int = tag
        self.redelivered: bool = redelivered
        self.consumer: bytes = consumer
        self._route = route
        self.raw_properties = raw_properties
        self.body = body
        self._properties = None
        self.queue: str = ""

    session_ended: asyncio.Event


class Got(Delivered):
    """A basic.get-ok method with its message.

    `remaining` is the number of messages left in the queue.
    """

    __slots__ = ("remaining",)

    remaining: int


class ReturnedMessage(Content):
    """A basic.return method with its message."""

    __slots__ = ("code", "text")

    code: int
    text: str


class Published(Content):
    """A basic.publish method with its message."""

    __slots__ = ("immediate", "mandatory")

    mandatory: bool
    immediate: bool


def _check_route(route: bytes) -> bytes:
    """Check that the bytes contain exactly two short strings."""
    at = 1 + route[0]
    if at + 1 + route[at] != len(route):
        raise ProtocolError("expected an exchange and a routing key, got other bytes")
    return route


def _read_deliver(channel: int, method: bytes, properties: bytes, body: bytes) -> Delivered:
    at = 1 + method[0]
    tag, bit = _tag_and_bit(method, at)
    route = method[at + 9 :]
    middle = 1 + route[0]
    if middle + 1 + route[middle] != len(route):
        _check_route(route)
    return Delivered(channel, tag, bit & 1 == 1, method[1:at], route, properties, body)


def _read_get_ok(channel: int, method: bytes, properties: bytes, body: bytes) -> Got:
    tag, bit = _tag_and_bit(method, 0)
    found = Got(channel, tag, bit & 1 == 1, b"", _check_route(method[9:-4]), properties, body)
    (found.remaining,) = _unpack_u32(method, len(method) - 4)
    return found


def _read_return(channel: int, method: bytes, properties: bytes, body: bytes) -> ReturnedMessage:
    at = 3 + method[2]
    found = ReturnedMessage(channel, _check_route(method[at:]), properties, body)
    (found.code,) = _unpack_u16(method, 0)
    found.text = method[3:at].decode("utf-8", "replace")
    return found


def _read_publish(channel: int, method: bytes, properties: bytes, body: bytes) -> Published:
    found = Published(channel, _check_route(method[2:-1]), properties, body)
    found.mandatory = method[-1] & 1 == 1
    found.immediate = method[-1] & 2 == 2
    return found


_READERS: dict[int, Callable[[int, bytes, bytes, bytes], Content]] = {
    (60 << 16) | 60: _read_deliver,
    (60 << 16) | 71: _read_get_ok,
    (60 << 16) | 50: _read_return,
    (60 << 16) | 40: _read_publish,
}


def read_content(
    method_id: int, channel: int, method: bytes, properties: bytes, body: bytes
) -> Content:
    """Decode a message from its method arguments, properties and body."""
    try:
        return _READERS[method_id](channel, method, properties, body)
    except (ProtocolError, IndexError, struct.error):
        raise undecodable(method_id, BY_ID[method_id].name, method) from None


@dataclass(frozen=True, slots=True)
class HeaderReceived:
    """The protocol header of a client was received."""

    channel: int = 0


@dataclass(frozen=True, slots=True)
class MethodReceived:
    channel: int
    name: str
    arguments: dict[str, Any]


class SettlementReceived:
    """A basic.ack, basic.nack or basic.reject method was received."""

    __slots__ = ("channel", "multiple", "name", "requeue", "tag")

    def __init__(self, channel: int, name: str, tag: int, multiple: bool, requeue: bool) -> None:
        self.channel: int = channel
        self.name: str = name
        self.tag: int = tag
        self.multiple: bool = multiple
        self.requeue: bool = requeue

    def __repr__(self) -> str:
        return (
            f"<{self.name} channel={self.channel} tag={self.tag} multiple={self.multiple} "
            f"requeue={self.requeue}>"
        )


@dataclass(frozen=True, slots=True)
class Violation:
    """The peer violated the protocol. A connection.close has been queued."""

    error: ProtocolError
    code: int
    channel: int = 0


Event: TypeAlias = (
    HeaderReceived
    | MethodReceived
    | SettlementReceived
    | Violation
    | Delivered
    | Got
    | Published
    | ReturnedMessage
)
