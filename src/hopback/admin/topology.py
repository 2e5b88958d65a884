"""The topology in the API and on the page: what stands on the broker, its hazards, its routes, a plan."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from markupsafe import Markup
from msgspec import Meta, Struct
from starlette.responses import JSONResponse, Response

from hopback.admin.api import ApiTable, Call, Empty
from hopback.admin.pages import Pages
from hopback.admin.problems import Refused
from hopback.admin.queue_rules import BROKER_MAP, QueueRule
from hopback.admin.roles import Role
from hopback.deadletters.contract import Moment
from hopback.errors import InvalidTopology
from hopback.topology.asyncapi import write_asyncapi
from hopback.topology.check import Severity  # noqa: TC001
from hopback.topology.definitions import write_definitions
from hopback.topology.delays import (
    DUE,
    is_delay_level,
    longest_delay_ms,
    scheduled_queue,
    without_delay_levels,
)
from hopback.topology.diagram import draw_flow
from hopback.topology.document import from_document, to_document
from hopback.topology.durations import LONGEST_MS, format_duration
from hopback.topology.effective import effective_topology
from hopback.topology.hazards.rule import Finding  # noqa: TC001
from hopback.topology.plan import Leave
from hopback.topology.roles import QueueRole, queue_roles
from hopback.topology.routing import PREDECLARED, RoutingTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.admin.pages import Visit
    from hopback.deadletters.live import BrokerSnapshot
    from hopback.rehearse.scenario import Scenario
    from hopback.topology.model import Queue

__all__ = [
    "TOPOLOGY",
    "TOPOLOGY_PAGES",
    "CheckAnswer",
    "ConflictAnswer",
    "DelayedRow",
    "DesiredTopology",
    "DifferenceAnswer",
    "ExchangeRow",
    "FindingAnswer",
    "Format",
    "PlannedAnswer",
    "QueueRow",
    "RouteAnswer",
    "RouteQuery",
    "StepAnswer",
    "TopologyAnswer",
    "TopologyQuery",
    "delayed_messages",
    "exchange_rows",
    "finding_answer",
    "graph",
    "queue_rows",
]

_DEFINITIONS = "application/vnd.rabbitmq.definitions+json"
_ASYNCAPI = "application/vnd.aai.asyncapi+json"
_Name = Annotated[str, Meta(max_length=255)]


TOPOLOGY = ApiTable()
"""The rows of this part, each above what answers it."""


class Format(StrEnum):
    """The forms of a topology."""

    JSON = "json"
    MERMAID = "mermaid"
    DEFINITIONS = "definitions"
    ASYNCAPI = "asyncapi"


class TopologyQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """In which form."""

    format: Format = Format.JSON


class TopologyAnswer(Struct, frozen=True, rename="camel"):
    """The topology of the broker; `live` is false if only what is declared is known."""

    broker: str
    broker_version: str
    read_at: Moment
    live: bool
    topology: dict[str, Any]


class FindingAnswer(Struct, frozen=True, rename="camel"):
    """A hazard."""

    rule: str
    severity: Severity
    place: str
    explanation: str
    fix: str


class CheckAnswer(Struct, frozen=True, rename="camel"):
    """The hazards of what stands on the broker, the gravest first."""

    broker_version: str
    read_at: Moment
    items: list[FindingAnswer]
    total: int


class RouteQuery(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A publish to ask about."""

    exchange: _Name = ""
    routing_key: _Name = ""


class RouteAnswer(Struct, frozen=True, rename="camel"):
    """The queues that a publish would reach."""

    exchange: str
    routing_key: str
    queues: list[str]


class DesiredTopology(Struct, frozen=True, forbid_unknown_fields=True):
    """A topology as `GET /admin/topology` gives it, or as a file has it."""

    topology: dict[str, Any]


class StepAnswer(Struct, frozen=True, rename="camel"):
    """Something that would be created."""

    kind: str
    name: str
    why: str


class DifferenceAnswer(Struct, frozen=True, rename="camel"):
    """Where the broker has something else."""

    field: str
    desired: str
    actual: str
    advice: str


class ConflictAnswer(Struct, frozen=True, rename="camel"):
    """An object that exists and differs."""

    kind: str
    name: str
    differences: list[DifferenceAnswer]


class PlannedAnswer(Struct, frozen=True, rename="camel"):
    """What `hopback topology apply` would do; nothing was changed."""

    broker_version: str
    settled: bool
    create: list[StepAnswer]
    conflicts: list[ConflictAnswer]
    same: int
    extra: int
    notes: list[str]


