"""The pages of the topology: the live map with its tables, and the checks."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from hopback.admin.gate import forbidden
from hopback.admin.problems import Refused
from hopback.admin.roles import Role
from hopback.admin.topology_map import exchange_rows, graph, queue_rows

if TYPE_CHECKING:
    from starlette.responses import Response

    from hopback.admin.livebroker import Scene
    from hopback.admin.pages import Pages, Visit
    from hopback.topology.check import Finding

__all__ = ["add_topology_pages"]


def add_topology_pages(pages: Pages) -> None:
    """The pages of the topology."""
    pages.add("GET", "/topology", _topology)
    pages.add("GET", "/topology/graph.json", _graph)
    pages.add("GET", "/checks", _checks)


async def _scene(visit: Visit) -> Scene:
    if not visit.principal.allows_somewhere(Role.VIEWER):
        raise forbidden()
    found = await visit.services.live.scene()
    # The map is of the whole broker, or its paths would end nowhere; how full a queue is, is not.
    visible = visit.principal.visible(found.readings)
    return replace(found, readings={name: found.readings[name] for name in visible})


async def _topology(visit: Visit) -> Response:
    scene = await _scene(visit)
    exchange, key = visit.field("exchange"), visit.field("key")
    queues, exchanges = queue_rows(scene), exchange_rows(scene)
    return visit.page(
        "topology.html",
        scene=scene,
        headline=f"{len(exchanges)} exchanges, {len(queues)} queues",
        exchanges=[*(row.name for row in exchanges), ""],
        focus=visit.field("focus"),
        asked_exchange=exchange,
        asked_key=key,
        reached=_reached(scene, exchange, key) if visit.field("ask") else None,
        queues=queues,
        exchange_rows=exchanges,
    )


def _reached(scene: Scene, exchange: str, key: str) -> tuple[str, ...]:
    try:
        return scene.routed(exchange, key)
    except KeyError:
        raise Refused(404, "not-found", f"There is no exchange {exchange!r}.") from None


async def _graph(visit: Visit) -> Response:
    return JSONResponse(graph(await _scene(visit)))


async def _checks(visit: Visit) -> Response:
    scene = await _scene(visit)
    counts = {"error": 0, "warning": 0}
    for finding in scene.findings:
        if finding.severity.value in counts:
            counts[finding.severity.value] += 1
    words = [f"{number} {word}{'s' if number != 1 else ''}" for word, number in counts.items()]
    return visit.page(
        "checks.html", scene=scene, headline=" and ".join(words), groups=_grouped(scene.findings)
    )


def _grouped(
    findings: tuple[Finding, ...],
) -> list[tuple[str, list[tuple[str, list[Finding]]]]]:
    """By severity, then by rule; they come sorted."""
    return [
        (severity, [(rule, list(group)) for rule, group in groupby(found, lambda one: one.rule)])
        for severity, found in groupby(findings, lambda one: one.severity.value)
    ]
