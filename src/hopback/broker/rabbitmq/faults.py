"""RabbitMQ's refusals as our errors, in its own words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.errors import (
    AccessRefused,
    ChannelClosed,
    ConnectionLost,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["channel_fault", "connection_fault"]

_BY_CODE: dict[int, type[ChannelClosed]] = {
    403: AccessRefused,
    404: NotFound,
    405: ResourceLocked,
    406: PreconditionFailed,
}


def channel_fault(code: int, text: str) -> ChannelClosed:
    """The error for a channel.close."""
    return _BY_CODE.get(code, ChannelClosed)(code, text)


def connection_fault(arguments: Mapping[str, object]) -> ConnectionLost:
    """The error for a connection.close."""
    return ConnectionLost(
        f"connection closed by the broker: {arguments['reply_code']} {arguments['reply_text']}"
    )
