"""The API of the topology: what stands on the broker, its hazards, its routes, a plan."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from hopback.admin.api import ApiTable, Call, Empty, Reach
from hopback.admin.problems import Refused
from hopback.admin.roles import Role
from hopback.deadletters.contract import Moment
from hopback.topology.asyncapi import write_asyncapi
from hopback.topology.check import Severity  # noqa: TC001
from hopback.topology.definitions import write_definitions
from hopback.topology.diagram import draw_flow
from hopback.topology.document import from_document, to_document
from hopback.topology.hazards.rule import Finding  # noqa: TC001

__all__ = [
    "TOPOLOGY",
    "CheckAnswer",
    "ConflictAnswer",
    "DesiredTopology",
    "DifferenceAnswer",
    "FindingAnswer",
    "Format",
    "PlannedAnswer",
    "RouteAnswer",
    "RouteQuery",
    "StepAnswer",
    "TopologyAnswer",
    "TopologyQuery",
    "finding_answer",
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
    Reach.MAP,
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


@TOPOLOGY.row("GET", "/admin/topology/check", Role.VIEWER, Reach.MAP, answer=CheckAnswer)
async def _check_topology(call: Call[Empty, None]) -> CheckAnswer:
    """The hazards of what stands on the broker."""
    snapshot = await call.services.live.snapshot()
    items = [finding_answer(each) for each in snapshot.findings]
    return CheckAnswer(str(snapshot.version), Moment(snapshot.at), items, len(items))


@TOPOLOGY.row(
    "GET",
    "/admin/topology/route",
    Role.VIEWER,
    Reach.MAP,
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
    Reach.MAP,
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
