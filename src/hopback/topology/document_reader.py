"""Reading a topology document, short form and explicit form, with every problem at its path."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from hopback.topology.arguments import decode, decode_table
from hopback.topology.durations import format_duration
from hopback.topology.located import Located
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology, freeze
from hopback.topology.plan import (
    Count,
    Fact,
    Leave,
    LocalWait,
    Parking,
    Plan,
    Redrive,
    Return,
    Route,
    Stamp,
    Tier,
)
from hopback.topology.recommended_form import Pattern, read_recommended
from hopback.topology.validate import problems

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.errors import Problem
    from hopback.topology.located import Table

__all__ = ["read_document", "read_plan"]


def read_plan(queue: str, place: Located) -> Plan:
    """The plan of this queue."""
    table = place.table()
    parking = table.need("parking", _parking, Parking("", Leave.PUBLISH, "", ""), "a table")
    plan = Plan(
        queue=queue,
        attempts=table.need("attempts", Located.positive, 1, "how often the handler may run"),
        tiers=tuple(_tier(item) for item in table.items("tiers")),
        leave=table.read("leave", _leave, Leave.PUBLISH),
        returns=table.read("returns", lambda inner: inner.option(Return), Return.QUEUE),
        parking=parking,
        count=table.read("count", lambda inner: inner.option(Count), Count.HEADER),
        redrive=table.read("redrive", lambda inner: _redrive(inner, queue), Redrive("", queue)),
        count_header=table.read("count_header", Located.text, None),
        snooze=table.read("snooze", _snooze, None),
        snooze_exhausts=table.read("snooze_exhausts", Located.flag, False),
        retry_stamps=_stamps(table, "retry_stamps"),
        park_stamps=_stamps(table, "park_stamps"),
    )
    table.close()
    return plan


def _leave(place: Located) -> Leave:
    return place.option(Leave)


def _parking(place: Located) -> Parking:
    table = place.table()
    queue = table.need("queue", Located.text, "", "the name of the dead-letter queue")
    parking = Parking(
        queue,
        table.read("by", _leave, Leave.PUBLISH),
        table.read("exchange", Located.text, ""),
        table.read("key", Located.text, queue),
    )
    table.close()
    return parking


def _redrive(place: Located, queue: str) -> Redrive:
    table = place.table()
    redrive = Redrive(
        table.read("exchange", Located.text, ""),
        table.read("key", Located.text, queue),
        table.read("reset", Located.flag, True),
        table.read("keep_deaths", Located.flag, False),
    )
    table.close()
    return redrive


def _snooze(place: Located) -> LocalWait | None:
    table = place.table()
    usual = LocalWait()
    wait = LocalWait(
        table.read("min", Located.duration_ms, usual.min_ms),
        table.read("max", Located.duration_ms, usual.max_ms),
    )
    table.close()
    return wait


def _tier(place: Located) -> Tier:
    table = place.table()
    delay_ms = table.need("delay", Located.duration_ms, 0, "a duration like 30s")
    tier = Tier(
        table.read("name", Located.text, format_duration(delay_ms)),
        delay_ms,
        tuple(_route(item) for item in table.items("routes")),
    )
    table.close()
    return tier


def _route(place: Located) -> Route:
    table = place.table()
    queue = table.need("queue", Located.text, "", "the name of the retry queue")
    route = Route(
        table.read("exchange", Located.text, ""),
        table.read("key", Located.text, queue),
        queue,
        table.read("pattern", Located.text, "#"),
    )
    table.close()
    return route


def _stamps(table: Table, key: str) -> tuple[Stamp, ...]:
    return tuple(_stamp(item) for item in table.items(key))


def _stamp(place: Located) -> Stamp:
    table = place.table()
    facts = ", ".join(Fact)
    stamp = Stamp(
        table.need("header", Located.text, "", "the name of a header"),
        table.need("fact", lambda inner: inner.option(Fact), Fact.NOW, f"one of {facts}"),
        table.read("once", Located.flag, False),
    )
    table.close()
    return stamp


def read_document(data: Mapping[str, object], *, where: str = "topology") -> Topology:
    """The topology that a document describes; InvalidTopology lists everything wrong with it."""
    root = Located("", data, [])
    reader = _DocumentReader(root.table())
    topology = reader.topology()
    blamed = [problem.path for problem in root.problems]
    root.problems.extend(
        problem
        for problem in problems(topology, binding_paths=reader.binding_paths)
        if not _explained(problem, blamed)
    )
    root.check(where)
    return topology


def _explained(problem: Problem, blamed: list[str]) -> bool:
    """Whether it only follows from something that could not be read at or above its place."""
    return any(
        problem.path == path or problem.path.startswith((f"{path}.", f"{path}[")) for path in blamed
    )


class _DocumentReader:
    """Collects the objects of one document: bindings and queues come from several of its places."""

    def __init__(self, root: Table) -> None:
        self.root = root
        self.queues: list[Queue] = []
        self.bindings: list[Binding] = []
        self.binding_paths: list[str] = []
        self.plans: list[Plan] = []
        self.unconsumed: set[str] = set()

    def topology(self) -> Topology:
        """Everything read, in the order of the file."""
        root = self.root
        name = root.read("name", Located.text, "topology")
        exchanges = tuple(self.exchange(*entry) for entry in root.entries("exchanges"))
        explicit = dict(root.entries("plans"))
        for entry in root.entries("queues"):
            self.queue(*entry, planned=entry[0] in explicit)
        for place in root.items("bindings"):
            self.binding(place)
        self.plans += [read_plan(*entry) for entry in explicit.items()]
        policies = tuple(_policy(*entry) for entry in root.entries("policies"))
        foreign = {key: freeze(decode(place)) for key, place in root.entries("foreign")}
        root.close()
        return Topology(
            name,
            exchanges,
            tuple(self.queues),
            tuple(self.bindings),
            tuple(self.plans),
            policies,
            MappingProxyType(foreign),
            frozenset(self.unconsumed),
        )

    def exchange(self, name: str, place: Located) -> Exchange:
        """One exchange, with the bindings that feed it."""
        table = place.table()
        exchange = Exchange(
            name,
            type=table.read("type", Located.text, "direct"),
            durable=table.read("durable", Located.flag, True),
            auto_delete=table.read("auto_delete", Located.flag, False),
            internal=table.read("internal", Located.flag, False),
            arguments=table.read("arguments", decode_table, {}),
        )
        for item in table.items("bindings"):
            self.binding(item, to=name, to_exchange=True)
        table.close()
        return exchange

    def queue(self, name: str, place: Located, *, planned: bool) -> None:
        """One queue and all that its pattern makes of it."""
        table = place.table()
        consumed = table.read("consumers", Located.flag, True)
        self.unconsumed |= set() if consumed else {name}
        if _pattern(table, silent=planned or not consumed) is Pattern.RECOMMENDED:
            queues, plan = read_recommended(name, table)
            self.queues += queues
            self.plans += [plan] if plan else []
        else:
            self.queues.append(_plain(name, table))
        for item in table.items("bindings"):
            self.binding(item, to=name)
        table.close()

    def binding(self, place: Located, to: str | None = None, to_exchange: bool = False) -> None:
        """One binding; `to` is known where it stands under the queue or exchange it feeds."""
        table = place.table()
        source = table.need("exchange", Located.text, "", "the name of an exchange")
        destination, to_exchange = (to, to_exchange) if to is not None else _destination(table)
        self.binding_paths.append(place.path)
        self.bindings.append(
            Binding(
                source,
                destination,
                table.read("key", Located.text, ""),
                to_exchange,
                table.read("arguments", decode_table, {}),
            )
        )
        table.close()


def _destination(table: Table) -> tuple[str, bool]:
    queue, exchange = table.get("queue"), table.get("to_exchange")
    if queue is not None and exchange is not None:
        exchange.wrong("either `queue` or `to_exchange`", "both")
    if queue is None and exchange is not None:
        return exchange.text(), True
    return table.need("queue", Located.text, "", "the name of a queue, or `to_exchange`"), False


def _pattern(table: Table, silent: bool) -> Pattern:
    """The pattern that is asked for; `silent` if none is meant where nothing is said."""
    place = table.get("pattern")
    if place is None:
        return Pattern.NONE if silent else Pattern.RECOMMENDED
    if place.value in tuple(Pattern):
        return place.option(Pattern)
    place.option(Pattern)
    return Pattern.NONE if table.get("retry") is None else Pattern.RECOMMENDED


def _plain(name: str, table: Table) -> Queue:
    for key in ("retry", "attempts", "delivery_limit"):
        place = table.get(key)
        if place is not None:
            place.wrong('`pattern = "recommended"` beside it')
    return Queue(
        name,
        type=table.read("type", lambda inner: inner.option(QueueType), QueueType.CLASSIC),
        durable=table.read("durable", Located.flag, True),
        exclusive=table.read("exclusive", Located.flag, False),
        auto_delete=table.read("auto_delete", Located.flag, False),
        arguments=table.read("arguments", decode_table, {}),
    )


def _policy(name: str, place: Located) -> Policy:
    table = place.table()
    policy = Policy(
        name,
        pattern=table.need("pattern", Located.text, "", "a regular expression"),
        definition=table.need("definition", decode_table, {}, "a table of policy keys"),
        priority=table.read("priority", Located.integer, 0),
        apply_to=table.read("apply_to", Located.text, "all"),
    )
    table.close()
    return policy
