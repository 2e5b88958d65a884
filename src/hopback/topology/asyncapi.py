"""A topology as an AsyncAPI 3.0 document: the entry points of messages and the consumed queues.

Each binding of an exchange to a queue is a channel with its routing key. Each queue is a channel, too.
Facts that AsyncAPI cannot express (arguments, dead-letter paths, failure plans) are under `x-hopback`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hopback.durations import format_duration
from hopback.topology.arguments import without_what_json_lacks
from hopback.topology.model import Exchange, ExchangeType, Queue, Topology
from hopback.topology.roles import QueueRole, queue_roles

if TYPE_CHECKING:
    from hopback.fields import FieldValue

_AMQP = "0.3.0"
_KNOWN_TYPES = frozenset({*ExchangeType, "default"})


@dataclass(frozen=True, slots=True)
class PayloadSchemas:
    """JSON Schemas of handler payloads by queue, and the schemas they refer to by name."""

    queues: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    shared: Mapping[str, object] = field(default_factory=dict)


def write_asyncapi(
    topology: Topology, *, version: str = "1.0.0", payloads: PayloadSchemas | None = None
) -> dict[str, object]:
    """Return the document. `version` is the version of the user's API.

    Each schema of `payloads` describes the messages of its queue and of the routing keys that lead
    there. Arguments that JSON cannot express are left out.
    """
    payloads = payloads or PayloadSchemas()
    topology, _ = without_what_json_lacks(topology)
    names = _Names()
    roles = queue_roles(topology)
    channels: dict[str, object] = {}
    operations: dict[str, object] = {}
    for exchange in topology.exchanges:
        to_queues = [
            each
            for each in topology.bindings
            if each.source == exchange.name and not each.to_exchange
        ]
        for key in sorted({each.routing_key for each in to_queues}):
            taken = {
                each.destination: payloads.queues[each.destination]
                for each in to_queues
                if each.routing_key == key and each.destination in payloads.queues
            }
            channels[names.of(f"{exchange.name} {key}")] = _entrance(exchange, key, taken)
    for queue in topology.queues:
        ident = names.of(queue.name)
        taken = {name: payloads.queues[name] for name in (queue.name,) if name in payloads.queues}
        channels[ident] = _queue_channel(queue, roles[queue.name], taken)
        if roles[queue.name] in {QueueRole.MAIN, QueueRole.PLAIN}:
            receive: dict[str, object] = {
                "action": "receive",
                "channel": {"$ref": f"#/channels/{ident}"},
            }
            plan = topology.plan(queue.name)
            if plan is not None:
                receive["x-hopback"] = {
                    "attempts": plan.attempts,
                    "waits": [format_duration(tier.delay_ms) for tier in plan.tiers],
                    "deadLetterQueue": plan.parking.queue,
                }
            operations[f"receive_{ident}"] = receive
    document: dict[str, object] = {
        "asyncapi": "3.0.0",
        "info": {"title": topology.name, "version": version},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
    }
    if payloads.shared:
        document["components"] = {"schemas": dict(payloads.shared)}
    return document


def _messages(taken: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    """Return one message for each queue whose handler declares a payload type."""
    return {
        re.sub(r"[^A-Za-z0-9_-]+", "_", queue): {"name": queue, "payload": dict(schema)}
        for queue, schema in taken.items()
    }


class _Names:
    """Ids that AsyncAPI allows, each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def of(self, text: str) -> str:
        plain = re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_") or "unnamed"
        ident, number = plain, 1
        while ident in self._taken:
            number += 1
            ident = f"{plain}_{number}"
        self._taken.add(ident)
        return ident


def _entrance(
    exchange: Exchange, key: str, taken: Mapping[str, Mapping[str, object]]
) -> dict[str, object]:
    described: dict[str, object] = {
        "name": exchange.name,
        "durable": exchange.durable,
        "autoDelete": exchange.auto_delete,
    }
    if exchange.type in _KNOWN_TYPES:
        described["type"] = str(exchange.type)
    return {
        "address": key,
        "messages": _messages(taken),
        "bindings": {"amqp": {"is": "routingKey", "exchange": described, "bindingVersion": _AMQP}},
    }


def _queue_channel(
    queue: Queue, role: QueueRole, taken: Mapping[str, Mapping[str, object]]
) -> dict[str, object]:
    return {
        "address": queue.name,
        "messages": _messages(taken),
        "bindings": {
            "amqp": {
                "is": "queue",
                "queue": {
                    "name": queue.name,
                    "durable": queue.durable,
                    "exclusive": queue.exclusive,
                    "autoDelete": queue.auto_delete,
                },
                "bindingVersion": _AMQP,
            }
        },
        "x-hopback": {
            "role": role.value,
            "type": queue.type.value,
            "arguments": {name: _plain(value) for name, value in queue.arguments.items()},
        },
    }


def _plain(value: FieldValue) -> object:
    """Mapping proxies and tuples as a JSON encoder wants them."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
