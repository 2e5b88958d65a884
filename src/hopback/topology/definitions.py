"""Read and write RabbitMQ definition files (definitions.json).

Users, permissions, parameters and other sections are kept in `Topology.foreign` and written back.
Objects that were not changed are written exactly as they were read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from hopback.errors import InvalidTopology, Problem
from hopback.topology.arguments import decode, decode_table, remove_non_json_arguments
from hopback.topology.located import Located
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology, freeze
from hopback.topology.rabbitmq_arguments import (
    APPLY_TO,
    POLICY_KEYS,
    QUEUE_ARGUMENTS,
    QUEUE_TYPES,
)
from hopback.topology.validate import broker_problems
from hopback.topology.wording import did_you_mean, either, quote, show_value
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.fields import FieldValue


def load(data: Mapping[str, object] | str | bytes, where: str) -> object:
    """Parse JSON. If the data has already been parsed, it is returned unchanged."""
    if not isinstance(data, str | bytes):
        return data
    try:
        return json.loads(data, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        got = f"a syntax error: {error.msg}"
    except RecursionError:
        place, got = "file", "values nested too deeply"
    except ValueError as error:
        place, got = "file", str(error)
    raise InvalidTopology((Problem(place, "valid JSON", got),), where=where)


def choose_vhost(root: Located, sections: Mapping[str, Located], asked: str | None) -> str | None:
    """Return the virtual host to read. Returns None if the file does not name any, or after a problem
    was recorded.
    """
    used = _texts("vhost", sections, SECTIONS)
    known = sorted({*used, *_texts("name", sections, ("vhosts",))})
    if asked in known or not known:
        return asked if known else None
    if asked is None and len(used or known) == 1:
        return (used or known)[0]
    choice = f"one of the virtual hosts in this file: {either(known)}"
    got = (
        "no choice between them"
        if asked is None
        else show_value(asked) + did_you_mean(asked, known)
    )
    root.inner("vhost", asked).wrong(choice, got)
    return None


def _texts(key: str, sections: Mapping[str, Located], wanted: Iterable[str]) -> list[str]:
    """Return the values of a key in all entries of the given sections, sorted."""
    lists = [sections[section].value for section in wanted if section in sections]
    entries = [entry for items in lists if isinstance(items, list | tuple) for entry in items]
    values = [entry.get(key) for entry in entries if isinstance(entry, Mapping)]
    return sorted({value for value in values if isinstance(value, str)})


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text}, which JSON does not have")


Definable: TypeAlias = "Exchange | Queue | Binding | Policy"
"""Objects that can be part of a topology."""

SECTIONS = ("exchanges", "queues", "bindings", "policies")
"""Sections of a definitions file that can be part of a topology."""


def thaw(value: object) -> object:
    """Return a deep copy that only consists of plain dicts, lists and scalars."""
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
    """Return True if both values are the same JSON. `1`, `1.0` and `true` are different."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def identity(item: Definable) -> object:
    """Return the key that identifies an object in its section."""
    if isinstance(item, Binding):
        arguments = repr(sorted(item.arguments.items(), key=repr))
        return (item.source, item.destination, item.to_exchange, item.routing_key, arguments)
    return item.name


def canonical(item: Definable, vhost: str | None) -> dict[str, object]:
    """Convert an object to its JSON format. The virtual host is omitted if `vhost` is None."""
    home: dict[str, object] = {} if vhost is None else {"vhost": vhost}
    if isinstance(item, Binding):
        return {
            "source": item.source,
            **home,
            "destination": item.destination,
            "destination_type": "exchange" if item.to_exchange else "queue",
            "routing_key": item.routing_key,
            "arguments": thaw(item.arguments),
        }
    if isinstance(item, Exchange):
        return {
            "name": item.name,
            **home,
            "type": str(item.type),
            "durable": item.durable,
            "auto_delete": item.auto_delete,
            "internal": item.internal,
            "arguments": thaw(item.arguments),
        }
    if isinstance(item, Queue):
        return {
            "name": item.name,
            **home,
            "durable": item.durable,
            "auto_delete": item.auto_delete,
            "arguments": thaw(item.declare_arguments),
        }
    return {
        **home,
        "name": item.name,
        "pattern": item.pattern,
        "apply-to": item.apply_to,
        "definition": thaw(item.definition),
        "priority": item.priority,
    }


