"""Show the topology of the broker, with its hazards and routes, in the API and on the page."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.responses import JSONResponse, Response

from hopback.broker.apply import live_plan
from hopback.ops.contract.queue_rules import BROKER_MAP
from hopback.ops.contract.roles import Role
from hopback.ops.contract.values import Moment
from hopback.ops.http.api import ApiTable, Call
from hopback.ops.http.problems import Refused
from hopback.ops.page.pages import Pages, Visit
from hopback.ops.page.topology_drawing import TopologyDrawing, delayed_messages, graph, role_of
from hopback.text import count_of
from hopback.topology.asyncapi import write_asyncapi
from hopback.topology.definitions import write_definitions
from hopback.topology.diagram import draw_flow
from hopback.topology.document import from_document, to_document
from hopback.topology.hazards.rule import Finding  # noqa: TC001  msgspec reads it at run time

if TYPE_CHECKING:
    from hopback.ops.contract.endpoints import Empty

_DEFINITIONS = "application/vnd.rabbitmq.definitions+json"
_ASYNCAPI = "application/vnd.aai.asyncapi+json"
_Name = Annotated[str, Meta(max_length=255)]


TOPOLOGY = ApiTable()


class Format(StrEnum):
    JSON = "json"
    MERMAID = "mermaid"
    DEFINITIONS = "definitions"
    ASYNCAPI = "asyncapi"


class TopologyQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The format of the response."""

    format: Format = Format.JSON


class TopologyAnswer(Struct, frozen=True, rename="camel"):
    """The topology of the broker. `live` is false if it only contains declared objects."""

    broker: str
    broker_version: str
    read_at: Moment
    live: bool
    topology: dict[str, Any]


class CheckAnswer(Struct, frozen=True, rename="camel"):
    """The hazards in the topology of the broker, sorted by severity."""

    broker_version: str
    read_at: Moment
    items: tuple[Finding, ...]
    total: int


