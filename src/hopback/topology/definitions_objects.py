"""The objects of a definitions file: how each is read, and how we write it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from hopback.topology.arguments import decode_table
from hopback.topology.located import Located
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType
from hopback.topology.wording import either

if TYPE_CHECKING:
    from hopback.fields import FieldValue
    from hopback.topology.located import Table

__all__ = ["SECTIONS", "Definable", "canonical", "identity", "parse", "same_json", "thaw"]

Definable: TypeAlias = "Exchange | Queue | Binding | Policy"
"""What a definitions file can define and a topology holds."""

SECTIONS = ("exchanges", "queues", "bindings", "policies")
"""The sections of a definitions file that a topology models."""


def thaw(value: object) -> object:
    """A copy in dicts, lists and plain values, as the `json` module writes them."""
    match value:
        case Mapping():
            return {str(key): thaw(inner) for key, inner in value.items()}
        case list() | tuple():
            return [thaw(item) for item in value]
        case bool():
            return value
        case int() | float() | str():
            return next(kind(value) for kind in (int, float, str) if isinstance(value, kind))
    return value


def same_json(one: object, other: object) -> bool:
    """Whether both are the same JSON: `1`, `1.0` and `true` differ, the order of keys does not."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def identity(item: Definable) -> object:
    """What tells the objects of a section apart."""
    if isinstance(item, Binding):
        arguments = repr(sorted(item.arguments.items(), key=repr))
        return (item.source, item.destination, item.to_exchange, item.routing_key, arguments)
    return item.name


def canonical(item: Definable, vhost: str | None) -> dict[str, object]:
    """An object as we write it; `vhost` is named only in files of a whole broker."""
    home: dict[str, object] = {} if vhost is None else {"vhost": vhost}
    if isinstance(item, Binding):
        return {"source": item.source, **home, **_binding_fields(item)}
    if isinstance(item, Exchange):
        return {"name": item.name, **home, **_exchange_fields(item)}
    if isinstance(item, Queue):
        return {"name": item.name, **home, **_queue_fields(item)}
    return {**home, "name": item.name, **_policy_fields(item)}


def _exchange_fields(exchange: Exchange) -> dict[str, object]:
    return {
        "type": str(exchange.type),
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": thaw(exchange.arguments),
    }


def _queue_fields(queue: Queue) -> dict[str, object]:
    return {
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "arguments": thaw(queue.declared_arguments),
    }


def _binding_fields(binding: Binding) -> dict[str, object]:
    return {
        "destination": binding.destination,
        "destination_type": "exchange" if binding.to_exchange else "queue",
        "routing_key": binding.routing_key,
        "arguments": thaw(binding.arguments),
    }


def _policy_fields(policy: Policy) -> dict[str, object]:
    return {
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": thaw(policy.definition),
        "priority": policy.priority,
    }


def parse(section: str, place: Located) -> Definable | None:
    """The object of this section at this place; None for a queue type that we do not model."""
    table = place.table()
    match section:
        case "exchanges":
            return _exchange(table)
        case "queues":
            return _queue(table)
        case "bindings":
            return _binding(table)
    return _policy(table)


def _table(place: Located) -> dict[str, FieldValue]:
    return decode_table(place, marks=False)


def _exchange(table: Table) -> Exchange:
    return Exchange(
        table.need("name", Located.text, ""),
        type=table.need("type", Located.text, "direct", "an exchange type"),
        durable=table.read("durable", Located.flag, True),
        auto_delete=table.read("auto_delete", Located.flag, False),
        internal=table.read("internal", Located.flag, False),
        arguments=table.read("arguments", _table, {}),
    )


def _queue(table: Table) -> Queue | None:
    arguments: dict[str, FieldValue] = table.read("arguments", _table, {})
    kind = table.read("type", Located.text, QueueType.CLASSIC.value)
    told = arguments.pop("x-queue-type", kind)
    if not isinstance(told, str):
        table.place.inner("arguments", None).inner("x-queue-type", told).wrong("text")
    elif told not in tuple(QueueType):
        return None
    return Queue(
        table.need("name", Located.text, ""),
        type=QueueType(told) if isinstance(told, str) else QueueType.CLASSIC,
        durable=table.read("durable", Located.flag, True),
        auto_delete=table.read("auto_delete", Located.flag, False),
        arguments=arguments,
    )


def _binding(table: Table) -> Binding:
    return Binding(
        table.need("source", Located.text, ""),
        table.need("destination", Located.text, ""),
        table.read("routing_key", Located.text, ""),
        table.read("destination_type", _is_exchange, False),
        table.read("arguments", _table, {}),
    )


def _is_exchange(place: Located) -> bool:
    if place.value not in ("queue", "exchange"):
        place.wrong(either(("queue", "exchange")))
    return place.value == "exchange"


def _policy(table: Table) -> Policy:
    return Policy(
        table.need("name", Located.text, ""),
        pattern=table.need("pattern", Located.text, "", "a regular expression"),
        definition=table.need("definition", _table, {}, "a table of policy keys"),
        priority=table.read("priority", Located.integer, 0),
        apply_to=table.read("apply-to", Located.text, "all"),
    )
