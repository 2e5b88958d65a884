"""Errors raised by the broker, with the same text as RabbitMQ's.

Errors close the channel, or the whole connection if AMQP requires it. The texts were recorded from
RabbitMQ, so programs that parse them work with both brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

from hopback.broker.embedded.journal import EventKind
from hopback.errors import (
    AccessRefused,
    BrokerError,
    ChannelClosed,
    ConfirmTimeout,
    ConnectionLost,
    Nacked,
    NotFound,
    PreconditionFailed,
    PublishInterrupted,
    ResourceLocked,
    Returned,
)
from hopback.fields import (
    FieldValue,
    Float32,
    Int8,
    Int16,
    Int32,
    LongStr,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
)

if TYPE_CHECKING:
    from hopback.message import Message, Properties


_BY_CODE: dict[int, type[ChannelClosed]] = {
    403: AccessRefused,
    404: NotFound,
    405: ResourceLocked,
    406: PreconditionFailed,
}


def channel_error(refusal: Refusal) -> ChannelClosed:
    return _BY_CODE.get(refusal.code, ChannelClosed)(refusal.code, refusal.text)


def connection_error(refusal: Refusal) -> ConnectionLost:
    """Return the error for a connection that was closed by the broker."""
    return ConnectionLost(
        f"connection closed by the broker: {refusal.code} {refusal.text}", code=refusal.code
    )


def publish_refused(verdict: EventKind, message: Message) -> Returned | Nacked:
    """Return the error for an unroutable message."""
    if verdict is EventKind.RETURNED:
        return Returned(message.exchange, message.routing_key)
    return Nacked(f"refused (nack) by the broker: {_route(message)}")


def publish_interrupt(message: Message, error: BrokerError | None) -> PublishInterrupted:
    """Return the error for a message that was not confirmed before the channel was closed."""
    why = error or "the channel was closed"
    interruption = PublishInterrupted(f"not answered: {_route(message)}: {why}")
    interruption.__cause__ = error
    return interruption


def publish_timeout(message: Message, timeout: float) -> ConfirmTimeout:
    """Return the error for a message that was never confirmed."""
    return ConfirmTimeout(f"no confirm within {timeout:g} s for {_route(message)}")


def persistent(properties: Properties) -> Properties:
    """Make a message persistent, which is the default for clients of this broker."""
    return replace(properties, delivery_mode=2)


def _route(message: Message) -> str:
    return f"exchange {message.exchange!r}, routing key {message.routing_key!r}"


_TYPE_NAMES: dict[type, str] = {
    bool: "bool",
    Int8: "byte",
    UInt8: "unsignedbyte",
    Int16: "short",
    UInt16: "unsignedshort",
    Int32: "signedint",
    UInt32: "unsignedint",
    int: "long",
    UInt64: "unsignedlong",
    Float32: "float",
    float: "double",
    Decimal: "decimal",
    str: "longstr",
    LongStr: "longstr",
    bytes: "binary",
    Timestamp: "timestamp",
    type(None): "void",
}


class Refusal(Exception):
    """The broker closes the channel or connection with this code and text."""

    def __init__(self, code: int, text: str, *, connection: bool = False) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text
        self.connection = connection


def access_refused(detail: str) -> Refusal:
    return Refusal(403, f"ACCESS_REFUSED - {detail}")


def no_such(place: str) -> Refusal:
    return Refusal(404, f"NOT_FOUND - no {place}")


def resource_locked(place: str) -> Refusal:
    """Return 405. The queue belongs to another connection, or was declared with a different
    exclusivity.
    """
    return Refusal(
        405,
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked {place}."
        " It could be originally declared on another connection or the exclusive property value"
        " does not match that of the original declaration.",
    )


def precondition_failed(detail: str) -> Refusal:
    return Refusal(406, f"PRECONDITION_FAILED - {detail}")


def frame_error(size: int, limit: int) -> Refusal:
    """Return 501. The properties and headers of a message do not fit into one frame."""
    text = f"FRAME_ERROR - type 2, all octets = <<>>: {{frame_too_large,{size},{limit}}}"
    return Refusal(501, text, connection=True)


def command_invalid(detail: str) -> Refusal:
    return Refusal(503, f"COMMAND_INVALID - {detail}", connection=True)


def not_allowed(detail: str) -> Refusal:
    return Refusal(530, f"NOT_ALLOWED - {detail}", connection=True)


def internal_error() -> Refusal:
    return Refusal(541, "INTERNAL_ERROR", connection=True)


def not_implemented(detail: str) -> Refusal:
    return Refusal(540, f"NOT_IMPLEMENTED - {detail}", connection=True)


def where(kind: str, name: str, vhost: str) -> str:
    """Format the name of a queue or exchange like the broker does."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def type_name(value: FieldValue) -> str:
    """Return the broker's name for the AMQP type of a value."""
    known = _TYPE_NAMES.get(type(value))
    if known is not None:
        return known
    return "table" if isinstance(value, Mapping) else "array"
