"""Connections, channels and consumers, as RabbitMQ's management API tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from hopback.broker.embedded.refusal import Refusal
from hopback.broker.server.json_values import NODE, plain, table

if TYPE_CHECKING:
    from hopback.broker.embedded.consumers import QueueConsumer
    from hopback.broker.embedded.node import Node
    from hopback.broker.server.channel import ServerChannel
    from hopback.broker.server.client import Client
    from hopback.broker.server.served import ServedBroker

__all__ = ["channels", "close", "connections", "consumers", "of_connection", "of_user"]

_Object: TypeAlias = dict[str, Any]


def connections(broker: ServedBroker, node: Node) -> list[_Object]:
    """`/api/connections`: everybody who has logged in to a virtual host."""
    return [_connection(client) for client in _clients(broker, node)]


def _clients(broker: ServedBroker, node: Node) -> list[Client]:
    return [
        client
        for client in broker.clients
        if client.session is not None and client.session.node is node
    ]


def _connection(client: Client) -> _Object:
    session = client.session
    assert session is not None  # noqa: S101 - only those who have logged in are listed
    given = client.properties.get("connection_name")
    return {
        "name": client.name,
        **({"user_provided_name": given} if isinstance(given, str) else {}),
        "user": session.user,
        "user_who_performed_action": session.user,
        "vhost": session.node.vhost,
        "node": NODE,
        "type": "network",
        "protocol": "AMQP 0-9-1",
        "state": "blocked" if client.is_blocked else "running",
        "channels": len(session.channels),
        "channel_max": client.core.channel_max,
        "frame_max": client.core.frame_max,
        "timeout": client.heartbeat,
        "ssl": False,
        "auth_mechanism": client.mechanism,
        "host": client.here[0],
        "port": client.here[1],
        "peer_host": client.peer,
        "peer_port": client.peer_port,
        "connected_at": client.connected_at_ms,
        "client_properties": table(client.properties),
    }


def of_connection(broker: ServedBroker, name: str) -> Client | None:
    """Who has that name."""
    found = (client for client in broker.clients if client.session is not None)
    return next((client for client in found if client.name == name), None)


def of_user(broker: ServedBroker, name: str) -> list[Client]:
    """All of one user."""
    return [
        each for each in broker.clients if each.session is not None and each.session.user == name
    ]


def close(client: Client, reason: str) -> None:
    """End a connection as an operator does."""
    words = f"CONNECTION_FORCED - {reason or 'Closed via management plugin'}"
    client.refuse(Refusal(320, words, connection=True))


def channels(broker: ServedBroker, node: Node) -> list[_Object]:
    """`/api/channels`."""
    return [
        _channel(channel) for client in _clients(broker, node) for channel in client.open_channels
    ]


def _channel(channel: ServerChannel) -> _Object:
    client, state = channel.client, channel.state
    return {
        "name": channel.name,
        "number": channel.number,
        "user": state.session.user,
        "vhost": state.node.vhost,
        "node": NODE,
        "state": "running",
        "connection_details": _details(client),
        "consumer_count": len(state.consumers),
        "messages_unacknowledged": len(state.unacked),
        "messages_unconfirmed": 0,
        "messages_uncommitted": 0,
        "acks_uncommitted": 0,
        "prefetch_count": state.prefetch,
        "global_prefetch_count": state.ceiling,
        "confirm": channel.confirming,
        "transactional": channel.transaction is not None,
        "consumer_details": [_consumer(each, channel) for each in state.consumers.values()],
    }


def _details(client: Client) -> _Object:
    return {"name": client.name, "peer_host": client.peer, "peer_port": client.peer_port}


def consumers(broker: ServedBroker, node: Node) -> list[_Object]:
    """`/api/consumers`."""
    return [
        _consumer(each, channel)
        for client in _clients(broker, node)
        for channel in client.open_channels
        for each in channel.state.consumers.values()
    ]


def _consumer(found: QueueConsumer, channel: ServerChannel) -> _Object:
    return {
        "consumer_tag": plain(found.tag),
        "queue": {"name": found.queue.name, "vhost": channel.state.node.vhost},
        "ack_required": not found.no_ack,
        "prefetch_count": found.prefetch,
        "exclusive": found.exclusive,
        "active": True,
        "activity_status": "up",
        "arguments": table(found.arguments),
        "channel_details": {
            "name": channel.name,
            "number": channel.number,
            "user": channel.state.session.user,
            "node": NODE,
            "connection_name": channel.client.name,
            "peer_host": channel.client.peer,
            "peer_port": channel.client.peer_port,
        },
    }
