"""Tables and a map of the topology.

Everything except queue depths only depends on the topology. Since this needs seconds of CPU time if
there are thousands of queues, it is computed in a thread, and only when the topology changes. Each
request adds the depths of the queues it shows.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hopback.durations import LONGEST_MS, format_duration
from hopback.ops.brokers.recent import Recent
from hopback.text import count_of
from hopback.topology.check import check
from hopback.topology.delays import (
    DUE,
    is_delay_level,
    longest_delay_ms,
    queue_of_schedule,
    without_delay_levels,
)
from hopback.topology.effective import effective_topology
from hopback.topology.plan import Leave
from hopback.topology.roles import QueueRole, queue_roles
from hopback.topology.routing import PREDECLARED, RoutingTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hopback.broker.management.readings import QueueReading
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.topology.hazards.rule import Finding
    from hopback.topology.model import Queue, Topology

MAP_NODES = 200
"""Maximum number of nodes in the map. A larger map would need seconds for its layout and be unreadable."""
# neighbours. The map does not follow nodes with more of them, because it would show all.
_HUB = 40
_LABEL = 60  # characters of a label in the map. The tables contain the full names.
_DELAYS = "q:hopback.delay"
_NAMED = re.compile("`([^`]+)`")


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue in the table."""

    name: str
    type: str
    role: QueueRole
    ttl: str
    dead_letters: str
    errors: int
    warnings: int


@dataclass(frozen=True, slots=True)
class ExchangeRow:
    """An exchange in the table. Its bindings consist of a routing key and a destination."""

    name: str
    type: str
    bindings: list[tuple[str, str]]
    errors: int
    warnings: int


@dataclass(frozen=True, slots=True)
class DelayedRow:
    """The number of delay queues, the messages in them, and the longest possible delay."""

    queues: int
    messages: int | None
    longest: str


@dataclass(frozen=True, slots=True)
class TopologyDrawing:
    """The hazards, rows and edges of a topology, sorted by name. `snapshot` contains the last readings."""

    snapshot: BrokerSnapshot
    topology: Topology
    findings: tuple[Finding, ...]
    queues: tuple[QueueRow, ...]
    exchanges: tuple[ExchangeRow, ...]
    edges: tuple[dict[str, Any], ...]
    neighbours: Mapping[str, tuple[str, ...]]


class TopologyDrawings(Recent[TopologyDrawing]):
    """Draw the topology of a broker again when it has changed."""

    def __init__(self, broker: ManagedBroker) -> None:
        super().__init__(self._draw, 0.0, broker.clock)
        self._broker = broker

    async def _draw(self) -> TopologyDrawing:
        snapshot, last = await self._broker.recent_snapshot(), self.last
        topology, version = snapshot.shown_topology, snapshot.version
        if last is not None and (last.topology, last.snapshot.version) == (topology, version):
            return replace(last, snapshot=snapshot)
        return await asyncio.to_thread(draw_topology, snapshot)


def draw_topology(snapshot: BrokerSnapshot) -> TopologyDrawing:
    """Compute hazards, rows and edges."""
    topology, version = snapshot.shown_topology, snapshot.version
    findings = check(topology, version)
    effective = effective_topology(topology, version)
    hazards = _count_hazards(topology, findings)
    shown, levels = topology, any(is_delay_level(queue.name) for queue in topology.queues)
    effective_shown = effective
    if levels:
        shown = without_delay_levels(topology)
        effective_shown = effective_topology(shown, version)
    edges = [*_edges(shown, effective_shown)]
    if levels:
        edges.append(_edge(_DELAYS, f"x:{DUE}", "dead-letter", ""))
    neighbours = defaultdict[str, list[str]](list)
    for edge in edges:
        source, target = edge["data"]["source"], edge["data"]["target"]
        neighbours[source].append(target)
        neighbours[target].append(source)
    return TopologyDrawing(
        snapshot,
        topology,
        findings,
        tuple(queue_rows(effective, hazards)),
        tuple(exchange_rows(topology, hazards)),
        tuple(edges),
        {name: tuple(dict.fromkeys(found)) for name, found in neighbours.items()},
    )


def role_of(row: QueueRow, listed: frozenset[str]) -> QueueRole:
    """Return the role of a queue. `listed` contains all dead-letter queues."""
    if row.name in listed:
        return QueueRole.DEAD_LETTER
    # An operator has declared that this is not a dead-letter queue.
    return QueueRole.PLAIN if row.role is QueueRole.DEAD_LETTER else row.role


