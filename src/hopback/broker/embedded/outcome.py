"""The node's refusals and verdicts as the errors of the broker port."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.broker.embedded.journal import EventKind
from hopback.errors import (
    AccessRefused,
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

if TYPE_CHECKING:
    from hopback.broker.embedded.refusal import Refusal
    from hopback.errors import BrokerError
    from hopback.message import Message, Properties

__all__ = [
    "channel_error",
    "connection_error",
    "interrupted",
    "persistent",
    "refused",
    "timed_out",
]

_BY_CODE: dict[int, type[ChannelClosed]] = {
    403: AccessRefused,
    404: NotFound,
    405: ResourceLocked,
    406: PreconditionFailed,
}


def channel_error(refusal: Refusal) -> ChannelClosed:
    """The error for a channel that the broker closed."""
    return _BY_CODE.get(refusal.code, ChannelClosed)(refusal.code, refusal.text)


def connection_error(refusal: Refusal) -> ConnectionLost:
    """The error for a connection that the broker closed."""
    return ConnectionLost(f"connection closed by the broker: {refusal.code} {refusal.text}")


def refused(verdict: EventKind, message: Message) -> Returned | Nacked:
    """The error for a publish that no queue took."""
    if verdict is EventKind.RETURNED:
        return Returned(message.exchange, message.routing_key)
    return Nacked(f"refused (nack) by the broker: {_route(message)}")


def interrupted(message: Message, error: BrokerError | None) -> PublishInterrupted:
    """The error for a publish whose channel ended first."""
    why = error or "the channel was closed"
    interruption = PublishInterrupted(f"not answered: {_route(message)}: {why}")
    interruption.__cause__ = error
    return interruption


def timed_out(message: Message, timeout: float) -> ConfirmTimeout:
    """The error for a publish that the broker never answered."""
    return ConfirmTimeout(f"no confirm within {timeout:g} s for {_route(message)}")


def persistent(properties: Properties) -> Properties:
    """The same properties, persistent: that is how a client of the port publishes by default."""
    return replace(properties, delivery_mode=2)


def _route(message: Message) -> str:
    return f"exchange {message.exchange!r}, routing key {message.routing_key!r}"
