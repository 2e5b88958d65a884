"""RabbitMQ's definitions.json: read into a topology, and written so that a broker imports it.

Users, permissions, parameters and whatever else a file holds stay in `Topology.foreign` and are
written back. An object that was not changed is written exactly as it was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from hopback.topology.arguments import decode
from hopback.topology.definitions_objects import (
    SECTIONS,
    Definable,
    canonical,
    identity,
    parse,
    same_json,
    thaw,
)
from hopback.topology.definitions_source import choose_vhost, load
from hopback.topology.importable import importable, without_queues
from hopback.topology.json_values import without_what_json_lacks
from hopback.topology.located import Located
from hopback.topology.model import Binding, Exchange, Policy, Queue, Topology, freeze
from hopback.topology.validate import broker_problems

if TYPE_CHECKING:
    from hopback.version import BrokerVersion

__all__ = ["RECORD", "read_definitions", "write_definitions"]

RECORD = "hopback-definitions"
"""The key in `Topology.foreign` that remembers how a file was written: its virtual host, the order
of its keys, and the objects that hold more than our own writing of them would."""


def read_definitions(
    data: Mapping[str, object] | str | bytes, *, vhost: str | None = None, name: str = "definitions"
) -> Topology:
    """The topology of one virtual host in a definitions file; InvalidTopology lists all problems.

    `vhost` chooses where the file holds several. `name` becomes the topology's name.
    """
    root = Located("", load(data, name), [])
    entries = dict(root.entries())
    if RECORD in entries:
        entries[RECORD].wrong("no key of this name, which Hopback keeps for itself")
    chosen = choose_vhost(root, entries, vhost)
    root.check(name)
    reader = _DefinitionsReader(chosen)
    found = {section: reader.section(section, entries.get(section)) for section in SECTIONS}
    rest = {
        key: decode(place, marks=False) for key, place in entries.items() if key not in SECTIONS
    }
    topology = Topology(
        name,
        exchanges=tuple(item for item in found["exchanges"] if isinstance(item, Exchange)),
        queues=tuple(item for item in found["queues"] if isinstance(item, Queue)),
        bindings=tuple(item for item in found["bindings"] if isinstance(item, Binding)),
        policies=tuple(item for item in found["policies"] if isinstance(item, Policy)),
        foreign=_frozen(reader.foreign(rest, keys=tuple(entries))),
    )
    root.problems.extend(broker_problems(topology) if not root.problems else ())
    root.check(name)
    return topology


def write_definitions(
    topology: Topology, *, version: BrokerVersion | None = None, vhost: str | None = None
) -> tuple[dict[str, object], tuple[str, ...]]:
    """The definitions, and a sentence for everything that was left out.

    `version` is that of the broker which shall import them: what it would refuse or misunderstand
    is left out. `vhost` names the virtual host in every object, for an import into a whole broker.
    """
    exclusive = {queue.name for queue in topology.queues if queue.exclusive}
    fitting, notes = without_queues(topology, exclusive, "it belongs to one connection")
    fitting, more = without_what_json_lacks(fitting)
    notes += more
    if version is not None:
        fitting, more = importable(fitting, version)
        notes += more
    record = _mapping(topology.foreign.get(RECORD))
    return _Writer(fitting, record, vhost).document(), notes


class _DefinitionsReader:
    """Sorts the objects of a file into ours and those of other virtual hosts."""

    def __init__(self, vhost: str | None) -> None:
        self.vhost = vhost
        self.originals: dict[str, list[object]] = {}
        self.others: dict[str, list[object]] = {}

    def section(self, section: str, place: Located | None) -> list[Definable]:
        """The objects of one section that are ours."""
        places = () if place is None else place.items()
        return [item for inner in places if (item := self.one(section, inner)) is not None]

    def one(self, section: str, place: Located) -> Definable | None:
        """One object; None if it belongs to another virtual host or is of a kind we do not model."""
        raw = thaw(decode(place, marks=False))
        home = raw.get("vhost", self.vhost) if isinstance(raw, Mapping) else self.vhost
        if home != self.vhost and not isinstance(home, str):
            place.inner("vhost", home).wrong("text")
        item = parse(section, place) if home == self.vhost else None
        if item is None:
            self.others.setdefault(section, []).append(raw)
        elif not same_json(raw, canonical(item, self.vhost)):
            self.originals.setdefault(section, []).append(raw)
        return item

    def foreign(self, rest: Mapping[str, object], keys: tuple[str, ...]) -> dict[str, object]:
        """Everything of the file that the topology's own objects do not say."""
        record = {"keys": keys, "vhost": self.vhost, **self.originals}
        return {**rest, **self.others, RECORD: record}


class _Writer:
    """Puts a definitions document together, in the order of the file it came from if any."""

    def __init__(self, topology: Topology, record: Mapping[str, object], vhost: str | None) -> None:
        self.topology = topology
        self.record = record
        self.named_vhost = vhost
        read_in = record.get("vhost")
        self.vhost = vhost if vhost is not None else read_in if isinstance(read_in, str) else None

    def document(self) -> dict[str, object]:
        """The whole document."""
        whole = {key: thaw(value) for key, value in self.topology.foreign.items() if key != RECORD}
        sections: tuple[tuple[str, tuple[Definable, ...]], ...] = (
            ("exchanges", self.topology.exchanges),
            ("queues", self.topology.queues),
            ("bindings", self.topology.bindings),
            ("policies", self.topology.policies),
        )
        for section, items in sections:
            whole[section] = [*self.written(section, items), *_list(whole.get(section))]
        if self.named_vhost is not None:
            whole["vhosts"] = _with_vhost(_list(whole.get("vhosts")), self.named_vhost)
        return self.ordered(whole)

    def written(self, section: str, items: tuple[Definable, ...]) -> list[object]:
        """The objects of one section; those that were not changed as they came."""
        originals: dict[object, tuple[Definable, Mapping[str, object]]] = {}
        for raw in _list(thaw(self.record.get(section))):
            item = parse(section, Located(section, raw, []))
            if item is not None and isinstance(raw, dict):
                originals[identity(item)] = (item, raw)
        return [self.one(item, originals) for item in items]

    def one(
        self, item: Definable, originals: Mapping[object, tuple[Definable, Mapping[str, object]]]
    ) -> dict[str, object]:
        """One object."""
        known, raw = originals.get(identity(item), (None, {}))
        if known != item:
            return canonical(item, self.vhost)
        return {**raw} if self.named_vhost is None else {**raw, "vhost": self.named_vhost}

    def ordered(self, whole: dict[str, object]) -> dict[str, object]:
        """The keys in their first order; an empty section that was not there stays away."""
        keys = [key for key in _list(thaw(self.record.get("keys"))) if isinstance(key, str)]
        present = keys if self.record else [*whole]
        order = [*keys, *(key for key in whole if key not in keys)]
        return {
            key: whole[key]
            for key in order
            if key in whole and (whole[key] or key in present or key not in SECTIONS)
        }


def _frozen(foreign: Mapping[str, object]) -> Mapping[str, object]:
    return MappingProxyType({key: freeze(value) for key, value in foreign.items()})  # type: ignore[arg-type]


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _with_vhost(vhosts: list[object], vhost: str) -> list[object]:
    known = any(isinstance(entry, dict) and entry.get("name") == vhost for entry in vhosts)
    return vhosts if known else [*vhosts, {"name": vhost}]