def queue_rows(effective: Topology, hazards: Mapping[str, Counter[str]]) -> Iterator[QueueRow]:
    """Yield all queues, sorted by name."""
    roles = queue_roles(effective)
    for queue in sorted(effective.queues, key=lambda each: each.name):
        yield QueueRow(
            queue.name,
            queue.type.value,
            roles[queue.name],
            _ttl(queue),
            _dead_letter_words(queue),
            hazards["error"][queue.name],
            hazards["warning"][queue.name],
        )


def exchange_rows(topology: Topology, hazards: Mapping[str, Counter[str]]) -> Iterator[ExchangeRow]:
    """Yield all exchanges, sorted by name."""
    bound: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for binding in topology.bindings:
        bound[binding.source].append((binding.routing_key, binding.destination))
    for exchange in sorted(topology.exchanges, key=lambda each: each.name):
        yield ExchangeRow(
            exchange.name,
            str(exchange.type),
            sorted(bound[exchange.name]),
            hazards["error"][exchange.name],
            hazards["warning"][exchange.name],
        )


def graph(
    drawing: TopologyDrawing,
    readings: Mapping[str, QueueReading],
    listed: frozenset[str],
    focus: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the nodes and edges of the map. All delay queues are combined into one node.

    If there are too many nodes for a map, it shows those near the queues in `focus`, or near the
    dead-letter queues with the most messages.
    """
    counts = {name: one.counts.messages or 0 for name, one in readings.items()}
    queues = {f"q:{row.name}": row for row in drawing.queues if not is_delay_level(row.name)}
    exchanges = {f"x:{row.name}": row for row in drawing.exchanges if not is_delay_level(row.name)}
    delayed = delayed_messages(drawing.topology, readings)
    names = [*exchanges, *queues, *([_DELAYS] if delayed else [])]
    total = len(names)
    if total > MAP_NODES:
        starts = [f"{kind}:{name}" for name in focus for kind in "qx"]
        starts = [start for start in starts if start in queues or start in exchanges]
        if not starts:
            starts = sorted(
                (name for name, row in queues.items() if row.name in listed),
                key=lambda name: -counts.get(queues[name].name, 0),
            )
        names = list(_surroundings(starts or names, drawing.neighbours))
    nodes = []
    for name in names:
        if name == _DELAYS and delayed:
            nodes.append(_delay_node(delayed))
        elif row := queues.get(name):
            nodes.append(_queue_node(row, role_of(row, listed), readings))
        elif exchange := exchanges.get(name):
            lines = [_short(exchange.name), exchange.type]
            hazards = exchange.errors, exchange.warnings
            nodes.append(_node(name, exchange.name, "exchange", lines, *hazards))
    shown = {node["data"]["id"] for node in nodes}
    edges = [
        edge
        for edge in drawing.edges
        if edge["data"]["source"] in shown and edge["data"]["target"] in shown
    ]
    return {"elements": [*nodes, *edges], "total": total}


def _surroundings(
    starts: Iterable[str], neighbours: Mapping[str, tuple[str, ...]]
) -> dict[str, None]:
    """Return the starts and the nodes near them, at most MAP_NODES in total."""
    found: dict[str, None] = {}
    for start in starts:
        if len(found) >= MAP_NODES:
            break
        found.setdefault(start)
        waiting = [start]
        for name in waiting:
            near = neighbours.get(name, ())
            if len(near) > _HUB and name != start:
                continue
            for other in near:
                if other not in found and len(found) < MAP_NODES:
                    found[other] = None
                    waiting.append(other)
    return found


def delayed_messages(topology: Topology, readings: Mapping[str, QueueReading]) -> DelayedRow | None:
    """Return the number of delayed messages, or None if no delay queues are declared."""
    levels = [queue.name for queue in topology.queues if is_delay_level(queue.name)]
    if not levels:
        return None
    known = [readings[name] for name in levels if name in readings]
    counts = [one.counts.messages for one in known if one.counts.messages is not None]
    longest = format_duration(longest_delay_ms(topology))
    return DelayedRow(len(levels), sum(counts) if counts else None, longest)


def _delay_node(delayed: DelayedRow) -> dict[str, Any]:
    waiting = "" if delayed.messages is None else f"{count_of(delayed.messages)}, "
    lines = ["queues of delays", f"{waiting}up to {delayed.longest}"]
    node = _node(_DELAYS, "hopback.delay", "retry", lines, 0, 0)
    node["data"]["messages"] = delayed.messages or 0
    return node


def _queue_node(
    row: QueueRow, role: QueueRole, readings: Mapping[str, QueueReading]
) -> dict[str, Any]:
    reading = readings.get(row.name)
    messages = None if reading is None else reading.counts.messages
    facts = [count_of(messages)] if messages is not None else []
    facts += [f"waits {row.ttl}"] if row.ttl else []
    lines = [_short(row.name), ", ".join(facts)]
    node = _node(f"q:{row.name}", row.name, role.value, lines, row.errors, row.warnings)
    node["data"]["messages"] = messages or 0
    return node


def _node(
    node_id: str, name: str, kind: str, lines: Iterable[str], errors: int, warnings: int
) -> dict[str, Any]:
    hazards = [count_of(errors, "error")] if errors else []
    hazards += [count_of(warnings, "warning")] if warnings else []
    label = "\n".join(filter(None, (*lines, ", ".join(hazards))))
    height = 26 + 16 * (label.count("\n") + len(name) // 26)
    data = {"id": node_id, "name": name, "kind": kind, "label": label, "height": height}
    return {"data": data | {"errors": errors}}


def _edges(topology: Topology, effective: Topology) -> Iterator[dict[str, Any]]:
    known = {f"x:{each.name}" for each in topology.exchanges}
    known |= {f"q:{each.name}" for each in topology.queues}
    keys: dict[tuple[str, str], list[str]] = defaultdict(list)
    for binding in topology.bindings:
        end = f"{'x' if binding.to_exchange else 'q'}:{binding.destination}"
        keys[f"x:{binding.source}", end].append(binding.routing_key)
    for (source, end), found in keys.items():
        if source in known and end in known:
            shown = ", ".join([_short(key) for key in found if key][:2])
            more = f" +{len(found) - 2}" if len(found) > 2 else ""
            yield _edge(source, end, "binding", shown + more)
    for kind, paths in (
        ("publish", _publishes(topology)),
        ("dead-letter", _dead_letter_paths(effective)),
    ):
        for source, end in dict.fromkeys(paths):
            if source in known and end in known:
                yield _edge(source, end, kind, "")


def _publishes(topology: Topology) -> Iterator[tuple[str, str]]:
    """Yield the paths of messages that consumers publish, as declared by plans."""
    for plan in topology.plans:
        ways = [(plan.parking.by, plan.parking.exchange, plan.parking.queue)]
        for tier in plan.tiers:
            ways += [(plan.leave, route.exchange, route.queue) for route in tier.routes]
        for leave, exchange, queue in ways:
            if leave is not Leave.REJECT:
                yield f"q:{plan.queue}", f"x:{exchange}" if exchange else f"q:{queue}"
    for each in topology.queues:
        if (periodic := queue_of_schedule(each.name)) is not None:
            yield f"q:{each.name}", f"q:{periodic}"


def _dead_letter_paths(effective: Topology) -> Iterator[tuple[str, str]]:
    """Yield the path from each queue to the exchange or queue that receives its dead letters."""
    names = (queue.name for queue in effective.queues)
    table = RoutingTable((*PREDECLARED, *effective.exchanges), names, effective.bindings)
    for queue in effective.queues:
        exchange = queue.arguments.get("x-dead-letter-exchange")
        key = queue.arguments.get("x-dead-letter-routing-key")
        if exchange == "":
            for reached in table.route("", str(key)) if key is not None else ():
                yield f"q:{queue.name}", f"q:{reached}"
        elif isinstance(exchange, str):
            yield f"q:{queue.name}", f"x:{exchange}"


def _edge(source: str, end: str, kind: str, label: str) -> dict[str, Any]:
    data = {"source": source, "target": end, "kind": kind, "label": label}
    return {"data": {"id": f"{kind}:{source}>{end}", **data}}


def _short(text: str) -> str:
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…"


def _ttl(queue: Queue) -> str:
    ttl = queue.arguments.get("x-message-ttl")
    if not isinstance(ttl, int) or isinstance(ttl, bool) or not 0 <= ttl <= LONGEST_MS:
        return ""
    return format_duration(int(ttl))


def _dead_letter_words(queue: Queue) -> str:
    exchange = queue.arguments.get("x-dead-letter-exchange")
    key = queue.arguments.get("x-dead-letter-routing-key")
    if not isinstance(exchange, str):
        return ""
    if not exchange:
        return f"queue {key}" if key is not None else "its own queue"
    return exchange if key is None else f"{exchange} with key {key}"


def _count_hazards(topology: Topology, findings: Iterable[Finding]) -> Mapping[str, Counter[str]]:
    """Count the findings for each severity and name. Findings contain names in backticks."""
    names = {queue.name for queue in topology.queues}
    names |= {exchange.name for exchange in topology.exchanges}
    counts = defaultdict[str, Counter[str]](Counter)
    for finding in findings:
        counts[finding.severity.value].update(names.intersection(_NAMED.findall(finding.place)))
    return counts
