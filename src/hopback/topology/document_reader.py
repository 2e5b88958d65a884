"""Reading a topology document, short form and explicit form, with every problem at its path."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from hopback.topology.arguments import decode, decode_table
from hopback.topology.document_plans import read_plan
from hopback.topology.located import Located
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology, freeze
from hopback.topology.recommended_form import Pattern, read_recommended
from hopback.topology.validate import problems

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.errors import Problem
    from hopback.topology.located import Table
    from hopback.topology.plan import Plan

__all__ = ["read_document"]


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
