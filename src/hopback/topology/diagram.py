"""Render topologies and failure plans as Mermaid diagrams."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from hopback.durations import LONGEST_MS, format_duration
from hopback.errors import InvalidTopology, Problem
from hopback.topology.delays import DUE, longest_delay_ms, queue_of_schedule, without_delay_levels
from hopback.topology.plan import Leave, Plan, Return, Tier
from hopback.topology.roles import QueueRole, queue_roles
from hopback.topology.wording import did_you_mean, either, show_value, waits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hopback.topology.model import Exchange, Queue, Topology

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
    """Render the topology as a Mermaid flowchart."""
    flow = _Flowchart(without_delay_levels(topology), longest_delay_ms(topology))
    return "\n".join(flow.lines()) + "\n"


class _Flowchart:
    """Creates a flowchart. Ids are assigned in the order of the topology."""

    def __init__(self, topology: Topology, longest_delay_ms: int) -> None:
        self.topology = topology
        self.longest_delay_ms = longest_delay_ms
        self.roles = queue_roles(topology)
        self.exchanges = {exchange.name: exchange for exchange in topology.exchanges}
        self.queues = {queue.name: queue for queue in topology.queues}
        self.ids = Ids()
        self.outside: dict[str, str] = {}

    def lines(self) -> Iterator[str]:
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
            *self.draw_delays(),
            *self.periodic(),
        ]
        yield from (f"    {node}" for node in self.outside.values())
        yield from (f"    {edge}" for edge in dict.fromkeys(edges))
        yield from (f"    {line}" for line in _CLASSES)

    def families(self) -> list[tuple[str, list[str]]]:
        """Return the queues of each plan. Queues that several plans share are omitted."""
        members = []
        for plan in self.topology.plans:
            waiting = (route.queue for tier in plan.tiers for route in tier.routes)
            each_once = dict.fromkeys((plan.queue, *waiting, plan.parking.queue))
            members.append((plan.queue, list(each_once)))
        uses = Counter(name for _, names in members for name in names)
        return [
            (owner, [name for name in names if uses[name] == 1 and name in self.queues])
            for owner, names in members
        ]

    def private_exchanges(self, homes: dict[str, str]) -> dict[str, str]:
        """Return the exchanges that only lead to retry and dead-letter queues of a single plan."""
        found: dict[str, str] = {}
        for name in self.exchanges:
            ends = [item for item in self.topology.bindings if item.source == name]
            owners = {None if end.to_exchange else homes.get(end.destination) for end in ends}
            owner = owners.pop() if len(owners) == 1 else None
            if owner is not None and owner not in {end.destination for end in ends}:
                found[name] = owner
        return found

    def family(self, owner: str, names: Sequence[str], exchanges: Sequence[str]) -> Iterator[str]:
        yield f'    subgraph {self.ids.of("family", owner)}["{label(owner)}"]'
        yield from (f"        {self.exchange(self.exchanges[name])}" for name in exchanges)
        yield from (f"        {self.queue(self.queues[name])}" for name in names)
        yield "    end"

    def exchange(self, exchange: Exchange) -> str:
        text = f"{label(exchange.name)}<br/>{label(exchange.type)}"
        return f'{self.ids.of("x", exchange.name)}{{{{"{text}"}}}}:::exchange'

    def queue(self, queue: Queue) -> str:
        """Return the node of a queue, with its type and TTL."""
        ttl_ms = queue.arguments.get("x-message-ttl")
        waits = isinstance(ttl_ms, int) and 0 <= ttl_ms <= LONGEST_MS
        wait = f", waits {format_duration(ttl_ms)}" if waits else ""  # type: ignore[arg-type]
        before, after = _SHAPES[self.roles[queue.name]]
        text = f"{label(queue.name)}<br/>{label(queue.type)}{wait}"
        return f"{self.ids.of('q', queue.name)}{before}{text}{after}"

    def delays(self) -> str:
        """Return a single node for all delay queues."""
        longest = format_duration(self.longest_delay_ms)
        return f'{self.ids.of("q", _DELAYS)}(["queues of delays<br/>wait up to {longest}"]):::retry'

    def draw_delays(self) -> Iterator[str]:
        """Yield a dashed line for due messages."""
        if self.longest_delay_ms:
            yield f'{self.ids.of("q", _DELAYS)} -.->|"due"| {self.node("x", DUE)}'

    def periodic(self) -> Iterator[str]:
        """Yield thick lines for periodic messages."""
        for name in self.queues:
            queue = queue_of_schedule(name)
            if queue in self.queues:
                yield f'{self.ids.of("q", name)} ==>|"periodic"| {self.node("q", queue)}'

    def node(self, kind: str, name: str) -> str:
        """Return the id of a node. Undeclared objects are added as separate nodes."""
        known = self.exchanges if kind == "x" else self.queues
        node = self.ids.of(kind, name)
        if name not in known:
            broker_own = kind == "x" and (not name or name.startswith("amq."))
            text = label(name) if name else "default exchange"
            style = "exchange" if broker_own else "missing"
            self.outside[node] = f'{node}{{{{"{text}"}}}}:::{style}'
        return node

    def bindings(self) -> Iterator[str]:
        """Yield solid lines for bindings. Bindings between the same nodes are combined."""
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
        """Yield dashed lines for dead-lettering by the broker."""
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
        """Yield thick lines for messages that are published by the consumer."""
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
        """Return the node that a message is published to."""
        return self.node("x", exchange) if exchange or key is None else self.node("q", key)


def draw_states(topology: Topology, queue: str | None = None) -> str:
    """Render the states of a message as a diagram. Defaults to the first queue with a plan."""
    plan = subject(topology, queue)
    states, moves, failure = list[str](), list[str](), 1
    for at, (tier, laps) in enumerate(waits(plan), start=1):
        wait = format_duration(tier.delay_ms)
        last = failure + laps - 1
        which = f"failure {failure}" if laps == 1 else f"failures {failure} to {last}"
        states.append(f'state "waits {wait} in {label(tier.routes[0].queue)}" as waiting_{at}')
        moves.append(f"handled --> waiting_{at}: {which}")
        moves.append(f"waiting_{at} --> ready: after {wait}")
        failure = last + 1
    moves.append(f"handled --> parked: failure {plan.attempts}, or permanent failure")
    if plan.snooze is not None:
        moves.append("handled --> ready: snoozed, after a short wait in the consumer")
    lines = [
        "stateDiagram-v2",
        "direction LR",
        f'state "ready in {label(plan.queue)}" as ready',
        'state "being handled" as handled',
        *states,
        f'state "parked in {label(plan.parking.queue)}" as parked',
        "[*] --> ready: published",
        "ready --> handled: delivered",
        "handled --> [*]: done",
        *moves,
        "parked --> ready: re-driven",
        "parked --> [*]: discarded",
    ]
    return "\n    ".join(lines) + "\n"


def draw_sequence(topology: Topology, queue: str | None = None) -> str:
    """Render the path of a failing message as a sequence diagram.

    Defaults to the first queue with a plan.
    """
    return "\n".join(_Sequence(topology, subject(topology, queue)).lines()) + "\n"


class _Sequence:
    def __init__(self, topology: Topology, plan: Plan) -> None:
        self.plan = plan
        self.ids = Ids()
        sources = (item.source for item in topology.bindings if item.destination == plan.queue)
        self.source = next(iter(sources), "")

    def lines(self) -> Iterator[str]:
        yield "sequenceDiagram"
        yield "    autonumber"
        yield from (f"    {line}" for line in self.participants())
        yield from (f"    {line}" for line in self.story())

    def participants(self) -> Iterator[str]:
        """Yield the participants from left to right."""
        yield "participant producer as producer"
        yield f"participant {self.exchange()} as {self.exchange_name()}"
        yield f"participant {self.queue(self.plan.queue)} as {label(self.plan.queue)}"
        yield "participant consumer as consumer"
        waiting = (tier.routes[0].queue for tier, _ in waits(self.plan))
        for name in dict.fromkeys((*waiting, self.plan.parking.queue)):
            yield f"participant {self.queue(name)} as {label(name)}"

    def story(self) -> Iterator[str]:
        main = self.queue(self.plan.queue)
        yield f"producer->>{self.exchange()}: publish"
        yield f"{self.exchange()}->>{main}: route"
        attempt = 1
        for tier, laps in waits(self.plan):
            yield from self.laps(tier, attempt, laps)
            attempt += laps
        yield f"{main}->>consumer: deliver (attempt {attempt} of {self.plan.attempts})"
        yield "consumer--xconsumer: the handler fails"
        yield from self.park()

    def laps(self, tier: Tier, attempt: int, laps: int) -> Iterator[str]:
        """Yield one or more rounds through a tier."""
        last = attempt + laps - 1
        which = f"attempt {attempt}" if laps == 1 else f"attempts {attempt} to {last}"
        lap = self.lap(tier, f"{which} of {self.plan.attempts}")
        if laps == 1:
            yield from lap
        else:
            yield f"loop {laps} times"
            yield from (f"    {line}" for line in lap)
            yield "end"

    def lap(self, tier: Tier, which: str) -> Iterator[str]:
        """Yield a single round: delivery, failure, delay and return."""
        main, waiting = self.queue(self.plan.queue), self.queue(tier.routes[0].queue)
        yield f"{main}->>consumer: deliver ({which})"
        yield "consumer--xconsumer: the handler fails"
        yield from self.leave(self.plan.leave, waiting)
        yield f"Note over {waiting}: waits {format_duration(tier.delay_ms)}"
        if self.plan.returns is Return.EXCHANGE:
            yield f"{waiting}-->>{main}: expired, back through an exchange"
        else:
            yield f"{waiting}-->>{main}: expired, back to its queue"

    def leave(self, by: Leave, end: str) -> Iterator[str]:
        """Yield the steps that move a failed message to another queue."""
        main = self.queue(self.plan.queue)
        if by is Leave.PUBLISH:
            yield f"consumer->>{end}: publish"
            yield f"{end}-->>consumer: confirm"
            yield f"consumer->>{main}: ack"
        else:
            yield f"consumer->>{main}: reject"
            yield f"{main}-->>{end}: dead-letter"

    def park(self) -> Iterator[str]:
        """Yield the steps that dead-letter a message."""
        end = self.queue(self.plan.parking.queue)
        yield from self.leave(self.plan.parking.by, end)
        yield f"Note over {end}: parked until it is re-driven or discarded"

    def exchange(self) -> str:
        """Return the id of the exchange that is bound to the queue."""
        return self.ids.of("x", self.source)

    def exchange_name(self) -> str:
        return label(self.source) if self.source else "default exchange"

    def queue(self, name: str) -> str:
        return self.ids.of("q", name)


def subject(topology: Topology, queue: str | None) -> Plan:
    """Return the plan of the queue, or the first plan if `queue` is None.

    Raises:
        InvalidTopology: If there is no such plan.
    """
    plan = next((plan for plan in topology.plans if queue in (None, plan.queue)), None)
    if plan is not None:
        return plan
    known = [plan.queue for plan in topology.plans]
    expected = either(known) if known else "a topology with a failure plan"
    got = "none" if queue is None else show_value(queue) + did_you_mean(queue, known)
    raise InvalidTopology((Problem("queue", expected, got),), where=topology.name)


_WORD = re.compile(r"[^A-Za-z0-9]+", re.ASCII)
_LONGEST_ID = 40  # keeps the source of the diagram readable
_PLAIN = frozenset(" .,_-*/()+=→…")


def label(text: str) -> str:
    """Escape text for use in a label.

    All characters except letters, digits and a few others are replaced with entities.
    """
    written = ""
    for sign in text:
        if sign in _PLAIN or sign.isalnum():
            written += sign
        else:
            # There is no entity for unprintable characters.
            written += f"#{ord(sign)};" if sign.isprintable() else "\N{REPLACEMENT CHARACTER}"
    return written or "(no name)"


class Ids:
    """Assigns a unique id to each name."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], str] = {}
        self._taken: set[str] = set()

    def of(self, kind: str, name: str) -> str:
        if (kind, name) in self._given:
            return self._given[kind, name]
        stem = f"{kind}_{_WORD.sub('_', name).strip('_')[:_LONGEST_ID]}".rstrip("_")
        number, chosen = 1, stem
        while chosen in self._taken:
            number += 1
            chosen = f"{stem}_{number}"
        self._taken.add(chosen)
        self._given[kind, name] = chosen
        return chosen
