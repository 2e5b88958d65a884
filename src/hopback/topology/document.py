"""Convert topologies to plain documents and TOML files.

`to_document` and `from_document` are inverse. Documents can also use a short form for handwritten
files. See `docs/reference/topology-file.md` for the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

from hopback.durations import format_duration
from hopback.errors import InvalidTopology
from hopback.topology.arguments import decode, decode_table, encode, encode_table
from hopback.topology.expand import DELIVERY_LIMIT, harden_queues, recommend_plan
from hopback.topology.located import Located, Table, toml_problem
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
from hopback.topology.validate import problems

if TYPE_CHECKING:
    from hopback.fields import FieldValue


def from_document(data: Mapping[str, object], *, where: str = "topology") -> Topology:
    """Create a topology from a document.

    Raises:
        InvalidTopology: If the document is invalid. Contains all problems.
    """
    return read_document(data, where=where)


def to_document(topology: Topology, *, terse: bool = False) -> dict[str, object]:
    """Convert a topology to a document.

    Args:
        topology: The topology.
        terse: If True, omit defaults and use the short form where possible.

    Raises:
        InvalidTopology: If the topology is invalid, for example because of duplicate names.
    """
    found = problems(topology)
    if found:
        raise InvalidTopology(found, where=f"topology {topology.name!r}")
    if not terse:
        return write_explicit(topology, terse=False)
    candidates = (write_short(topology, nested=nested) for nested in (True, False))
    same = (candidate for candidate in candidates if read_document(candidate) == topology)
    return next(same, None) or write_explicit(topology, terse=True)


def read_plan(queue: str, place: Located) -> Plan:
    table = place.table()
    parking = table.need("parking", _parking, Parking("", Leave.PUBLISH, "", ""), "a table")
    plan = Plan(
        queue=queue,
        attempts=table.need("attempts", Located.positive, 1, "how often the handler may run"),
        tiers=_tiers(table),
        leave=table.read("leave", _leave, Leave.PUBLISH),
        returns=table.read("returns", lambda inner: inner.option(Return), Return.QUEUE),
        parking=parking,
        count=table.read("count", lambda inner: inner.option(Count), Count.HEADER),
        redrive=table.read("redrive", lambda inner: _redrive(inner, queue), Redrive("", queue)),
        count_header=table.read("count_header", Located.text, None),
        snooze=table.read("snooze", _snooze, None),
        snooze_exhausts=table.read("snooze_exhausts", Located.flag, False),
        retry_stamps=_header_stamps(table, "retry_stamps"),
        park_stamps=_header_stamps(table, "park_stamps"),
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


def _tiers(plan: Table) -> tuple[Tier, ...]:
    tiers = []
    for each in plan.items("tiers"):
        table = each.table()
        delay_ms = table.need("delay", Located.duration_ms, 0, "a duration like 30s")
        name = table.read("name", Located.text, format_duration(delay_ms))
        routes = []
        for item in table.items("routes"):
            way = item.table()
            queue = way.need("queue", Located.text, "", "the name of the retry queue")
            exchange = way.read("exchange", Located.text, "")
            key = way.read("key", Located.text, queue)
            routes.append(Route(exchange, key, queue, way.read("pattern", Located.text, "#")))
            way.close()
        tiers.append(Tier(name, delay_ms, tuple(routes)))
        table.close()
    return tuple(tiers)


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


def _header_stamps(plan: Table, key: str) -> tuple[Stamp, ...]:
    stamps = []
    for item in plan.items(key):
        table = item.table()
        header = table.need("header", Located.text, "", "the name of a header")
        facts = f"one of {', '.join(Fact)}"
        fact = table.need("fact", lambda inner: inner.option(Fact), Fact.NOW, facts)
        stamps.append(Stamp(header, fact, table.read("once", Located.flag, False)))
        table.close()
    return tuple(stamps)


def read_document(data: Mapping[str, object], *, where: str = "topology") -> Topology:
    """Create a topology from a document.

    Raises:
        InvalidTopology: If the document is invalid. Contains all problems.
    """
    root = Located("", data, [])
    reader = _DocumentReader(root.table())
    topology = reader.topology()
    blamed = {problem.path for problem in root.problems}
    # Skip problems that are caused by another problem at the same path or above.
    above = tuple(f"{path}{step}" for path in blamed for step in ".[")
    root.problems.extend(
        problem
        for problem in problems(topology, binding_paths=reader.binding_paths)
        if problem.path not in blamed and not problem.path.startswith(above)
    )
    root.check(where)
    return topology


class _DocumentReader:
    """Collects the objects of a document."""

    def __init__(self, root: Table) -> None:
        self.root = root
        self.queues: list[Queue] = []
        self.bindings: list[Binding] = []
        self.binding_paths: list[str] = []
        self.plans: list[Plan] = []
        self.unconsumed: set[str] = set()

    def topology(self) -> Topology:
        root = self.root
        name = root.read("name", Located.text, "topology")
        exchanges = tuple(self.exchange(*entry) for entry in root.entries("exchanges"))
        explicit = dict(root.entries("plans"))
        for entry in root.entries("queues"):
            self.queue(*entry, planned=entry[0] in explicit)
        for place in root.items("bindings"):
            self.binding(place)
        self.plans += [read_plan(*entry) for entry in explicit.items()]
        policies = []
        for policy, place in root.entries("policies"):
            table = place.table()
            policies.append(
                Policy(
                    policy,
                    pattern=table.need("pattern", Located.text, "", "a regular expression"),
                    definition=table.need("definition", decode_table, {}, "a table of policy keys"),
                    priority=table.read("priority", Located.integer, 0),
                    apply_to=table.read("apply_to", Located.text, "all"),
                )
            )
            table.close()
        foreign = {key: freeze(decode(place)) for key, place in root.entries("foreign")}
        root.close()
        return Topology(
            name,
            exchanges,
            tuple(self.queues),
            tuple(self.bindings),
            tuple(self.plans),
            tuple(policies),
            MappingProxyType(foreign),
            frozenset(self.unconsumed),
        )

    def exchange(self, name: str, place: Located) -> Exchange:
        """Read an exchange and its bindings."""
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
        """Read a queue, including the objects that are created by its pattern."""
        table = place.table()
        consumed = table.read("consumers", Located.flag, True)
        self.unconsumed |= set() if consumed else {name}
        if _pattern(table, silent=planned or not consumed) is Pattern.RECOMMENDED:
            queues, plan = read_recommended(name, table)
            self.queues += queues
            self.plans += [plan] if plan else []
        else:
            for key in ("retry", "attempts", "delivery_limit"):
                beside = table.get(key)
                if beside is not None:
                    beside.wrong('`pattern = "recommended"` in the same queue')
            self.queues.append(
                Queue(
                    name,
                    type=table.read(
                        "type", lambda inner: inner.option(QueueType), QueueType.CLASSIC
                    ),
                    durable=table.read("durable", Located.flag, True),
                    exclusive=table.read("exclusive", Located.flag, False),
                    auto_delete=table.read("auto_delete", Located.flag, False),
                    arguments=table.read("arguments", decode_table, {}),
                )
            )
        for item in table.items("bindings"):
            self.binding(item, to=name)
        table.close()

    def binding(self, place: Located, to: str | None = None, to_exchange: bool = False) -> None:
        """Read a binding. `to` is set if the binding is nested in a queue or exchange."""
        table = place.table()
        source = table.need("exchange", Located.text, "", "the name of an exchange")
        if to is None:
            exchange = table.get("to_exchange")
            if exchange is not None and table.get("queue") is not None:
                exchange.wrong("either `queue` or `to_exchange`", "both")
            to_exchange = exchange is not None
            expected = "the name of a queue, or `to_exchange`"
            to = (
                table.need("queue", Located.text, "", expected)
                if exchange is None
                else exchange.text()
            )
        self.binding_paths.append(place.path)
        self.bindings.append(
            Binding(
                source,
                to,
                table.read("key", Located.text, ""),
                to_exchange,
                table.read("arguments", decode_table, {}),
            )
        )
        table.close()


def _pattern(table: Table, silent: bool) -> Pattern:
    """Return the pattern of a queue. If `silent` is True, it defaults to NONE."""
    place = table.get("pattern")
    if place is None:
        return Pattern.NONE if silent else Pattern.RECOMMENDED
    if place.value in tuple(Pattern):
        return place.option(Pattern)
    place.option(Pattern)
    return Pattern.NONE if table.get("retry") is None else Pattern.RECOMMENDED


class Pattern(StrEnum):
    """Defines which objects are declared for a queue."""

    RECOMMENDED = "recommended"
    """The queue with retry queues, a dead-letter queue and a plan. All of them are quorum queues."""
    NONE = "none"
    """The queue without any other objects."""


def read_recommended(name: str, table: Table) -> tuple[tuple[Queue, ...], Plan | None]:
    """Read a queue in short form. The plan is None if the delays are invalid."""
    tiers_ms = _tiers_ms(table)
    attempts = table.read("attempts", Located.positive, None)
    delivery_limit = table.read("delivery_limit", Located.positive, DELIVERY_LIMIT)
    arguments: dict[str, FieldValue] = table.read("arguments", decode_table, {})
    place = table.get("type")
    if place is not None and place.option(QueueType) is not QueueType.QUORUM:
        place.wrong('"quorum", the type of the recommended pattern (or `pattern = "none"`)')
    for key, only in (("durable", True), ("exclusive", False), ("auto_delete", False)):
        flag = table.get(key)
        if flag is not None and flag.value is not only:
            flag.wrong(f"{str(only).lower()}, as in every recommended queue")
    if tiers_ms is None or not name:
        return (Queue(name, QueueType.QUORUM, arguments=arguments),), None
    plan = recommend_plan(name, tiers_ms=tiers_ms, attempts=attempts)
    main, *others = harden_queues(plan, delivery_limit=delivery_limit)
    # These arguments protect messages from being lost and cannot be changed.
    for key in main.arguments.keys() & arguments.keys():
        hint = " (use `delivery_limit`)" if key == "x-delivery-limit" else ""
        own = table.place.inner("arguments", None).inner(key, arguments[key])
        own.wrong(f"no argument that the pattern sets{hint}")
    together = {**main.arguments, **arguments}
    return (replace(main, arguments=together), *others), plan


def write_recommended(plan: Plan, topology: Topology) -> dict[str, object] | None:
    """Return the short form of a queue, or None if it cannot be expressed in short form."""
    main = topology.queue(plan.queue)
    limit = main.arguments.get("x-delivery-limit") if main is not None else None
    if main is None or not isinstance(limit, int) or limit < 1:
        return None
    tiers_ms = [tier.delay_ms for tier in plan.tiers]
    try:
        recommended = recommend_plan(plan.queue, tiers_ms=tiers_ms, attempts=plan.attempts)
    except InvalidTopology:
        return None
    if plan != recommended:
        return None
    own, *others = harden_queues(plan, delivery_limit=limit)
    shared = {key: value for key, value in main.arguments.items() if key in own.arguments}
    if replace(main, arguments=shared) != own:
        return None
    if any(topology.queue(queue.name) != queue for queue in others):
        return None
    further = {key: value for key, value in main.arguments.items() if key not in shared}
    fields: dict[str, object] = {
        "retry": [{"delay": format_duration(tier.delay_ms)} for tier in plan.tiers]
    }
    fields |= {"attempts": plan.attempts} if plan.attempts != len(plan.tiers) + 1 else {}
    fields |= {"delivery_limit": int(limit)} if limit != DELIVERY_LIMIT else {}
    return fields | ({"arguments": encode_table(further)} if further else {})


def _tiers_ms(table: Table) -> tuple[int, ...] | None:
    """Return the delays, or None if one of them is invalid."""
    place = table.get("retry")
    if place is None:
        table.place.wrong(
            'a failure plan such as `retry = ["30s", "5m"]`, or'
            " `consumers = false` for a queue without consumers",
            "neither",
        )
        return None
    known = len(place.problems)
    if not isinstance(place.value, list | tuple):
        place.wrong('an array such as `["30s", "5m"]`')
        return None
    delays = [_read_tier(item) for item in place.items()]
    for (_, before), (delay, after) in pairwise(delays):
        if 0 < after < before:
            longer = f"a delay no shorter than the tier before it ({format_duration(before)})"
            delay.wrong(longer, format_duration(after))
    tiers_ms = tuple(delay_ms for _, delay_ms in delays)
    return tiers_ms if len(place.problems) == known else None


def _read_tier(item: Located) -> tuple[Located, int]:
    """Read a tier, `"30s"` or `{ delay = "30s" }`. The delay is 0 if it is invalid."""
    if isinstance(item.value, str):
        return _read_delay(item)
    if not isinstance(item.value, Mapping):
        # A number would be milliseconds here and seconds in Python.
        item.wrong('a duration such as "30s"')
        return item, 0
    tier, missing = item.table(), (item.inner("delay", None), 0)
    delay = tier.need("delay", _read_delay, missing, "a duration like 30s")
    tier.close()
    return delay


def _read_delay(delay: Located) -> tuple[Located, int]:
    known = len(delay.problems)
    delay_ms = delay.duration_ms()
    if delay_ms == 0 and len(delay.problems) == known:
        delay.wrong("a delay longer than 0s", "0s")
    return delay, delay_ms


def write_short(topology: Topology, *, nested: bool) -> dict[str, object]:
    """Return the document in short form. If `nested` is True, bindings are part of queues and
    exchanges.

    The result may describe a different topology, for example because of the order. `to_document`
    checks this.
    """
    # Find the queues that have a short form.
    forms = ((plan.queue, write_recommended(plan, topology)) for plan in topology.plans)
    short = {queue: form for queue, form in forms if form is not None}
    exchanges = {item.name: write_exchange(item, terse=True) for item in topology.exchanges}
    implied = {
        queue.name
        for plan in topology.plans
        if plan.queue in short
        for queue in harden_queues(plan)
    }
    queues = {
        queue.name: short.get(queue.name) or write_queue(queue, topology, terse=True)
        for queue in topology.queues
        if queue.name in short or queue.name not in implied
    }
    for item in topology.bindings if nested else ():
        # Nest the binding if its destination has an entry.
        home = (exchanges if item.to_exchange else queues).get(item.destination)
        if home is not None:
            written = write_binding(item, terse=True)
            here = {key: written[key] for key in written if key not in ("queue", "to_exchange")}
            already = home.get("bindings")
            home["bindings"] = [*(already if isinstance(already, list) else []), here]
    whole = write_explicit(topology, terse=True) | {
        "exchanges": exchanges,
        "queues": queues,
        "plans": {
            plan.queue: write_plan(plan, terse=True)
            for plan in topology.plans
            if plan.queue not in short
        },
    }
    return {
        key: value for key, value in whole.items() if value and not (nested and key == "bindings")
    }


_Field = tuple[str, object, object]


def write_explicit(topology: Topology, terse: bool) -> dict[str, object]:
    """Return the document in full. If `terse` is True, defaults are omitted."""
    policies = {
        policy.name: _fields(
            terse,
            ("pattern", policy.pattern, None),
            ("apply_to", policy.apply_to, "all"),
            ("priority", policy.priority, 0),
            ("definition", encode_table(policy.definition), None),
        )
        for policy in topology.policies
    }
    return _fields(
        terse,
        ("name", topology.name, None),
        ("exchanges", {item.name: write_exchange(item, terse) for item in topology.exchanges}, {}),
        ("queues", {item.name: write_queue(item, topology, terse) for item in topology.queues}, {}),
        ("bindings", [write_binding(item, terse) for item in topology.bindings], []),
        ("plans", {plan.queue: write_plan(plan, terse) for plan in topology.plans}, {}),
        ("policies", policies, {}),
        ("foreign", {key: encode(value) for key, value in topology.foreign.items()}, {}),  # type: ignore[arg-type]
    )


def _fields(terse: bool, *fields: _Field) -> dict[str, object]:
    """Build a table. Fields that are None are omitted, because TOML does not have null."""
    return {
        key: value
        for key, value, default in fields
        if value is not None and not (terse and value == default)
    }


def write_exchange(exchange: Exchange, terse: bool) -> dict[str, object]:
    return _fields(
        terse,
        ("type", str(exchange.type), None),
        ("durable", exchange.durable, True),
        ("auto_delete", exchange.auto_delete, False),
        ("internal", exchange.internal, False),
        ("arguments", encode_table(exchange.arguments), {}),
    )


def write_queue(queue: Queue, topology: Topology, terse: bool) -> dict[str, object]:
    unconsumed = queue.name in topology.unconsumed
    silent = unconsumed or topology.plan(queue.name) is not None
    return _fields(
        terse,
        ("pattern", "none", "none" if silent else None),
        ("consumers", False if unconsumed else None, None),
        ("type", str(queue.type), None),
        ("durable", queue.durable, True),
        ("exclusive", queue.exclusive, False),
        ("auto_delete", queue.auto_delete, False),
        ("arguments", encode_table(queue.arguments), {}),
    )


def write_binding(binding: Binding, terse: bool) -> dict[str, object]:
    return _fields(
        terse,
        ("exchange", binding.source, None),
        ("to_exchange" if binding.to_exchange else "queue", binding.destination, None),
        ("key", binding.routing_key, ""),
        ("arguments", encode_table(binding.arguments), {}),
    )


def write_plan(plan: Plan, terse: bool) -> dict[str, object]:
    """Return the full table of a plan."""
    parking, redrive, wait = plan.parking, plan.redrive, plan.snooze
    return _fields(
        terse,
        ("attempts", plan.attempts, None),
        ("leave", str(plan.leave), None),
        ("returns", str(plan.returns), None),
        ("count", str(plan.count), None),
        ("count_header", plan.count_header, None),
        ("snooze_exhausts", plan.snooze_exhausts, False),
        (
            "snooze",
            wait and {"min": format_duration(wait.min_ms), "max": format_duration(wait.max_ms)},
            None,
        ),
        (
            "parking",
            {
                "queue": parking.queue,
                "by": str(parking.by),
                "exchange": parking.exchange,
                "key": parking.routing_key,
            },
            None,
        ),
        (
            "redrive",
            {
                "exchange": redrive.exchange,
                "key": redrive.routing_key,
                "reset": redrive.reset,
                "keep_deaths": redrive.keep_deaths,
            },
            None,
        ),
        ("retry_stamps", [_write_stamp(stamp, terse) for stamp in plan.retry_stamps], []),
        ("park_stamps", [_write_stamp(stamp, terse) for stamp in plan.park_stamps], []),
        ("tiers", [_write_tier(tier, terse) for tier in plan.tiers], []),
    )


def _write_stamp(stamp: Stamp, terse: bool) -> dict[str, object]:
    return _fields(
        terse,
        ("header", stamp.header, None),
        ("fact", str(stamp.fact), None),
        ("once", stamp.once, False),
    )


def _write_tier(tier: Tier, terse: bool) -> dict[str, object]:
    return _fields(
        terse,
        ("name", tier.name, None),
        ("delay", format_duration(tier.delay_ms), None),
        (
            "routes",
            [
                _fields(
                    terse,
                    ("exchange", route.exchange, None),
                    ("key", route.routing_key, None),
                    ("queue", route.queue, None),
                    ("pattern", route.pattern, "#"),
                )
                for route in tier.routes
            ],
            None,
        ),
    )


def read_toml(text: str, *, where: str = "topology.toml") -> Topology:
    """Read a topology from TOML.

    Args:
        text: The content of the file.
        where: The name of the file, used in errors.

    Raises:
        InvalidTopology: If the file is invalid. Contains all problems.
    """
    # Import the parser here, because designs don't need it.
    import tomllib

    try:
        data = tomllib.loads(text)
    except (RecursionError, ValueError) as error:
        raise InvalidTopology((toml_problem(error),), where=where) from None
    return from_document(data, where=where)


def write_toml(topology: Topology) -> str:
    """Write a topology as TOML. Raises InvalidTopology if it is invalid."""
    import tomli_w

    return tomli_w.dumps(to_document(topology, terse=True))
