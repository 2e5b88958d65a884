"""How a server greets a client: what it says of itself, and what it will bear from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hopback import __version__
from hopback.wire.frames import Limits

if TYPE_CHECKING:
    from hopback.broker.server.house import House
    from hopback.fields import Headers

__all__ = ["client_name", "server_properties", "wire_limits"]

_CAPABILITIES: Headers = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


def wire_limits(house: House) -> Limits:
    """Twice the largest body is read, so that RabbitMQ's own words can be said about it."""
    limits = house.limits
    largest = limits.message_bytes or house.node.profile.max_body_bytes
    return Limits(
        frame_max=limits.frame_max,
        receive_max=limits.frame_max,
        channel_max=limits.channels,
        body_max=2 * largest,
        partial_max=4 * largest,
        requests_max=65_536,
    )


def server_properties(house: House) -> Headers:
    """What clients look at: `product` and `version` decide how some of them behave."""
    return {
        "capabilities": _CAPABILITIES,
        "cluster_name": house.cluster_name,
        "information": "Hopback's embedded broker, for development and tests; not RabbitMQ itself.",
        "platform": f"Hopback {__version__}",
        "product": "RabbitMQ",
        "version": house.full_version,
    }


def client_name(told: dict[str, Any], peer: str) -> str:
    """What the client calls itself, or else where it is."""
    name = told.get("connection_name")
    return name if isinstance(name, str) else peer