def parse(section: str, place: Located) -> Definable | None:
    """Parse an object. Returns None if the queue type is not supported."""
    table = place.table()
    match section:
        case "exchanges":
            return Exchange(
                table.need("name", Located.text, ""),
                type=table.need("type", Located.text, "direct", "an exchange type"),
                durable=table.read("durable", Located.flag, True),
                auto_delete=table.read("auto_delete", Located.flag, False),
                internal=table.read("internal", Located.flag, False),
                arguments=table.read("arguments", _table, {}),
            )
        case "queues":
            arguments: dict[str, FieldValue] = table.read("arguments", _table, {})
            kind = table.read("type", Located.text, QueueType.CLASSIC.value)
            told = arguments.pop("x-queue-type", kind)
            if not isinstance(told, str):
                place.inner("arguments", None).inner("x-queue-type", told).wrong("text")
            elif told not in tuple(QueueType):
                return None
            return Queue(
                table.need("name", Located.text, ""),
                type=QueueType(told) if isinstance(told, str) else QueueType.CLASSIC,
                durable=table.read("durable", Located.flag, True),
                auto_delete=table.read("auto_delete", Located.flag, False),
                arguments=arguments,
            )
        case "bindings":
            return Binding(
                table.need("source", Located.text, ""),
                table.need("destination", Located.text, ""),
                table.read("routing_key", Located.text, ""),
                table.read("destination_type", _is_exchange, False),
                table.read("arguments", _table, {}),
            )
    return Policy(
        table.need("name", Located.text, ""),
        pattern=table.need("pattern", Located.text, "", "a regular expression"),
        definition=table.need("definition", _table, {}, "a table of policy keys"),
        priority=table.read("priority", Located.integer, 0),
        apply_to=table.read("apply-to", Located.text, "all"),
    )


def _table(place: Located) -> dict[str, FieldValue]:
    return decode_table(place, marks=False)


def _is_exchange(place: Located) -> bool:
    if place.value not in ("queue", "exchange"):
        place.wrong(either(("queue", "exchange")))
    return place.value == "exchange"


_V4_0 = BrokerVersion(4)


def importable(topology: Topology, version: BrokerVersion) -> tuple[Topology, tuple[str, ...]]:
    """Remove objects that the given version cannot import, and return a note for each of them."""
    notes: list[str] = []
    unknown = {queue.name for queue in topology.queues if version < QUEUE_TYPES[queue.type]}
    topology, said = without_queues(
        topology, unknown, f"RabbitMQ {version} does not support this type"
    )
    notes += said
    queues = tuple(_adapt_queue(queue, version, notes) for queue in topology.queues)
    policies = []
    for policy in topology.policies:
        fitting = _adapt_policy(policy, version, notes)
        since = APPLY_TO.get(policy.apply_to)
        if since is not None and version < since:
            told = (
                f'applies to "queues" instead of {quote(policy.apply_to)}, which requires {since}'
            )
            notes.append(
                f"policy {quote(policy.name)}: {told}. It now matches queues of every type"
            )
            fitting = replace(fitting, apply_to="queues")
        if fitting.definition:
            policies.append(fitting)
        else:
            notes.append(f"policy {quote(policy.name)} left out: no supported key remains")
    return replace(topology, queues=queues, policies=tuple(policies)), tuple(notes)


def without_queues(
    topology: Topology, names: set[str], why: str
) -> tuple[Topology, tuple[str, ...]]:
    """Remove queues and their bindings, and return a note for each queue."""
    notes = tuple(
        f"{queue.type} queue {quote(queue.name)} and its bindings left out: {why}"
        for queue in topology.queues
        if queue.name in names
    )
    queues = tuple(queue for queue in topology.queues if queue.name not in names)
    bindings = tuple(
        binding
        for binding in topology.bindings
        if binding.to_exchange or binding.destination not in names
    )
    return replace(topology, queues=queues, bindings=bindings), notes


