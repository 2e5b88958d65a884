"""The page that rehearses an outage of the consumers of a queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from hopback.errors import InvalidTopology
from hopback.ops.contract.queue_rules import QueueRule
from hopback.ops.contract.roles import Role
from hopback.ops.http.problems import Refused
from hopback.ops.page.pages import Pages, Visit

if TYPE_CHECKING:
    from starlette.responses import Response

    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.rehearse.scenario import Scenario

_INPUTS = (
    ("rate", "Rate", "500/s"),
    ("outage", "Outage", "20m"),
    ("handler", "A run takes", "40ms"),
    ("consumers", "Consumers", "4×10"),
    ("fail", "Runs that fail", "0%"),
)
"""Name, label and example for each input of a rehearsal. The values have the same format as in the
command.
"""
_OUTAGE_START_S = 300.0
"""Seconds before the outage starts, so that the charts also show normal operation."""
_LONGEST_OUTAGE_S = 7 * 86_400.0
"""Seconds (one week). A longer rehearsal would take too long for a page."""


REHEARSAL_PAGES = Pages()


async def _queue_in_query(visit: Visit) -> tuple[str, ...]:
    return (visit.field("queue"),)


@REHEARSAL_PAGES.get(
    "/topology/rehearse",
    Role.VIEWER,
    QueueRule("the rehearsed queue", _queue_in_query),
    is_heavy=True,
    reads_broker=True,
)
async def _rehearse(visit: Visit) -> Response:
    """Show the effect of an outage on a queue. The form is filled with the current rate."""
    queue = visit.field("queue")
    broker = visit.services.broker
    snapshot = await broker.recent_snapshot()
    if snapshot.shown_topology.plan(queue) is None:
        raise Refused(
            404,
            "not-found",
            f"Queue {queue!r} has no known plan. Only queues of a declared topology can be rehearsed.",
        )
    reading = await broker.read_queue(queue)
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
            status, trouble = 400, str(error)  # show the form with the same values again
        else:
            # The simulation takes milliseconds per run. Use a thread, so that other requests are
            # not delayed.
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
    """Parse the form. Raises ValueError or InvalidTopology if a value is invalid."""
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
        duration_s=station.time_for(snapshot.shown_topology.plan(queue), (outage,)),
        outages=(outage,),
        version=snapshot.version,
        name="rehearsal",
    )


def _rehearsal_of(snapshot: BrokerSnapshot, scenario: Scenario) -> dict[str, Any]:
    from hopback.rehearse import chart, engine, page
    from hopback.rehearse.findings import findings_of

    topology = snapshot.shown_topology
    forecast = engine.rehearse(topology, scenario)
    findings = findings_of(topology, forecast)
    drawn = [Markup(chart.svg_chart(one)) for one in chart.charts_of(forecast, findings)]  # noqa: S704 - charts escape their texts
    return {"facts": page.facts_of(forecast), "findings": findings, "charts": drawn}