class RouteQuery(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The exchange and the routing key of a message."""

    exchange: _Name = ""
    routing_key: _Name = ""


class RouteAnswer(Struct, frozen=True, rename="camel"):
    """The queues that would receive a message."""

    exchange: str
    routing_key: str
    queues: list[str]


class DesiredTopology(Struct, frozen=True, forbid_unknown_fields=True):
    """A topology in the format of `GET /admin/topology` and of topology files."""

    topology: dict[str, Any]


class StepAnswer(Struct, frozen=True, rename="camel"):
    """An object that would be created."""

    kind: str
    name: str
    why: str


class DifferenceAnswer(Struct, frozen=True, rename="camel"):
    """A field whose value on the broker is different."""

    field: str
    desired: str
    actual: str
    advice: str


class ConflictAnswer(Struct, frozen=True, rename="camel"):
    """An object that exists but is different."""

    kind: str
    name: str
    differences: list[DifferenceAnswer]


class PlannedAnswer(Struct, frozen=True, rename="camel"):
    """The changes that `hopback topology apply` would make."""

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
    """Return the topology of the broker as JSON, Mermaid, definitions or AsyncAPI."""
    snapshot = await call.services.broker.recent_snapshot()
    topology = snapshot.shown_topology
    match call.query.format:
        case Format.MERMAID:
            return Response(draw_flow(topology), media_type="text/vnd.mermaid")
        case Format.DEFINITIONS:
            definitions, _ = write_definitions(topology, version=snapshot.version)
            return Response(msgspec.json.encode(definitions), media_type=_DEFINITIONS)
        case Format.ASYNCAPI:
            return Response(msgspec.json.encode(write_asyncapi(topology)), media_type=_ASYNCAPI)
    # Include all queues without a declared plan.
    planned = {plan.queue for plan in topology.plans}
    others = frozenset(queue.name for queue in topology.queues) - planned
    return TopologyAnswer(
        call.services.broker.address,
        str(snapshot.version),
        Moment(snapshot.at),
        snapshot.live is not None,
        to_document(replace(topology, unconsumed=others)),
    )


@TOPOLOGY.row("GET", "/admin/topology/check", Role.VIEWER, BROKER_MAP, answer=CheckAnswer)
async def _check_topology(call: Call[Empty, None]) -> CheckAnswer:
    """List the hazards in the topology of the broker."""
    drawing = await call.services.recent.drawings.get()
    snapshot, items = drawing.snapshot, tuple(drawing.findings)
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
    """List the queues that receive a message with this routing key."""
    asked, snapshot = call.query, await call.services.broker.recent_snapshot()
    try:
        queues = snapshot.route(asked.exchange, asked.routing_key)
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
    """Compare a topology with the broker and list the changes it needs. The broker is not changed."""
    desired = from_document(call.body.topology, where="topology")
    broker = call.services.broker
    async with broker.query() as connection:
        planned = await live_plan(desired, connection, broker.management, broker.vhost)
    return PlannedAnswer(
        broker_version=str(planned.version),
        settled=planned.is_up_to_date,
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


TOPOLOGY_PAGES = Pages()

_ROWS = 200  # queues and exchanges on the page. Others can be found with the search field.
_BINDINGS = 20  # bindings per exchange on the page. The definitions contain all of them.
_PLACES = 50  # findings per rule on the page. The API returns all of them.


async def _read_drawing(visit: Visit, first_s: float | None) -> TopologyDrawing:
    """Return the drawing of the broker. It only contains readings of queues that the visitor may view."""
    drawing = await visit.services.recent.drawings.get(first_s)
    readings = drawing.snapshot.readings or {}
    principal = visit.principal
    visible = {name: one for name, one in readings.items() if principal.allows(Role.VIEWER, name)}
    return replace(drawing, snapshot=replace(drawing.snapshot, readings=visible))


async def _list_queues(visit: Visit, first_s: float | None) -> frozenset[str]:
    """Return the known dead-letter queues, including those added by operators."""
    swept = await visit.services.recent.sweep.get_or_last(first_s)
    return frozenset(each.queue for each in swept.queues)


@TOPOLOGY_PAGES.get("/topology", Role.VIEWER, BROKER_MAP)
async def _topology(visit: Visit) -> Response:
    drawing = await _read_drawing(visit, visit.first_s)
    snapshot, topology = drawing.snapshot, drawing.topology
    exchange, key, find = visit.field("exchange"), visit.field("key"), visit.field("find").strip()
    reached = None
    if visit.field("ask"):
        try:
            reached = snapshot.route(exchange, key)
        except KeyError:
            raise Refused(404, "not-found", f"There is no exchange {exchange!r}.") from None
    queues = [row for row in drawing.queues if find.lower() in row.name.lower()]
    exchanges = [row for row in drawing.exchanges if find.lower() in row.name.lower()]
    listed = await _list_queues(visit, visit.first_s)
    words = (
        count_of(len(drawing.exchanges), "exchange"),
        count_of(len(drawing.queues), "queue"),
    )
    return visit.page(
        "topology.html",
        snapshot=snapshot,
        headline=", ".join(words),
        exchanges=None
        if len(drawing.exchanges) > _ROWS
        else [*(row.name for row in drawing.exchanges), ""],
        focus=visit.field("focus"),
        find=find,
        searchable=max(len(drawing.queues), len(drawing.exchanges)) > _ROWS,
        asked_exchange=exchange,
        asked_key=key,
        reached=reached,
        queues=[(row, role_of(row, listed).value) for row in queues[:_ROWS]],
        queue_count=len(queues),
        delayed=delayed_messages(topology, snapshot.readings or {}),
        exchange_rows=exchanges[:_ROWS],
        exchange_count=len(exchanges),
        most_bindings=_BINDINGS,
        planned={plan.queue for plan in topology.plans},
    )


@TOPOLOGY_PAGES.get("/topology/graph.json", Role.VIEWER, BROKER_MAP)
async def _graph(visit: Visit) -> Response:
    drawing, listed = await _read_drawing(visit, None), await _list_queues(visit, None)
    readings = drawing.snapshot.readings or {}
    return JSONResponse(graph(drawing, readings, listed, visit.all("focus")))


@TOPOLOGY_PAGES.get("/checks", Role.VIEWER, BROKER_MAP)
async def _checks(visit: Visit) -> Response:
    drawing = await _read_drawing(visit, visit.first_s)
    counts = {"error": 0, "warning": 0}
    for finding in drawing.findings:
        if finding.severity.value in counts:
            counts[finding.severity.value] += 1
    words = [count_of(number, word) for word, number in counts.items()]
    # Findings are already sorted by severity and then by rule.
    groups = [
        (severity, [(rule, list(group)) for rule, group in groupby(found, lambda one: one.rule)])
        for severity, found in groupby(drawing.findings, lambda one: one.severity.value)
    ]
    return visit.page(
        "checks.html",
        snapshot=drawing.snapshot,
        headline=" and ".join(words),
        groups=groups,
        most_places=_PLACES,
    )