def _adapt_queue(queue: Queue, version: BrokerVersion, notes: list[str]) -> Queue:
    arguments = dict(queue.arguments)
    for name, known in QUEUE_ARGUMENTS.items():
        value = arguments.get(name)
        for gap in known.gaps if value is not None else ():
            if version not in gap.span and gap.concerns(queue, value):
                del arguments[name]
                meant = f"{name} = {value} requires RabbitMQ {gap.span}"
                notes.append(f"queue {quote(queue.name)}: {meant}, left out: {gap.why}")
                break
    return queue if len(arguments) == len(queue.arguments) else replace(queue, arguments=arguments)


def _adapt_policy(policy: Policy, version: BrokerVersion, notes: list[str]) -> Policy:
    definition = dict(policy.definition)
    for key, value in policy.definition.items():
        span, why = POLICY_KEYS.get(key), ""
        if span is None:
            why = f"RabbitMQ {version} does not know this policy key"
        elif version not in span:
            why = f"only RabbitMQ {span} supports it"
        elif key == "delivery-limit" and version < _V4_0 and isinstance(value, int) and value < 0:
            why = "before 4.0 a delivery limit cannot be negative"
        if why:
            del definition[key]
            told = f"{quote(key)} left out: {why}. The broker would refuse the whole import"
            notes.append(f"policy {quote(policy.name)}: {told}")
    return (
        policy
        if len(definition) == len(policy.definition)
        else replace(policy, definition=definition)
    )


RECORD = "hopback-definitions"
"""A key in `Topology.foreign`. It stores the virtual host, the order of keys and the objects with
additional fields, so that a file can be written as it was read.
"""


def read_definitions(
    data: Mapping[str, object] | str | bytes, *, vhost: str | None = None, name: str = "definitions"
) -> Topology:
    """Read the topology of a virtual host from a definitions file.

    Args:
        data: The content of the file.
        vhost: The virtual host to read. Required if there are several.
        name: The name of the topology.

    Raises:
        InvalidTopology: If the file is invalid.
    """
    root = Located("", load(data, name), [])
    entries = dict(root.entries())
    if RECORD in entries:
        entries[RECORD].wrong("no such key, because it is reserved for Hopback")
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
        foreign=MappingProxyType(
            {
                key: freeze(value)  # type: ignore[arg-type]
                for key, value in reader.foreign(rest, keys=tuple(entries)).items()
            }
        ),
    )
    root.problems.extend(broker_problems(topology) if not root.problems else ())
    root.check(name)
    return topology