@TOPOLOGY.row(
    "GET",
    "/admin/topology",
    Role.VIEWER,
    BROKER_MAP,
    query=TopologyQuery,
    answer=TopologyAnswer,
    media=("application/json", "text/vnd.mermaid", _DEFINITIONS, _ASYNCAPI),
)
async def _show_topology(call: Call[TopologyQuery, None]) -> object:
    """What stands on the broker, as JSON, Mermaid, definitions or AsyncAPI."""
    snapshot = await call.services.live.snapshot()
    match call.query.format:
        case Format.MERMAID:
            return Response(draw_flow(snapshot.topology), media_type="text/vnd.mermaid")
        case Format.DEFINITIONS:
            definitions, _ = write_definitions(snapshot.topology, version=snapshot.version)
            return Response(msgspec.json.encode(definitions), media_type=_DEFINITIONS)
        case Format.ASYNCAPI:
            return Response(
                msgspec.json.encode(write_asyncapi(snapshot.topology)), media_type=_ASYNCAPI
            )
    # Every queue for which nobody declared a plan is named.
    planned = {plan.queue for plan in snapshot.topology.plans}
    others = frozenset(queue.name for queue in snapshot.topology.queues) - planned
    return TopologyAnswer(
        call.services.live.address,
        str(snapshot.version),
        Moment(snapshot.at),
        snapshot.live is not None,
        to_document(replace(snapshot.topology, unconsumed=others)),
    )


def finding_answer(finding: Finding) -> FindingAnswer:
    """A hazard."""
    return FindingAnswer(
        finding.rule, finding.severity, finding.place, finding.explanation, finding.fix
    )


@TOPOLOGY.row("GET", "/admin/topology/check", Role.VIEWER, BROKER_MAP, answer=CheckAnswer)
async def _check_topology(call: Call[Empty, None]) -> CheckAnswer:
    """The hazards of what stands on the broker."""
    snapshot = await call.services.live.snapshot()
    items = [finding_answer(each) for each in snapshot.findings]
    return CheckAnswer(str(snapshot.version), Moment(snapshot.at), items, len(items))


@TOPOLOGY.row(
    "GET",
    "/admin/topology/route",
    Role.VIEWER,
    BROKER_MAP,
    query=RouteQuery,
    answer=RouteAnswer,
    errors=(404,),
)
async def _ask_route(call: Call[RouteQuery, None]) -> RouteAnswer:
    """Publish this routing key: who gets it?"""
    asked, snapshot = call.query, await call.services.live.snapshot()
    try:
        queues = snapshot.routed(asked.exchange, asked.routing_key)
    except KeyError:
        raise Refused(404, "not-found", f"There is no exchange {asked.exchange!r}.") from None
    return RouteAnswer(asked.exchange, asked.routing_key, list(queues))


@TOPOLOGY.row(
    "POST",
    "/admin/topology/plan",
    Role.VIEWER,
    BROKER_MAP,
    body=DesiredTopology,
    answer=PlannedAnswer,
)
async def _plan_topology(call: Call[Empty, DesiredTopology]) -> PlannedAnswer:
    """What would have to change for the broker to be as desired; changes nothing."""
    desired = from_document(call.body.topology, where="topology")
    planned = await call.services.live.plan(desired)
    return PlannedAnswer(
        broker_version=str(planned.version),
        settled=planned.settled,
        create=[StepAnswer(str(step.kind), step.name, step.why) for step in planned.steps],
        conflicts=[
            ConflictAnswer(
                str(each.kind),
                each.name,
                [
                    DifferenceAnswer(one.field, _text(one.desired), _text(one.actual), one.advice)
                    for one in each.differences
                ],
            )
            for each in planned.conflicts
        ],
        same=len(planned.diff.same),
        extra=len(planned.diff.extra),
        notes=list(planned.notes),
    )


