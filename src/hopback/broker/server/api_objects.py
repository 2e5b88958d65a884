"""What is in the broker, as RabbitMQ's management API tells it."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote_plus

from hopback import __version__
from hopback.broker.embedded.settings import policy_for
from hopback.broker.server.api_connections import channels, connections, consumers
from hopback.broker.server.json_values import NODE, plain, table
from hopback.topology.model import Exchange

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.embedded.queue import LiveQueue
    from hopback.broker.server.house import House
    from hopback.topology.model import Binding, Policy

__all__ = [
    "LISTS",
    "SINGLE",
    "alarms",
    "bindings_between",
    "definitions",
    "permissions",
    "properties_key",
    "queue",
    "users",
]

_Object: TypeAlias = dict[str, Any]
_DEFAULT = Exchange("")


def _overview(house: House) -> _Object:
    """`/api/overview`."""
    node = house.node
    ready = sum(len(each.ready) for each in node.queues.values())
    unacked = sum(each.unacked for each in node.queues.values())
    return {
        "management_version": house.full_version,
        "rabbitmq_version": house.full_version,
        "product_name": "RabbitMQ",
        "product_version": house.full_version,
        "hopback_version": __version__,
        "cluster_name": house.cluster_name,
        "erlang_version": "",
        "node": NODE,
        "object_totals": {
            "channels": sum(len(session.channels) for session in node.sessions),
            "connections": len(node.sessions),
            "consumers": sum(len(each.rota.consumers) for each in node.queues.values()),
            "exchanges": len(node.wiring.exchanges) + 1,
            "queues": len(node.queues),
        },
        "queue_totals": {
            "messages": ready + unacked,
            "messages_ready": ready,
            "messages_unacknowledged": unacked,
        },
    }


def alarms(house: House) -> _Object:
    """`/api/health/checks/alarms`, without its status."""
    if not house.blocked:
        return {"status": "ok"}
    alarm = {"node": NODE, "resource": "memory"}
    return {"status": "failed", "reason": "There are alarms", "alarms": [alarm]}


def _queues(house: House) -> list[_Object]:
    """`/api/queues`."""
    return [queue(house, each) for each in house.node.queues.values()]


def queue(house: House, found: LiveQueue) -> _Object:
    """One queue."""
    kind = "quorum" if found.is_quorum else "classic"
    arguments = table(found.arguments)
    if house.node.profile.version.major >= 4:
        arguments = {**arguments, "x-queue-type": kind}
    return {
        "name": found.name,
        "vhost": "/",
        "type": kind,
        "durable": found.durable,
        "auto_delete": found.auto_delete,
        "exclusive": found.owner is not None,
        "arguments": arguments,
        "node": NODE,
        "state": "down" if found.down else "running",
        **_counts(found),
        **_policy_of(house, found, kind),
        **({"leader": NODE, "members": [NODE], "online": [NODE]} if found.is_quorum else {}),
    }


def _counts(found: LiveQueue) -> _Object:
    ready, held, delayed = len(found.ready), len(found.safe), len(found.delays)
    quorum = {"messages_dlx": held, "messages_delayed": delayed} if found.is_quorum else {}
    return {
        "messages": ready + found.unacked + held + delayed,
        "messages_ready": ready,
        "messages_unacknowledged": found.unacked,
        "message_bytes_ready": found.byte_count,
        "consumers": len(found.rota.consumers),
        **quorum,
    }


def _policy_of(house: House, found: LiveQueue, kind: str) -> _Object:
    kinds = frozenset({"all", "queues", f"{kind}_queues"})
    user = policy_for(house.node.policies.all(), found.name, kinds)
    operator = policy_for(house.node.policies.operators(), found.name, kinds)
    return {
        "policy": None if user is None else user.name,
        "operator_policy": None if operator is None else operator.name,
        "effective_policy_definition": _merged(user, operator),
    }


def _merged(user: Policy | None, operator: Policy | None) -> _Object:
    """The user's keys, and the operator's, of which the smaller number holds."""
    merged: _Object = {} if user is None else table(user.definition)
    for key, value in {} if operator is None else operator.definition.items():
        known = merged.get(key)
        both = isinstance(known, int) and isinstance(value, int)
        merged[key] = min(known, value) if both else plain(value)  # type: ignore[type-var]
    return merged


def _exchanges(house: House) -> list[_Object]:
    """`/api/exchanges`."""
    return [_exchange(each) for each in (_DEFAULT, *house.node.wiring.exchanges.values())]


def _exchange(found: Exchange) -> _Object:
    return {
        "name": found.name,
        "vhost": "/",
        "type": str(found.type),
        "durable": found.durable,
        "auto_delete": found.auto_delete,
        "internal": found.internal,
        "arguments": table(found.arguments),
    }


def _bindings(house: House) -> list[_Object]:
    """`/api/bindings`, those of the default exchange among them."""
    default = [
        {**_binding("", name, name), "arguments": {}, "destination_type": "queue"}
        for name in house.node.queues
    ]
    return [*default, *map(_bound, house.node.wiring.bindings)]


def _binding(source: str, destination: str, key: str) -> _Object:
    return {
        "source": source,
        "vhost": "/",
        "destination": destination,
        "routing_key": plain(key),
        "properties_key": _quoted(key) or "~",
    }


def _bound(found: Binding) -> _Object:
    told: _Object = {
        **_binding(found.source, found.destination, found.routing_key),
        "destination_type": "exchange" if found.to_exchange else "queue",
        "arguments": table(found.arguments),
    }
    if found.arguments:
        told["properties_key"] = properties_key(found)
    return told


def properties_key(found: Binding) -> str:
    """What tells bindings of the same two ends apart in a path: the key, and a hash of arguments."""
    key = _quoted(found.routing_key)
    if not found.arguments:
        return key or "~"
    told = json.dumps(table(found.arguments), sort_keys=True)
    return f"{key}~{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def _quoted(key: str) -> str:
    return quote_plus(str(plain(key)), safe="").replace("~", "%7E")


def bindings_between(
    house: House, *, source: str | None = None, destination: tuple[str, bool] | None = None
) -> list[_Object]:
    """The bindings from an exchange, to a queue or exchange (True for an exchange), or both."""
    kind = None if destination is None else "exchange" if destination[1] else "queue"
    return [
        each
        for each in _bindings(house)
        if source in (None, each["source"])
        and (destination is None or (destination[0], kind) == _end(each))
    ]


def _end(binding: _Object) -> tuple[object, object]:
    return binding["destination"], binding["destination_type"]


def users(house: House) -> list[_Object]:
    """`/api/users`: who may log in may do everything."""
    return [{"name": name, "tags": ["administrator"]} for name in house.users.names]


def permissions(house: House) -> list[_Object]:
    """`/api/permissions`."""
    every = {"configure": ".*", "write": ".*", "read": ".*"}
    return [{"user": name, "vhost": "/", **every} for name in house.users.names]


def _policies(house: House) -> list[_Object]:
    """`/api/policies`."""
    return [_policy(each) for each in house.node.policies.all()]


def _operator_policies(house: House) -> list[_Object]:
    """`/api/operator-policies`."""
    return [_policy(each) for each in house.node.policies.operators()]


def _policy(found: Policy) -> _Object:
    return {
        "vhost": "/",
        "name": found.name,
        "pattern": found.pattern,
        "apply-to": found.apply_to,
        "definition": table(found.definition),
        "priority": found.priority,
    }


def _vhosts(_house: House) -> list[_Object]:
    """`/api/vhosts`: one."""
    return [{"name": "/", "description": "", "tags": [], "tracing": False}]


def _nodes(house: House) -> list[_Object]:
    """`/api/nodes`: one."""
    return [
        {
            "name": NODE,
            "type": "disc",
            "running": True,
            "mem_alarm": house.blocked,
            "disk_free_alarm": False,
            "partitions": [],
            "applications": [],
            "contexts": [],
            "enabled_plugins": [],
        }
    ]


def _feature_flags(_house: House) -> list[_Object]:
    """`/api/feature-flags`: what Hopback looks for is there and enabled."""
    return [{"name": "quorum_queue", "state": "enabled", "stability": "stable", "desc": ""}]


def _none(_house: House) -> list[_Object]:
    """What this broker does not have."""
    return []


def definitions(house: House, users: tuple[str, ...] | None) -> _Object:
    """`/api/definitions`, of the whole broker if `users` are given; never with a password."""
    wiring = house.node.wiring
    named = users is not None
    own = [each for each in wiring.exchanges.values() if not each.name.startswith("amq.")]
    kept = [each for each in house.node.queues.values() if each.owner is None]
    sections = {
        "policies": _policies(house),
        "queues": [_defined(house, each) for each in kept],
        "exchanges": [_exchange(each) for each in own],
        "bindings": [_without(_bound(each), "properties_key") for each in wiring.bindings],
    }
    if not named:
        sections = {
            section: [_without(each, "vhost") for each in found]
            for section, found in sections.items()
        }
    whole = (
        {"users": [{"name": user} for user in users], "vhosts": [{"name": "/"}]} if users else {}
    )
    version = {"rabbit_version": house.full_version, "rabbitmq_version": house.full_version}
    return {**version, "product_name": "RabbitMQ", **whole, "parameters": [], **sections}


def _defined(house: House, found: LiveQueue) -> _Object:
    whole = queue(house, found)
    keys = ("name", "vhost", "durable", "auto_delete", "arguments")
    return {key: whole[key] for key in keys}


def _without(entry: _Object, key: str) -> _Object:
    return {name: value for name, value in entry.items() if name != key}


LISTS: dict[str, Callable[[House], list[_Object]]] = {
    "bindings": _bindings,
    "channels": channels,
    "connections": connections,
    "consumers": consumers,
    "exchanges": _exchanges,
    "operator-policies": _operator_policies,
    "parameters": _none,
    "policies": _policies,
    "queues": _queues,
    "vhost-limits": _none,
}
"""What can be listed, whole or of the virtual host."""

SINGLE: dict[str, Callable[[House], object]] = {
    "cluster-name": lambda house: {"name": house.cluster_name},
    "feature-flags": _feature_flags,
    "nodes": _nodes,
    "overview": _overview,
    "permissions": permissions,
    "users": users,
    "vhosts": _vhosts,
}
"""What there is once."""
