"""What JSON cannot carry: AMQP values that a definitions file has no way to write."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

from hopback.fields import Timestamp
from hopback.topology.wording import quoted

if TYPE_CHECKING:
    from hopback.fields import FieldValue, Headers
    from hopback.topology.model import Topology

__all__ = ["without_what_json_lacks"]


def without_what_json_lacks(topology: Topology) -> tuple[Topology, tuple[str, ...]]:
    """The topology without arguments that JSON has no type for, and a note for each.

    A binding goes as a whole: without one of its arguments it would match more than it should.
    """
    notes: list[str] = []
    exchanges = tuple(
        replace(item, arguments=_kept(f"exchange {quoted(item.name)}", item.arguments, notes))
        for item in topology.exchanges
    )
    queues = tuple(
        replace(item, arguments=_kept(f"queue {quoted(item.name)}", item.arguments, notes))
        for item in topology.queues
    )
    policies = tuple(
        replace(item, definition=_kept(f"policy {quoted(item.name)}", item.definition, notes))
        for item in topology.policies
    )
    bindings = tuple(item for item in topology.bindings if _writable(item.arguments))
    notes += [
        f"binding {quoted(item.source)} → {quoted(item.destination)} left out:"
        " JSON cannot carry one of its arguments"
        for item in topology.bindings
        if not _writable(item.arguments)
    ]
    fitting = replace(
        topology, exchanges=exchanges, queues=queues, bindings=bindings, policies=policies
    )
    return fitting, tuple(notes)


def _kept(owner: str, table: Headers, notes: list[str]) -> Headers:
    left_out = [key for key, value in table.items() if not _writable(value)]
    notes += [
        f"{owner}: {quoted(key)} left out: JSON cannot carry a {type(table[key]).__name__}"
        for key in left_out
    ]
    return {key: value for key, value in table.items() if key not in left_out}


def _writable(value: FieldValue) -> bool:
    match value:
        case Timestamp() | Decimal() | bytes():
            return False
        case int():
            return -(2**63) <= value < 2**63
        case float():
            return math.isfinite(value)
        case Mapping():
            return all(_writable(inner) for inner in value.values())
        case list() | tuple():
            return all(_writable(item) for item in value)
    return True