def _text(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


# --- the pages --------------------------------------------------------------------------------


TOPOLOGY_PAGES = Pages()
"""The rows of this part."""


async def _snapshot(visit: Visit) -> BrokerSnapshot:
    found = await visit.services.live.snapshot()
    # The map is of the whole broker, or its paths would end nowhere; how full a queue is, is not.
    visible = visit.principal.visible(found.readings)
    return replace(found, readings={name: found.readings[name] for name in visible})


async def _listed_queues(visit: Visit) -> frozenset[str]:
    """The dead-letter queues as the list has them, with what operators added and without what they ignore."""
    swept = await visit.services.sweep.get_or_last()
    return frozenset(each.queue for each in swept.queues)


@TOPOLOGY_PAGES.get("/topology", Role.VIEWER, BROKER_MAP)
async def _topology(visit: Visit) -> Response:
    snapshot = await _snapshot(visit)
    exchange, key = visit.field("exchange"), visit.field("key")
    queues, exchanges = queue_rows(snapshot, await _listed_queues(visit)), exchange_rows(snapshot)
    reached = None
    if visit.field("ask"):
        try:
            reached = snapshot.routed(exchange, key)
        except KeyError:
            raise Refused(404, "not-found", f"There is no exchange {exchange!r}.") from None
    return visit.page(
        "topology.html",
        snapshot=snapshot,
        headline=f"{_number_of(len(exchanges), 'exchange')}, {_number_of(len(queues), 'queue')}",
        exchanges=[*(row.name for row in exchanges), ""],
        focus=visit.field("focus"),
        asked_exchange=exchange,
        asked_key=key,
        reached=reached,
        queues=queues,
        delayed=delayed_messages(snapshot),
        exchange_rows=exchanges,
        planned={plan.queue for plan in snapshot.topology.plans},
    )


def _number_of(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


_INPUTS = (
    ("rate", "Rate", "500/s"),
    ("outage", "Outage", "20m"),
    ("handler", "A run takes", "40ms"),
    ("consumers", "Consumers", "4×10"),
    ("fail", "Runs that fail", "0%"),
)
"""Name, label and example of what a rehearsal is asked with; the values are written as for the command."""
_OUTAGE_START_S = 300.0
"""An outage begins after five minutes: before it there is something to see."""
_LONGEST_OUTAGE_S = 7 * 86_400.0
"""A week; longer ones are no question for a page."""


async def _rehearsed_queue(visit: Visit) -> tuple[str, ...]:
    return (visit.field("queue"),)


@TOPOLOGY_PAGES.get(
    "/topology/rehearse",
    Role.VIEWER,
    QueueRule("the rehearsed queue", _rehearsed_queue),
    is_heavy=True,
)
async def _rehearse(visit: Visit) -> Response:
    """What an outage would do to a queue, with its present rate filled in. Nothing is asked of the broker."""
    queue = visit.field("queue")
    snapshot = await _snapshot(visit)
    if snapshot.topology.plan(queue) is None:
        raise Refused(
            404,
            "not-found",
            f"No plan is known for queue {queue!r}: only queues of a declared topology can be rehearsed.",
        )
    reading = await visit.services.live.reading(queue)
    present = None if reading is None else reading.publish_rate
    consumers = 0 if reading is None else reading.counts.consumers or 0
    said = {
        "rate": "" if present is None else f"{present:g}/s",
        "outage": "20m",
        "handler": "40ms",
        "consumers": f"{max(1, consumers)}×10",
        "fail": "0%",
    }
    said |= {name: visit.field(name) for name, _, _ in _INPUTS if visit.field(name)}
    answer: dict[str, Any] = {"facts": (), "findings": (), "charts": ()}
    status, trouble = 200, ""
    if visit.field("ask"):
        try:
            scenario = _scenario(snapshot, queue, said)
        except (ValueError, InvalidTopology) as error:
            status, trouble = 400, str(error)  # what was said stays in the form, to be corrected
        else:
            # Some runs of the model: milliseconds each, but not of those who wait for other pages.
            answer = await asyncio.to_thread(_rehearsal_of, snapshot, scenario)
    return visit.page(
        "rehearse.html",
        status,
        trouble=trouble,
        queue=queue,
        present=None if present is None else f"{present:g}",
        consumers_now=consumers,
        inputs=_INPUTS,
        said=said,
        **answer,
    )


def _scenario(snapshot: BrokerSnapshot, queue: str, said: dict[str, str]) -> Scenario:
    """What was asked; ValueError or InvalidTopology if something that was said cannot be read."""
    from hopback.rehearse import quantities, station
    from hopback.rehearse.scenario import Load, Outage, RateStep, Scenario

    outage = Outage(_OUTAGE_START_S, quantities.parse_seconds(said["outage"]))
    if outage.length_s > _LONGEST_OUTAGE_S:
        raise ValueError(f"expected an outage of at most 7d, got {said['outage']!r}")
    handler_s, spread_s = quantities.parse_spread(said["handler"])
    processes, concurrency = quantities.parse_consumers(said["consumers"])
    load = Load(
        queue,
        (RateStep(0.0, quantities.parse_rate(said["rate"])),),
        fail=quantities.parse_share(said["fail"]),
        handler_s=handler_s,
        spread_s=spread_s,
        processes=processes,
        concurrency=concurrency,
    )
    return Scenario(
        (load,),
        duration_s=station.time_for(snapshot.topology.plan(queue), (outage,)),
        outages=(outage,),
        version=snapshot.version,
        name="rehearsal",
    )


def _rehearsal_of(snapshot: BrokerSnapshot, scenario: Scenario) -> dict[str, Any]:
    """Facts, findings and charts."""
    from hopback.rehearse import chart, engine, page
    from hopback.rehearse.findings import findings_of

    forecast = engine.rehearse(snapshot.topology, scenario)
    findings = findings_of(snapshot.topology, forecast)
    drawn = [Markup(chart.svg_chart(one)) for one in chart.charts_of(forecast, findings)]  # noqa: S704 - charts escape what they show
    return {"facts": page.facts_of(forecast), "findings": findings, "charts": drawn}


@TOPOLOGY_PAGES.get("/topology/graph.json", Role.VIEWER, BROKER_MAP)
async def _graph(visit: Visit) -> Response:
    return JSONResponse(graph(await _snapshot(visit), await _listed_queues(visit)))


@TOPOLOGY_PAGES.get("/checks", Role.VIEWER, BROKER_MAP)
async def _checks(visit: Visit) -> Response:
    snapshot = await _snapshot(visit)
    counts = {"error": 0, "warning": 0}
    for finding in snapshot.findings:
        if finding.severity.value in counts:
            counts[finding.severity.value] += 1
    words = [_number_of(number, word) for word, number in counts.items()]
    # By severity, then by rule; they come sorted.
    groups = [
        (severity, [(rule, list(group)) for rule, group in groupby(found, lambda one: one.rule)])
        for severity, found in groupby(snapshot.findings, lambda one: one.severity.value)
    ]
    return visit.page("checks.html", snapshot=snapshot, headline=" and ".join(words), groups=groups)


_LABEL = 60  # characters; the map cuts longer names anyway, the tables have them whole


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue as a row."""

    name: str
    type: str
    role: str
    messages: int | None
    ttl: str
    dead_letters: str
    hazards: int


@dataclass(frozen=True, slots=True)
class ExchangeRow:
    """An exchange as a row, with its bindings: key and destination."""

    name: str
    type: str
    bindings: list[tuple[str, str]]


def queue_rows(snapshot: BrokerSnapshot, listed: frozenset[str]) -> list[QueueRow]:
    """Every queue, by name; those of dead letters are those that are `listed`."""
    effective = effective_topology(snapshot.topology, snapshot.version)
    # Without plans a queue that dead-letters by itself still reads as a queue with consumers.
    roles, hazards = dict(queue_roles(effective)), _hazards(snapshot)
    for name, role in roles.items():
        if name in listed:
            roles[name] = QueueRole.DEAD_LETTER
        elif role is QueueRole.DEAD_LETTER:
            roles[name] = QueueRole.PLAIN  # somebody said that it holds no dead letters
    return [
        QueueRow(
            queue.name,
            queue.type.value,
            roles[queue.name].value,
            None
            if (reading := snapshot.readings.get(queue.name)) is None
            else reading.counts.messages,
            _ttl(queue),
            _dead_letter_words(queue),
            hazards[queue.name],
        )
        for queue in sorted(effective.queues, key=lambda each: each.name)
    ]


def exchange_rows(snapshot: BrokerSnapshot) -> list[ExchangeRow]:
    """Every exchange, by name."""
    bound: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for binding in snapshot.topology.bindings:
        bound[binding.source].append((binding.routing_key, binding.destination))
    return [
        ExchangeRow(exchange.name, str(exchange.type), sorted(bound[exchange.name]))
        for exchange in sorted(snapshot.topology.exchanges, key=lambda each: each.name)
    ]


def graph(snapshot: BrokerSnapshot, listed: frozenset[str]) -> dict[str, Any]:
    """Nodes and edges as the map draws them; all queues of delays are one node."""
    found = [*_nodes(snapshot, listed), *_edges(snapshot)]
    if delayed := delayed_messages(snapshot):
        shown = replace(snapshot, topology=without_delay_levels(snapshot.topology))
        waiting = "" if delayed.messages is None else f"{_messages(delayed.messages)}, "
        label = f"queues of delays\n{waiting}up to {delayed.longest}"
        node = _node("q:hopback.delay", "hopback.delay", "retry", label, 0)
        node["data"]["messages"] = delayed.messages or 0
        due = _edge("q:hopback.delay", f"x:{DUE}", "dead-letter", "")
        found = [*_nodes(shown, listed), node, *_edges(shown), due]
    return {"elements": found}


@dataclass(frozen=True, slots=True)
class DelayedRow:
    """What waits in the queues of delays: how many messages, and how long they may."""

    queues: int
    messages: int | None
    longest: str


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"


def delayed_messages(snapshot: BrokerSnapshot) -> DelayedRow | None:
    """What is held to be sent later; None where nothing is declared for it."""
    levels = [queue.name for queue in snapshot.topology.queues if is_delay_level(queue.name)]
    if not levels:
        return None
    known = [snapshot.readings[name] for name in levels if name in snapshot.readings]
    counts = [one.counts.messages for one in known if one.counts.messages is not None]
    longest = format_duration(longest_delay_ms(snapshot.topology))
    return DelayedRow(len(levels), sum(counts) if counts else None, longest)


def _nodes(snapshot: BrokerSnapshot, listed: frozenset[str]) -> Iterator[dict[str, Any]]:
    hazards = _hazards(snapshot)
    for exchange in snapshot.topology.exchanges:
        label = f"{_short(exchange.name)}\n{exchange.type}"
        yield _node(f"x:{exchange.name}", exchange.name, "exchange", label, hazards[exchange.name])
    for row in queue_rows(snapshot, listed):
        parts = [_short(row.name)]
        facts = [_messages(row.messages)] if row.messages is not None else []
        parts.append(", ".join([*facts, *([f"waits {row.ttl}"] if row.ttl else [])]))
        label = "\n".join(part for part in parts if part)
        node = _node(f"q:{row.name}", row.name, row.role, label, row.hazards)
        node["data"]["messages"] = row.messages or 0
        yield node


def _node(node_id: str, name: str, kind: str, label: str, hazards: int) -> dict[str, Any]:
    height = 26 + 16 * (label.count("\n") + len(name) // 26)
    data = {"id": node_id, "name": name, "kind": kind, "label": label, "hazards": hazards}
    return {"data": data | {"height": height}}


def _edges(snapshot: BrokerSnapshot) -> Iterator[dict[str, Any]]:
    topology = snapshot.topology
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
        ("publish", _publishes(snapshot)),
        ("dead-letter", _dead_letter_paths(snapshot)),
    ):
        for source, end in dict.fromkeys(paths):
            if source in known and end in known:
                yield _edge(source, end, kind, "")


def _publishes(snapshot: BrokerSnapshot) -> Iterator[tuple[str, str]]:
    """The ways that consumers publish by themselves, where a declared plan tells."""
    for plan in snapshot.topology.plans:
        ways = [(plan.parking.by, plan.parking.exchange, plan.parking.queue)]
        for tier in plan.tiers:
            ways += [(plan.leave, route.exchange, route.queue) for route in tier.routes]
        for leave, exchange, queue in ways:
            if leave is not Leave.REJECT:
                yield f"q:{plan.queue}", f"x:{exchange}" if exchange else f"q:{queue}"
    for each in snapshot.topology.queues:
        if (periodic := scheduled_queue(each.name)) is not None:
            yield f"q:{each.name}", f"q:{periodic}"


def _dead_letter_paths(snapshot: BrokerSnapshot) -> Iterator[tuple[str, str]]:
    """From each queue to the exchange its dead letters go to, or straight to the queue."""
    effective = effective_topology(snapshot.topology, snapshot.version)
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


def _hazards(snapshot: BrokerSnapshot) -> Counter[str]:
    """How many findings, worse than a remark, name each object."""
    names = {queue.name for queue in snapshot.topology.queues}
    names |= {exchange.name for exchange in snapshot.topology.exchanges}
    found: Counter[str] = Counter()
    for finding in snapshot.findings:
        if finding.severity.value == "info":
            continue
        # A finding names its objects in backticks.
        found.update(name for name in names if f"`{name}`" in finding.place)
    return found
