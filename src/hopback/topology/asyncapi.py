"""Export a topology as an AsyncAPI 3.0 document.

The document contains a channel for each queue and for each binding of an exchange to a queue.
AsyncAPI does not support arguments and failure plans. They are added as `x-hopback`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hopback.durations import format_duration
from hopback.topology.arguments import remove_non_json_arguments
from hopback.topology.delays import is_delay_queue, schedule_queue_name
from hopback.topology.model import Exchange, ExchangeType, Queue, Topology
from hopback.topology.roles import QueueRole, queue_roles

if TYPE_CHECKING:
    from hopback.fields import FieldValue

_AMQP = "0.3.0"
_KNOWN_TYPES = frozenset({*ExchangeType, "default"})

Schema = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """The schemas of a message and its reply."""

    name: str
    payload: Schema | None = None
    reply: Schema | None = None


@dataclass(frozen=True, slots=True)
class OutputSchema:
    """The schema of a message published by the handler of `queue`."""

    queue: str
    exchange: str
    routing_key: str
    message: MessageSchema


@dataclass(frozen=True, slots=True)
class PayloadSchemas:
    """The schemas of all messages."""

    queues: Mapping[str, Sequence[MessageSchema]] = field(default_factory=dict)
    outputs: Sequence[OutputSchema] = ()
    shared: Mapping[str, object] = field(default_factory=dict)


def write_asyncapi(
    topology: Topology,
    *,
    version: str = "1.0.0",
    payloads: PayloadSchemas | None = None,
    internal: bool = False,
) -> dict[str, object]:
    """Create an AsyncAPI document.

    Arguments that JSON cannot represent are omitted.

    Args:
        topology: The topology.
        version: The version of the API.
        payloads: Schemas of the messages.
        internal: Whether to include retry, dead-letter, delay and schedule queues.
    """
    payloads = payloads or PayloadSchemas()
    topology, _ = remove_non_json_arguments(topology)
    names = _Names()
    roles = queue_roles(topology)
    schedules = {schedule_queue_name(queue.name) for queue in topology.queues}
    shown = [
        queue
        for queue in topology.queues
        if internal or not (_is_internal(queue.name, roles) or queue.name in schedules)
    ]
    destinations = {queue.name for queue in shown}
    channels: dict[str, object] = {}
    operations: dict[str, object] = {}
    for exchange in topology.exchanges:
        to_queues = [
            each
            for each in topology.bindings
            if each.source == exchange.name
            and not each.to_exchange
            and each.destination in destinations
        ]
        for key in sorted({each.routing_key for each in to_queues}):
            taken = [
                message
                for each in to_queues
                if each.routing_key == key
                for message in payloads.queues.get(each.destination, ())
            ]
            channels[names.of(f"{exchange.name} {key}")] = _entrance(exchange, key, taken)
    for queue in shown:
        ident = names.of(queue.name)
        taken = list(payloads.queues.get(queue.name, ()))
        channels[ident] = _queue_channel(queue, roles[queue.name], taken)
        if roles[queue.name] in {QueueRole.MAIN, QueueRole.PLAIN}:
            receive = _receive(topology, queue, ident)
            replies = [
                MessageSchema(f"reply to {one.name}", one.reply)
                for one in taken
                if one.reply is not None
            ]
            if replies:
                reply = names.of(f"{queue.name} reply")
                channels[reply] = {"address": None, "messages": _messages(replies)}
                receive["reply"] = {
                    "address": {"location": "$message.header#/replyTo"},
                    "channel": {"$ref": f"#/channels/{reply}"},
                }
            operations[f"receive_{ident}"] = receive
    for (exchange_name, key), outputs in _outputs_by_address(payloads).items():
        ident = names.of(f"send {exchange_name} {key}")
        declared = next((one for one in topology.exchanges if one.name == exchange_name), None)
        messages = [one.message for one in outputs]
        channels[ident] = _entrance(declared or exchange_name, key, messages)
        operations[ident] = {
            "action": "send",
            "channel": {"$ref": f"#/channels/{ident}"},
            "x-hopback": {"handlers": sorted({one.queue for one in outputs})},
        }
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


def _is_internal(queue: str, roles: Mapping[str, QueueRole]) -> bool:
    """Return True if the queue is only used by Hopback or by operators."""
    return roles[queue] in {QueueRole.RETRY, QueueRole.DEAD_LETTER} or is_delay_queue(queue)


def _outputs_by_address(
    payloads: PayloadSchemas,
) -> Mapping[tuple[str, str], Sequence[OutputSchema]]:
    found: dict[tuple[str, str], list[OutputSchema]] = {}
    for one in payloads.outputs:
        found.setdefault((one.exchange, one.routing_key), []).append(one)
    return found


def _receive(topology: Topology, queue: Queue, ident: str) -> dict[str, object]:
    receive: dict[str, object] = {"action": "receive", "channel": {"$ref": f"#/channels/{ident}"}}
    plan = topology.plan(queue.name)
    if plan is not None:
        receive["x-hopback"] = {
            "attempts": plan.attempts,
            "waits": [format_duration(tier.delay_ms) for tier in plan.tiers],
            "deadLetterQueue": plan.parking.queue,
        }
    return receive


def _messages(taken: Sequence[MessageSchema]) -> dict[str, object]:
    """Map an id to each message."""
    names = _Names()
    found: dict[str, object] = {}
    for one in taken:
        payload = {} if one.payload is None else {"payload": dict(one.payload)}
        found[names.of(one.name)] = {"name": one.name, **payload}
    return found


class _Names:
    """Generates unique ids that are valid in AsyncAPI."""

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
    exchange: Exchange | str, key: str, taken: Sequence[MessageSchema]
) -> dict[str, object]:
    if isinstance(exchange, str):  # the default exchange, or an exchange of another application
        described: dict[str, object] = {"name": exchange}
    else:
        described = {
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
    queue: Queue, role: QueueRole, taken: Sequence[MessageSchema]
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
    """Convert mapping proxies and tuples, which the JSON encoder does not accept."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
