"""Run a rehearsal with one of the two engines."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.rehearse.fluid import Flow, flows_of
from hopback.rehearse.forecast import Forecast, Track, forecast_of, sample_times
from hopback.rehearse.station import Station, stations_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.rehearse.scenario import Scenario
    from hopback.topology.model import Topology


class EngineKind(StrEnum):
    """The engines."""

    FLUID = "fluid"
    """Treats queues as flows. Takes a few milliseconds, no matter how many messages there are."""
    EXACT = "exact"
    """Simulates each message with the runtime and the embedded broker in virtual time."""


def rehearse(
    topology: Topology,
    scenario: Scenario,
    kind: EngineKind = EngineKind.FLUID,
    *,
    progress: Callable[[float], object] | None = None,
) -> Forecast:
    """Run a scenario on a topology."""
    if kind is EngineKind.FLUID:
        return rehearse_fluid(topology, scenario)
    from hopback.rehearse.exact import rehearse_exact

    return rehearse_exact(topology, scenario, progress=progress)


def rehearse_fluid(topology: Topology, scenario: Scenario) -> Forecast:
    return forecast_stations(topology, scenario, stations_of(topology, scenario), ages=True)


def forecast_stations(
    topology: Topology, scenario: Scenario, stations: tuple[Station, ...], *, ages: bool = False
) -> Forecast:
    """Run a scenario on stations that may have been changed, for example by a proposal.

    `ages` also computes the age of the oldest message, and the maximum depth of retry queues
    between samples. It is disabled when many plans are compared.
    """
    flows = flows_of(stations, scenario)
    times = sample_times(scenario)
    return forecast_of(
        EngineKind.FLUID, topology, scenario, [_track(flow, times, ages) for flow in flows]
    )


def _track(flow: Flow, times: tuple[float, ...], ages: bool) -> Track:
    log, totals = flow.log, flow.totals
    backlog, busy = log.backlog.sample(times), log.busy.sample(times)
    fullest = max(range(len(log.backlog.values)), key=log.backlog.values.__getitem__)
    fullest_s = log.backlog.moments[fullest]
    return Track(
        station=flow.station,
        arrived=log.arrived.sample(times),
        returned=log.returned.sample(times),
        runs=log.runs.sample(times),
        failed=log.failed.sample(times),
        parked=log.parked.sample(times),
        redriven=log.redriven.sample(times),
        depth=[a + b for a, b in zip(backlog, busy, strict=True)],
        waits=[_depth(flow, place, times) for place in range(len(flow.station.waits))],
        wait_s=log.wait.sample(times),
        oldest_s=[_oldest(flow, moment) if ages else 0.0 for moment in times],
        capacity=log.capacity.sample(times),
        first_parked_s=flow.first_parked,
        most={
            flow.station.queue: (log.backlog.values[fullest] + log.busy.at(fullest_s), fullest_s),
            **(
                {wait.queue: _fullest(flow, n) for n, wait in enumerate(flow.station.waits)}
                if ages
                else {}
            ),
        },
        published=totals.published + totals.refused,
        copied=totals.copied,
        refused=totals.refused,
        dropped=totals.dropped,
        done=totals.done,
    )


def _depth(flow: Flow, place: int, times: tuple[float, ...]) -> list[float]:
    """Return the depth of a retry queue. This is the number of messages that entered it within the
    last delay.
    """
    delay = flow.station.waits[place].delay_s
    earlier = [moment - delay for moment in times]
    standing = [0.0] * len(times)
    for entered, of in zip(flow.entered, flow.station.wait_after, strict=True):
        if of == place:
            pairs = zip(entered.sample(times), entered.sample(earlier), strict=True)
            standing = [
                sum_ + max(0.0, a - b) for sum_, (a, b) in zip(standing, pairs, strict=True)
            ]
    return standing


def _fullest(flow: Flow, place: int) -> tuple[float, float]:
    """Return the maximum depth of a retry queue and its time, which is always at a corner of a
    curve.
    """
    corners = {0.0}
    for entered, of in zip(flow.entered, flow.station.wait_after, strict=True):
        if of == place:
            corners.update(moment for moment in entered.moments if moment <= flow.horizon)
    times = tuple(corners)
    return max(zip(_depth(flow, place, times), times, strict=True))


def _oldest(flow: Flow, now: float) -> float:
    """Return the age of the oldest message that is neither done nor dead-lettered.

    Since all queues are first in, first out, we can follow a message back in time. When it was
    delivered, it had been in the queue for as long as the head at that time. Before that, it may
    have been in a retry queue, whose delay is known. This way, the curves are sufficient to find
    the publish time. Messages are counted from one half.
    """
    station = flow.station
    run_s, wait = station.load.handler_s, flow.log.wait
    delays = [station.waits[place].delay_s for place in station.wait_after]

    def came_in(taken: float) -> float:
        """Return the time when a message entered the queue, given the time of its delivery."""
        return max(0.0, taken - wait.at(taken))

    def birth(failures: int, came: float) -> float:
        """Return the publish time of a message that entered the queue at `came` after this number
        of failures.
        """
        while failures:
            failures -= 1
            came = came_in(came - delays[failures] - run_s)
        return came

    oldest = now
    since = came_in(now - run_s)  # later messages are still in the queue or being handled
    first = flow.log.arrived.when(flow.log.arrived.at(since) + 0.5)
    oldest = min(oldest, first)
    for failure, entered in enumerate(flow.entered):
        delay = delays[failure]
        returned = entered.when(entered.at(since - delay) + 0.5) + delay
        if returned <= now:
            oldest = min(oldest, birth(failure + 1, returned))
        failed = entered.when(entered.at(now - delay) + 0.5)
        if failed <= now:
            oldest = min(oldest, birth(failure, came_in(failed - run_s)))
    return now - oldest
