"""The broker's objects and connections in the format of the management API."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote_plus

from hopback import __version__
from hopback.broker.embedded.refusal import Refusal
from hopback.broker.embedded.settings import policy_for
from hopback.broker.server.api_users import (
    NODE,
    permissions,
    plain,
    table,
    topic_permissions,
    users,
)
from hopback.topology.model import Binding, Exchange, Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hopback.broker.embedded.consumers import QueueConsumer
    from hopback.broker.embedded.node import Node
    from hopback.broker.embedded.queue import LiveQueue
    from hopback.broker.server.channel import ServerChannel
    from hopback.broker.server.client import Client
    from hopback.broker.server.served import ServedBroker


def connections(broker: ServedBroker, node: Node) -> list[_Object]:
    """`/api/connections`: the connections of a virtual host that have completed the login."""
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
    found = (client for client in broker.clients if client.session is not None)
    return next((client for client in found if client.name == name), None)


def of_user(broker: ServedBroker, name: str) -> list[Client]:
    return [
        each for each in broker.clients if each.session is not None and each.session.user == name
    ]


def close(client: Client, reason: str) -> None:
    """Close a connection like an operator would."""
    words = f"CONNECTION_FORCED - {reason or 'Closed via management plugin'}"
    client.refuse(Refusal(320, words, connection=True))


def channels(broker: ServedBroker, node: Node) -> list[_Object]:
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
        "connection_details": {
            "name": client.name,
            "peer_host": client.peer,
            "peer_port": client.peer_port,
        },
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


def consumers(broker: ServedBroker, node: Node) -> list[_Object]:
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


_Object: TypeAlias = dict[str, Any]
_DEFAULT = Exchange("")


def _overview(broker: ServedBroker) -> _Object:
    queues = [each for node in broker.nodes for each in node.queues.values()]
    sessions = [session for node in broker.nodes for session in node.sessions]
    ready = sum(len(each.ready) for each in queues)
    unacked = sum(each.unacked for each in queues)
    return {
        "management_version": broker.full_version,
        "rabbitmq_version": broker.full_version,
        "product_name": "RabbitMQ",
        "product_version": broker.full_version,
        "hopback_version": __version__,
        "cluster_name": broker.cluster_name,
        "erlang_version": "",
        "node": NODE,
        "contexts": [{"node": NODE, **each} for each in _contexts(broker)],
        "listeners": listeners(broker),
        "object_totals": {
            "channels": sum(len(session.channels) for session in sessions),
            "connections": len(sessions),
            "consumers": sum(each.consumer_count for each in queues),
            "exchanges": sum(len(node.routing.exchanges) + 1 for node in broker.nodes),
            "queues": len(queues),
        },
        "queue_totals": {
            "messages": ready + unacked,
            "messages_ready": ready,
            "messages_unacknowledged": unacked,
        },
    }


def listeners(broker: ServedBroker) -> list[_Object]:
    return [
        {"node": NODE, "protocol": protocol, "ip_address": broker.settings.host, "port": port}
        for protocol, port in broker.ports.items()
    ]


def _contexts(broker: ServedBroker) -> list[_Object]:
    """The listener that received this request."""
    port = str(broker.ports.get("http", 0))
    where = {"path": "/", "ip": broker.settings.host, "port": port}
    return [{"description": "RabbitMQ Management", **where}]


def _queues(_broker: ServedBroker, node: Node) -> list[_Object]:
    return list(map(queue, node.queues.values()))


def queue(found: LiveQueue) -> _Object:
    kind = "quorum" if found.is_quorum else "classic"
    arguments = table(found.arguments)
    if found.node.profile.version.major >= 4:
        arguments = {**arguments, "x-queue-type": kind}
    ready, held, delayed = len(found.ready), len(found.safe), len(found.delays)
    quorum = {"messages_dlx": held, "messages_delayed": delayed} if found.is_quorum else {}
    return {
        "name": found.name,
        "vhost": found.node.vhost,
        "type": kind,
        "durable": found.durable,
        "auto_delete": found.auto_delete,
        "exclusive": found.owner is not None,
        "arguments": arguments,
        "node": NODE,
        "state": "down" if found.down else "running",
        "messages": ready + found.unacked + held + delayed,
        "messages_ready": ready,
        "messages_unacknowledged": found.unacked,
        "message_bytes_ready": found.byte_count,
        "consumers": found.consumer_count,
        **quorum,
        **_policy_of(found, kind),
        **({"leader": NODE, "members": [NODE], "online": [NODE]} if found.is_quorum else {}),
    }


def _policy_of(found: LiveQueue, kind: str) -> _Object:
    policies = found.node.policies
    kinds = frozenset({"all", "queues", f"{kind}_queues"})
    user = policy_for(policies.all(), found.name, kinds)
    operator = policy_for(policies.operators(), found.name, kinds)
    # Combine the policies of users and operators. If both contain a number, the smaller one
    # applies.
    merged: _Object = {} if user is None else table(user.definition)
    for key, value in {} if operator is None else operator.definition.items():
        known = merged.get(key)
        both = isinstance(known, int) and isinstance(value, int)
        merged[key] = min(known, value) if both else plain(value)  # type: ignore[type-var]
    return {
        "policy": None if user is None else user.name,
        "operator_policy": None if operator is None else operator.name,
        "effective_policy_definition": merged,
    }


def _exchanges(_broker: ServedBroker, node: Node) -> list[_Object]:
    return [_exchange(node, each) for each in (_DEFAULT, *node.routing.exchanges.values())]


def _exchange(node: Node, found: Exchange) -> _Object:
    return {
        "name": found.name,
        "vhost": node.vhost,
        "type": str(found.type),
        "durable": found.durable,
        "auto_delete": found.auto_delete,
        "internal": found.internal,
        "arguments": table(found.arguments),
    }


def _bindings(_broker: ServedBroker, node: Node) -> list[_Object]:
    """`/api/bindings`, including the implicit ones of the default exchange."""
    default = [
        {**_binding(node, "", name, name), "arguments": {}, "destination_type": "queue"}
        for name in node.queues
    ]
    return [*default, *(_bound(node, each) for each in node.routing.bindings)]


def _binding(node: Node, source: str, destination: str, key: str) -> _Object:
    return {
        "source": source,
        "vhost": node.vhost,
        "destination": destination,
        "routing_key": plain(key),
        "properties_key": _quote(key) or "~",
    }


def _bound(node: Node, found: Binding) -> _Object:
    told: _Object = {
        **_binding(node, found.source, found.destination, found.routing_key),
        "destination_type": "exchange" if found.to_exchange else "queue",
        "arguments": table(found.arguments),
    }
    if found.arguments:
        told["properties_key"] = properties_key(found)
    return told


def properties_key(found: Binding) -> str:
    """Return the key of a binding in paths, which consists of the routing key and a hash of the
    arguments.
    """
    key = _quote(found.routing_key)
    if not found.arguments:
        return key or "~"
    told = json.dumps(table(found.arguments), sort_keys=True)
    return f"{key}~{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def _quote(key: str) -> str:
    return quote_plus(str(plain(key)), safe="").replace("~", "%7E")


def bindings_between(
    broker: ServedBroker,
    node: Node,
    *,
    source: str | None = None,
    destination: tuple[str, bool] | None = None,
) -> list[_Object]:
    """Return the bindings of an exchange, of a queue or exchange, or between them.

    If the boolean is True, the destination is an exchange.
    """
    kind = None if destination is None else "exchange" if destination[1] else "queue"
    return [
        each
        for each in _bindings(broker, node)
        if source in (None, each["source"])
        and (
            destination is None
            or (destination[0], kind) == (each["destination"], each["destination_type"])
        )
    ]


def _policies(_broker: ServedBroker, node: Node) -> list[_Object]:
    return [_policy(node, each) for each in node.policies.all()]


def _operator_policies(_broker: ServedBroker, node: Node) -> list[_Object]:
    return [_policy(node, each) for each in node.policies.operators()]


def _policy(node: Node, found: Policy) -> _Object:
    return {
        "vhost": node.vhost,
        "name": found.name,
        "pattern": found.pattern,
        "apply-to": found.apply_to,
        "definition": table(found.definition),
        "priority": found.priority,
    }


def _nodes(broker: ServedBroker) -> list[_Object]:
    return [
        {
            "name": NODE,
            "type": "disc",
            "running": True,
            "mem_alarm": broker.blocked,
            "disk_free_alarm": False,
            "partitions": [],
            "applications": [],
            "contexts": _contexts(broker),
            "enabled_plugins": [],
        }
    ]


def _feature_flags(_broker: ServedBroker) -> list[_Object]:
    """`/api/feature-flags`: the flags that Hopback uses. They are always enabled."""
    return [{"name": "quorum_queue", "state": "enabled", "stability": "stable", "desc": ""}]


def parameters(broker: ServedBroker, node: Node, component: str = "") -> list[_Object]:
    """`/api/parameters`: operator policies and limits. Policies are only included on request."""
    policies, limits = _parameters_of(node, "policy", node.policies.all()), []
    if component != "policy":
        policies = _parameters_of(node, "operator_policy", node.policies.operators())
        limits = _limits_as_parameters(broker, node)
    return [each for each in (*policies, *limits) if component in ("", each["component"])]


def _parameters_of(node: Node, component: str, policies: Iterable[Policy]) -> list[_Object]:
    found = [(each.name, _policy(node, each)) for each in policies]
    keys = ("pattern", "definition", "priority", "apply-to")
    return [
        {
            "value": {key: policy[key] for key in keys},
            "vhost": node.vhost,
            "component": component,
            "name": name,
        }
        for name, policy in found
    ]


def _limits_as_parameters(broker: ServedBroker, node: Node) -> list[_Object]:
    kind = {"component": "vhost-limits", "name": "limits"}
    return [{**each, **kind} for each in _vhost_limits(broker, node)]


def _vhost_limits(broker: ServedBroker, node: Node) -> list[_Object]:
    """`/api/vhost-limits`: virtual hosts for which a limit was ever set."""
    found = broker.vhost_limits.get(node.vhost)
    return [] if found is None else [{"vhost": node.vhost, "value": _limits(broker, found)}]


def user_limits(broker: ServedBroker) -> list[_Object]:
    return [
        {"user": user, "value": limits} for user, limits in broker.user_limits.items() if limits
    ]


def _limits(broker: ServedBroker, found: dict[str, int]) -> object:
    """Return the limits. Before 4.0, RabbitMQ returns a list if there are none."""
    return found or ([] if broker.settings.version.major < 4 else {})


def definitions(broker: ServedBroker) -> _Object:
    """`/api/definitions`: all objects of the broker."""
    sections: dict[str, list[_Object]] = {}
    for node in broker.nodes:
        for section, found in _sections(broker, node).items():
            sections.setdefault(section, []).extend(found)
    return {
        **_version(broker),
        "users": users(broker),
        "vhosts": [{"name": name} for name in broker.vhosts],
        "permissions": permissions(broker),
        "topic_permissions": topic_permissions(broker),
        "parameters": [],
        **sections,
    }


def definitions_of(broker: ServedBroker, node: Node) -> _Object:
    """`/api/definitions/{vhost}`: the objects of a virtual host. They do not contain its name."""
    sections = {
        section: [_without(each, "vhost") for each in found]
        for section, found in _sections(broker, node).items()
    }
    return {**_version(broker), "parameters": [], **sections}


def _version(broker: ServedBroker) -> _Object:
    version = {"rabbit_version": broker.full_version, "rabbitmq_version": broker.full_version}
    return {**version, "product_name": "RabbitMQ"}


def _sections(broker: ServedBroker, node: Node) -> dict[str, list[_Object]]:
    routing = node.routing
    own = [each for each in routing.exchanges.values() if not each.name.startswith("amq.")]
    kept = [each for each in node.queues.values() if each.owner is None]
    return {
        "policies": _policies(broker, node),
        "queues": list(map(_required, kept)),
        "exchanges": [_exchange(node, each) for each in own],
        "bindings": [_without(_bound(node, each), "properties_key") for each in routing.bindings],
    }


def _required(found: LiveQueue) -> _Object:
    whole = queue(found)
    keys = ("name", "vhost", "durable", "auto_delete", "arguments")
    return {key: whole[key] for key in keys}


def _without(entry: _Object, key: str) -> _Object:
    return {name: value for name, value in entry.items() if name != key}


LISTS: dict[str, Callable[[ServedBroker, Node], list[_Object]]] = {
    "bindings": _bindings,
    "channels": channels,
    "connections": connections,
    "consumers": consumers,
    "exchanges": _exchanges,
    "operator-policies": _operator_policies,
    "parameters": parameters,
    "policies": _policies,
    "queues": _queues,
    "vhost-limits": _vhost_limits,
}
"""Lists of objects, for one or all virtual hosts."""

SINGLE: dict[str, Callable[[ServedBroker], object]] = {
    "cluster-name": lambda broker: {"name": broker.cluster_name},
    "feature-flags": _feature_flags,
    "nodes": _nodes,
    "overview": _overview,
    "permissions": permissions,
    "topic-permissions": topic_permissions,
    "users": users,
}
"""Objects that only exist once."""
