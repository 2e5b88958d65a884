"""One question, two engines: `rehearse` gives a scenario to the fluid model or to the exact engine."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.rehearse.fluid import flows_of
from hopback.rehearse.forecast import Track, forecast_of, sample_times
from hopback.rehearse.station import stations_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.rehearse.fluid import Flow
    from hopback.rehearse.forecast import Forecast
    from hopback.rehearse.scenario import Scenario
    from hopback.rehearse.station import Station
    from hopback.topology.model import Topology

__all__ = ["EngineKind", "forecast_stations", "rehearse", "rehearse_fluid"]


class EngineKind(StrEnum):
    """How a scenario is played."""

    FLUID = "fluid"
    """Queues as flows: milliseconds, whatever the number of messages."""
    EXACT = "exact"
    """Message by message: the runtime and the embedded broker in virtual time."""


def rehearse(
    topology: Topology,
    scenario: Scenario,
    kind: EngineKind = EngineKind.FLUID,
    *,
    progress: Callable[[float], object] | None = None,
) -> Forecast:
    """Play a scenario on a topology with one of the engines."""
    if kind is EngineKind.FLUID:
        return rehearse_fluid(topology, scenario)
    from hopback.rehearse.exact import rehearse_exact

    return rehearse_exact(topology, scenario, progress=progress)


def rehearse_fluid(topology: Topology, scenario: Scenario) -> Forecast:
    """What the fluid model foretells."""
    return forecast_stations(topology, scenario, stations_of(topology, scenario))


def forecast_stations(
    topology: Topology, scenario: Scenario, stations: tuple[Station, ...]
) -> Forecast:
    """The same for stations that are not, or not yet, as the topology has them."""
    flows = flows_of(stations, scenario)
    times = sample_times(scenario)
    return forecast_of(
        EngineKind.FLUID, topology, scenario, [_track(flow, times) for flow in flows]
    )


def _track(flow: Flow, times: tuple[float, ...]) -> Track:
    log, totals = flow.log, flow.totals
    backlog, busy = log.backlog.sampled(times), log.busy.sampled(times)
    return Track(
        station=flow.station,
        arrived=log.arrived.sampled(times),
        returned=log.returned.sampled(times),
        runs=log.runs.sampled(times),
        failed=log.failed.sampled(times),
        parked=log.parked.sampled(times),
        redriven=log.redriven.sampled(times),
        depth=[a + b for a, b in zip(backlog, busy, strict=True)],
        waits=[_standing(flow, place, times) for place in range(len(flow.station.waits))],
        wait_s=log.wait.sampled(times),
        capacity=log.capacity.sampled(times),
        first_parked_s=flow.first_parked,
        published=totals.published + totals.refused,
        copied=totals.copied,
        refused=totals.refused,
        dropped=totals.dropped,
        done=totals.done,
    )


def _standing(flow: Flow, place: int, times: tuple[float, ...]) -> list[float]:
    """What a retry queue holds: what went in, less what had gone in one wait earlier."""
    entered, delay = flow.entered[place], flow.station.waits[place].delay_s
    came = entered.sampled(times)
    left = entered.sampled([moment - delay for moment in times])
    return [max(0.0, a - b) for a, b in zip(came, left, strict=True)]
