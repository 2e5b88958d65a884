"""The map of a topology: exchanges, queues by role, and the three ways between them.

A solid line is a binding, a dashed one dead-lettering by the broker, a thick one a confirmed
publish by the consumer.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hopback.topology.delays import DUE, longest_delay_ms, without_delay_levels
from hopback.topology.diagram.labels import Ids, label
from hopback.topology.durations import LONGEST_MS, format_duration
from hopback.topology.plan import Leave
from hopback.topology.roles import QueueRole, queue_roles
from hopback.topology.schedules import scheduled_queue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hopback.topology.model import Exchange, Queue, Topology
    from hopback.topology.plan import Plan

__all__ = ["draw_flow"]

_DELAYS = "queues of delays"
_CLASSES = (
    "classDef exchange fill:#ede7f6,stroke:#5e35b1,color:#311b92",
    "classDef main fill:#e3f2fd,stroke:#1565c0,color:#0d47a1",
    "classDef retry fill:#fff8e1,stroke:#f9a825,color:#5d4037",
    "classDef dead fill:#ffebee,stroke:#c62828,color:#b71c1c",
    "classDef plain fill:#f5f5f5,stroke:#757575,color:#212121",
    "classDef missing fill:#ffffff,stroke:#c62828,color:#c62828,stroke-dasharray:4 3",
)
_SHAPES = {
    QueueRole.MAIN: ('["', '"]:::main'),
    QueueRole.RETRY: ('(["', '"]):::retry'),
    QueueRole.DEAD_LETTER: ('[("', '")]:::dead'),
    QueueRole.PLAIN: ('["', '"]:::plain'),
}


def draw_flow(topology: Topology) -> str:
    """The topology as a Mermaid flowchart."""
    flow = _Flowchart(without_delay_levels(topology), longest_delay_ms(topology))
    return "\n".join(flow.lines()) + "\n"


class _Flowchart:
    """One flowchart in the making; ids are given in the order of the topology."""

    def __init__(self, topology: Topology, longest_delay_ms: int) -> None:
        self.topology = topology
        self.longest_delay_ms = longest_delay_ms
        self.roles = queue_roles(topology)
        self.exchanges = {exchange.name: exchange for exchange in topology.exchanges}
        self.queues = {queue.name: queue for queue in topology.queues}
        self.ids = Ids()
        self.outside: dict[str, str] = {}

    def lines(self) -> Iterator[str]:
        """All lines of the chart."""
        families = self.families()
        homes = {name: plan for plan, names in families for name in names}
        inner = self.private_exchanges(homes)
        yield "flowchart LR"
        for exchange in self.topology.exchanges:
            if exchange.name not in inner:
                yield f"    {self.exchange(exchange)}"
        for plan, names in families:
            own = [name for name, home in inner.items() if home == plan]
            yield from self.family(plan, names, own)
        for queue in self.topology.queues:
            if queue.name not in homes:
                yield f"    {self.queue(queue)}"
        if self.longest_delay_ms:
            yield f"    {self.delays()}"
        edges = [
            *self.bindings(),
            *self.dead_letters(),
            *self.publishes(),
            *self.delayed(),
            *self.periodic(),
        ]
        yield from (f"    {node}" for node in self.outside.values())
        yield from (f"    {edge}" for edge in dict.fromkeys(edges))
        yield from (f"    {line}" for line in _CLASSES)

    def families(self) -> list[tuple[str, list[str]]]:
        """The queues of each plan that are its own; those that plans share stand outside."""
        members = [(plan.queue, _members(plan)) for plan in self.topology.plans]
        uses = Counter(name for _, names in members for name in names)
        return [
            (owner, [name for name in names if uses[name] == 1 and name in self.queues])
            for owner, names in members
        ]

    def private_exchanges(self, homes: dict[str, str]) -> dict[str, str]:
        """The exchanges that lead only to retry and dead-letter queues of one family."""
        found: dict[str, str] = {}
        for name in self.exchanges:
            ends = [item for item in self.topology.bindings if item.source == name]
            owners = {None if end.to_exchange else homes.get(end.destination) for end in ends}
            owner = owners.pop() if len(owners) == 1 else None
            if owner is not None and owner not in {end.destination for end in ends}:
                found[name] = owner
        return found

    def family(self, owner: str, names: Sequence[str], exchanges: Sequence[str]) -> Iterator[str]:
        """The subgraph of one plan."""
        yield f'    subgraph {self.ids.of("family", owner)}["{label(owner)}"]'
        yield from (f"        {self.exchange(self.exchanges[name])}" for name in exchanges)
        yield from (f"        {self.queue(self.queues[name])}" for name in names)
        yield "    end"

    def exchange(self, exchange: Exchange) -> str:
        """The node of an exchange."""
        text = f"{label(exchange.name)}<br/>{label(exchange.type)}"
        return f'{self.ids.of("x", exchange.name)}{{{{"{text}"}}}}:::exchange'

    def queue(self, queue: Queue) -> str:
        """The node of a queue, with its type and how long messages wait in it."""
        ttl_ms = queue.arguments.get("x-message-ttl")
        waits = isinstance(ttl_ms, int) and 0 <= ttl_ms <= LONGEST_MS
        wait = f", waits {format_duration(ttl_ms)}" if waits else ""  # type: ignore[arg-type]
        before, after = _SHAPES[self.roles[queue.name]]
        text = f"{label(queue.name)}<br/>{label(queue.type)}{wait}"
        return f"{self.ids.of('q', queue.name)}{before}{text}{after}"

    def delays(self) -> str:
        """One node for all queues of delays: a queue for each power of two seconds says nothing more."""
        longest = format_duration(self.longest_delay_ms)
        return f'{self.ids.of("q", _DELAYS)}(["queues of delays<br/>wait up to {longest}"]):::retry'

    def delayed(self) -> Iterator[str]:
        """A dashed line: what has waited long enough."""
        if self.longest_delay_ms:
            yield f'{self.ids.of("q", _DELAYS)} -.->|"due"| {self.node("x", DUE)}'

    def periodic(self) -> Iterator[str]:
        """Thick lines: what whoever holds the message of a schedule publishes."""
        for name in self.queues:
            queue = scheduled_queue(name)
            if queue in self.queues:
                yield f'{self.ids.of("q", name)} ==>|"periodic"| {self.node("q", queue)}'

    def node(self, kind: str, name: str) -> str:
        """The id of an end of a line; what is not declared gets a node of its own."""
        known = self.exchanges if kind == "x" else self.queues
        node = self.ids.of(kind, name)
        if name not in known:
            broker_own = kind == "x" and (not name or name.startswith("amq."))
            text = label(name) if name else "default exchange"
            style = "exchange" if broker_own else "missing"
            self.outside[node] = f'{node}{{{{"{text}"}}}}:::{style}'
        return node

    def bindings(self) -> Iterator[str]:
        """Solid lines; several keys between the same two ends share one."""
        keys: dict[tuple[str, str], list[str]] = {}
        for item in self.topology.bindings:
            end = self.node("x" if item.to_exchange else "q", item.destination)
            text = label(item.routing_key) if item.routing_key else ""
            text += f" ({len(item.arguments)} arguments)" if item.arguments else ""
            keys.setdefault((self.node("x", item.source), end), []).append(text)
        for (source, end), texts in keys.items():
            text = "<br/>".join(filter(None, texts))
            yield f'{source} -->|"{text}"| {end}' if text else f"{source} --> {end}"

    def dead_letters(self) -> Iterator[str]:
        """Dashed lines: where the broker moves what is rejected or has expired."""
        for queue in self.topology.queues:
            exchange = queue.arguments.get("x-dead-letter-exchange")
            if not isinstance(exchange, str):
                continue
            key = queue.arguments.get("x-dead-letter-routing-key")
            end = self.way(exchange, key if isinstance(key, str) else None)
            when = "expired" if self.roles[queue.name] is QueueRole.RETRY else "dead letters"
            text = f"{when}, key {label(key)}" if exchange and isinstance(key, str) else when
            yield f'{self.ids.of("q", queue.name)} -.->|"{text}"| {end}'

    def publishes(self) -> Iterator[str]:
        """Thick lines: where the consumer publishes what failed."""
        for plan in self.topology.plans:
            source = self.node("q", plan.queue)
            for tier in plan.tiers if plan.leave is Leave.PUBLISH else ():
                for route in tier.routes:
                    end = self.way(route.exchange, route.routing_key)
                    yield f'{source} ==>|"retry in {format_duration(tier.delay_ms)}"| {end}'
            if plan.parking.by is Leave.PUBLISH:
                end = self.way(plan.parking.exchange, plan.parking.routing_key)
                yield f'{source} ==>|"park"| {end}'

    def way(self, exchange: str, key: str | None) -> str:
        """Where a message goes: through the default exchange straight to the queue of its key."""
        return self.node("x", exchange) if exchange or key is None else self.node("q", key)


def _members(plan: Plan) -> list[str]:
    """The queues of a plan, each once: its own, where it waits, where it rests."""
    waiting = (route.queue for tier in plan.tiers for route in tier.routes)
    return list(dict.fromkeys((plan.queue, *waiting, plan.parking.queue)))
