"""Runtime parameters of a definitions file: shovels, federation upstreams, operator policies.

A topology does not model them; they stay in its `foreign` part. Whoever judges a topology has to
know them all the same, because they move, limit and delete messages. Reading never raises: what is
not as a broker writes it is not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.topology.definitions import RECORD
from hopback.topology.model import Policy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.topology.model import Topology

__all__ = ["Parameter", "operator_policies", "parameters"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a component such as `shovel`."""

    name: str
    value: Mapping[str, object]

    def text(self, key: str) -> str | None:
        """A text in it; None where it is missing or of another type."""
        found = self.value.get(key)
        return found if isinstance(found, str) else None


def parameters(topology: Topology, component: str) -> Iterator[Parameter]:
    """The parameters of a component in the topology's own virtual host."""
    record = topology.foreign.get(RECORD)
    home = record.get("vhost") if isinstance(record, Mapping) else None
    entries = topology.foreign.get("parameters")
    for entry in entries if isinstance(entries, list | tuple) else ():
        if not isinstance(entry, Mapping) or entry.get("component") != component:
            continue
        name, value = entry.get("name"), entry.get("value")
        if (
            entry.get("vhost", home) == home
            and isinstance(name, str)
            and isinstance(value, Mapping)
        ):
            yield Parameter(name, value)


def operator_policies(topology: Topology) -> tuple[Policy, ...]:
    """The policies that operators lay over the others; definitions hold them as parameters."""
    return tuple(_policies(topology))


def _policies(topology: Topology) -> Iterator[Policy]:
    for each in parameters(topology, "operator_policy"):
        pattern, definition = each.text("pattern"), each.value.get("definition")
        priority = each.value.get("priority", 0)
        if pattern is not None and isinstance(definition, Mapping) and isinstance(priority, int):
            yield Policy(each.name, pattern, definition, priority, each.text("apply-to") or "all")