def write_definitions(
    topology: Topology, *, version: BrokerVersion | None = None, vhost: str | None = None
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the definitions of a topology, and a note for each omitted object.

    Args:
        topology: The topology.
        version: The RabbitMQ version. Objects that it does not support are omitted.
        vhost: The virtual host to add to each object. It is needed if the file is imported without
            naming a virtual host.
    """
    fitting, notes = without_unexportable(topology, version)
    record = topology.foreign.get(RECORD)
    return _Writer(fitting, record if isinstance(record, Mapping) else {}, vhost).document(), notes


def without_unexportable(
    topology: Topology, version: BrokerVersion | None
) -> tuple[Topology, tuple[str, ...]]:
    """Remove exclusive queues, and everything that JSON or the given version does not support.

    Returns the topology, and a note for each removal.
    """
    exclusive = {queue.name for queue in topology.queues if queue.exclusive}
    fitting, notes = without_queues(topology, exclusive, "it belongs to one connection")
    fitting, more = remove_non_json_arguments(fitting)
    notes += more
    if version is not None:
        fitting, more = importable(fitting, version)
        notes += more
    return fitting, notes


class _DefinitionsReader:
    """Separates the objects of a virtual host from the others."""

    def __init__(self, vhost: str | None) -> None:
        self.vhost = vhost
        self.originals: dict[str, list[object]] = {}
        self.others: dict[str, list[object]] = {}

    def section(self, section: str, place: Located | None) -> list[Definable]:
        """Return the objects of a section that belong to the virtual host."""
        places = () if place is None else place.items()
        return [item for inner in places if (item := self.one(section, inner)) is not None]

    def one(self, section: str, place: Located) -> Definable | None:
        """Parse an object. Returns None if it belongs to another virtual host or is not supported."""
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
        """Return the parts of the file that do not belong to the topology."""
        record = {"keys": keys, "vhost": self.vhost, **self.originals}
        return {**rest, **self.others, RECORD: record}


class _Writer:
    """Creates a definitions document, using the order of the original file if there is one."""

    def __init__(self, topology: Topology, record: Mapping[str, object], vhost: str | None) -> None:
        self.topology = topology
        self.record = record
        self.named_vhost = vhost
        read_in = record.get("vhost")
        self.vhost = vhost if vhost is not None else read_in if isinstance(read_in, str) else None

    def document(self) -> dict[str, object]:
        whole = {key: thaw(value) for key, value in self.topology.foreign.items() if key != RECORD}
        sections: tuple[tuple[str, tuple[Definable, ...]], ...] = (
            ("exchanges", self.topology.exchanges),
            ("queues", self.topology.queues),
            ("bindings", self.topology.bindings),
            ("policies", self.topology.policies),
        )
        for section, items in sections:
            whole[section] = [*self.write_section(section, items), *_list(whole.get(section))]
        if self.named_vhost is not None:
            vhosts = _list(whole.get("vhosts"))
            known = any(
                isinstance(each, dict) and each.get("name") == self.named_vhost for each in vhosts
            )
            whole["vhosts"] = vhosts if known else [*vhosts, {"name": self.named_vhost}]
        return self.restore_order(whole)

    def write_section(self, section: str, items: tuple[Definable, ...]) -> list[object]:
        """Write the objects of a section. Unchanged objects keep their original form."""
        originals: dict[object, tuple[Definable, Mapping[str, object]]] = {}
        for raw in _list(thaw(self.record.get(section))):
            item = parse(section, Located(section, raw, []))
            if item is not None and isinstance(raw, dict):
                originals[identity(item)] = (item, raw)
        return [self.one(item, originals) for item in items]

    def one(
        self, item: Definable, originals: Mapping[object, tuple[Definable, Mapping[str, object]]]
    ) -> dict[str, object]:
        known, raw = originals.get(identity(item), (None, {}))
        if known != item:
            return canonical(item, self.vhost)
        return {**raw} if self.named_vhost is None else {**raw, "vhost": self.named_vhost}

    def restore_order(self, whole: dict[str, object]) -> dict[str, object]:
        """Restore the original order of keys. New sections that are empty are omitted."""
        keys = [key for key in _list(thaw(self.record.get("keys"))) if isinstance(key, str)]
        present = keys if self.record else [*whole]
        order = [*keys, *(key for key in whole if key not in keys)]
        return {
            key: whole[key]
            for key in order
            if key in whole and (whole[key] or key in present or key not in SECTIONS)
        }


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


_CREDENTIALS = re.compile(r"://[^/@\s]*:[^/@\s]*@")
_TELLING = ("password", "secret", "token")
_OF_USERS = ("users", "permissions", "topic_permissions")


def without_secrets(topology: Topology) -> tuple[Topology, tuple[str, ...]]:
    """Remove objects that contain secrets, and return a note for each of them.

    Permissions are removed together with the users, because RabbitMQ rejects permissions of unknown
    users.
    """
    kept: dict[str, object] = {}
    notes: list[str] = []
    hide_users = _has_secret(topology.foreign.get("users"))
    if hide_users:
        notes.append("users and their permissions left out: they contain password hashes")
    for section, value in topology.foreign.items():
        if hide_users and section in _OF_USERS:
            continue
        if isinstance(value, tuple):
            kept[section] = tuple(one for one in value if not _has_secret(one))
            notes += [_note(section, one) for one in value if _has_secret(one)]
        elif _has_secret(value):
            notes.append(_note(section, value))
        else:
            kept[section] = value
    return replace(topology, foreign=MappingProxyType(kept)), tuple(notes)


def _note(section: str, entry: object) -> str:
    name = entry.get("name") if isinstance(entry, Mapping) else None
    what = f"{section} {quote(name)}" if isinstance(name, str) else f"an entry of {section}"
    return f"{what} left out: it contains a secret"


def _has_secret(value: object) -> bool:
    if isinstance(value, str):
        return _CREDENTIALS.search(value) is not None
    if isinstance(value, Mapping):
        named = any(word in str(key).lower() for key in value for word in _TELLING)
        return named or any(map(_has_secret, value.values()))
    return isinstance(value, tuple) and any(map(_has_secret, value))
