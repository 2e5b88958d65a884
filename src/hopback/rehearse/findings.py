"""Findings about a forecast.

They have the same format as those of `hopback topology check`. Each finding has a reason. If a
change would help, its effect is included as a number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hopback.durations import format_duration
from hopback.policy.breaker import BreakerPolicy
from hopback.rehearse.engine import forecast_stations
from hopback.rehearse.quantities import show_bytes, show_count, show_rate, show_seconds
from hopback.rehearse.station import Station, Wait
from hopback.topology.hazards.rule import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hopback.rehearse.forecast import Forecast, StationCourse
    from hopback.topology.model import Topology

_FURTHER_TIERS_S = (600, 1800, 3600, 7200, 14_400, 28_800, 86_400)
"""Common delays in seconds. The shortest one that helps is proposed."""
_NOTABLE = 1.05
"""A lack of capacity, or a loss of messages due to an outage, is reported if it exceeds 5 %."""


@dataclass(frozen=True, slots=True)
class TimedFinding(Finding):
    """A finding of a rehearsal. `at_s` is the time it refers to, or None if it does not have one."""

    at_s: float | None = None


def findings_of(topology: Topology, forecast: Forecast) -> tuple[TimedFinding, ...]:
    """Return all findings, most severe first. The effect of a change is computed with the fluid
    model.
    """
    found: list[TimedFinding] = []
    for course in forecast.stations:
        for rule in _RULES:
            found += rule(topology, forecast, course)
    for word, curve, limit in (
        ("memory", forecast.memory, forecast.scenario.memory),
        ("disk", forecast.disk, forecast.scenario.disk),
    ):
        if limit is None:
            continue
        peak = max(curve)
        at = forecast.times[curve.index(peak)]
        holds = peak <= limit
        full = next((t for t, size in zip(forecast.times, curve, strict=True) if size > limit), at)
        text = (
            f"waiting messages need up to {show_bytes(peak)} of {word} at {show_seconds(at)}, of"
            f" {show_bytes(limit)}"
        )
        found.append(
            TimedFinding(
                f"broker-{word}",
                Severity.INFO if holds else Severity.ERROR,
                "broker",
                f"{text}."
                if holds
                else f"{text}: the alarm stops all publishers after {show_seconds(full)}.",
                "No change is needed."
                if holds
                else f"Give it more {word}, or rehearse what would let less wait.",
                at if holds else full,
            )
        )
    return tuple(sorted(found, key=lambda one: one.severity.rank))


def demand_of(station: Station, rate: float) -> float:
    """Return the number of runs per second that are required without an outage, including retries."""
    load = station.load
    ordinary = poison = 0.0
    share = 1 - load.poison
    for _ in range(len(station.wait_after) + 1):
        ordinary += share
        poison += load.poison
        share *= load.fail
    return rate * (ordinary + poison)


def with_tier(station: Station, seconds: float) -> Station:
    """Return a copy of the station with another tier and another attempt."""
    wait = Wait(f"{station.queue}.retry.{format_duration(round(seconds * 1000))}", seconds, "", ())
    places = (*station.wait_after, len(station.waits))
    return replace(station, waits=(*station.waits, wait), wait_after=places)


def _attempts(
    topology: Topology, forecast: Forecast, course: StationCourse
) -> Iterator[TimedFinding]:
    station = course.station
    if course.dead_letters < 1 or not station.outages:
        yield from _hopeless(course)
        return
    without = _dead_letters(topology, forecast, replace(station, outages=()))
    if course.dead_letters <= without * _NOTABLE + 1:
        yield from _hopeless(course)
        return
    outage = max(station.outages, key=lambda one: one.length_s)
    parked = course.dead_letters - without
    first = course.first_dead_letter_s
    # Some messages are dead-lettered by chance, so the first dead letter may have nothing to do
    # with the outage.
    by_outage = first is not None and without < 1
    since = (
        f", the first {show_seconds(first - outage.start_s)} into it" if by_outage and first else ""
    )
    yield TimedFinding(
        "attempts-run-out",
        Severity.ERROR,
        course.queue,
        f"attempts run out {show_seconds(station.retry_span_s)} after the first failure: an outage of"
        f" {show_seconds(outage.length_s)} parks {show_count(parked)} messages{since}.",
        _more_tiers(topology, forecast, station, without),
        first if by_outage else outage.start_s + station.retry_span_s,
    )


def _dead_letters(topology: Topology, forecast: Forecast, station: Station) -> float:
    """Return the number of dead letters after changing a station. Other stations are not simulated."""
    return forecast_stations(topology, forecast.scenario, (station,)).dead_letters


def _more_tiers(topology: Topology, forecast: Forecast, station: Station, without: float) -> str:
    last = max((wait.delay_s for wait in station.waits), default=0.0)
    for seconds in _FURTHER_TIERS_S:
        if seconds <= last:
            continue
        left = _dead_letters(topology, forecast, with_tier(station, seconds)) - without
        if left < 1:
            text = format_duration(seconds * 1000)
            none = (
                "none" if without < 1 else f"none but {show_count(without)} that fail by themselves"
            )
            return f"A further tier of {text} would park {none}."
    return "No single further tier helps: add several, or a breaker, or more consumers."


def _hopeless(course: StationCourse) -> Iterator[TimedFinding]:
    if course.dead_letters >= 1:
        load = course.station.load
        yield TimedFinding(
            "dead-letters",
            Severity.INFO,
            course.queue,
            f"{show_count(course.dead_letters)} messages are parked because all their attempts fail"
            f" ({load.fail:.1%} of runs fail by chance, {load.poison:.1%} of messages always).",
            "Count on them: `hopback dlq` shows and re-drives them.",
            course.first_dead_letter_s,
        )


def _overload(
    topology: Topology, forecast: Forecast, course: StationCourse
) -> Iterator[TimedFinding]:
    del topology, forecast
    station, load = course.station, course.station.load
    needed = demand_of(station, load.top_rate)
    capacity = load.slots / load.handler_s
    if needed > capacity:
        slots = math.ceil(needed * load.handler_s / load.processes)
        yield TimedFinding(
            "overload",
            Severity.ERROR,
            course.queue,
            f"{show_rate(load.top_rate)} need {show_rate(needed)} runs, and {load.processes}×"
            f"{load.concurrency} consumers of {show_seconds(load.handler_s)} do"
            f" {show_rate(capacity)}: the queue grows even without an outage.",
            f"At least {load.processes}×{slots} are needed. {load.processes}×{math.ceil(slots * 1.3)}"
            " have reserves to recover.",
            max(load.rates, key=lambda step: step.rate).at_s,
        )


def _herd(topology: Topology, forecast: Forecast, course: StationCourse) -> Iterator[TimedFinding]:
    """Check whether returning messages and new ones exceed the capacity of the consumers."""
    del topology
    station = course.station
    times = forecast.times
    over = [
        place
        for place in range(1, len(times))
        if course.returns[place] > 0
        and course.arrivals[place] + course.returns[place] > course.capacity[place] * _NOTABLE
        and course.capacity[place] > 0
    ]
    if not over:
        return
    worst = max(over, key=lambda place: course.arrivals[place] + course.returns[place])
    inflow, capacity = course.arrivals[worst] + course.returns[worst], course.capacity[worst]
    span = len(over) * (times[1] - times[0])
    new = max(course.arrivals[worst], 1e-9)
    yield TimedFinding(
        "herd",
        Severity.WARNING,
        course.queue,
        f"retries return at up to {show_rate(course.returns[worst])} in addition to"
        f" {show_rate(course.arrivals[worst])} new messages, {inflow / new:.1f} times the arrival"
        f" rate, at {show_seconds(times[worst])}: capacity is short by"
        f" {1 - capacity / inflow:.0%}, for {show_seconds(span)} in all.",
        f"{station.load.processes}×{math.ceil(station.load.concurrency * inflow / capacity)} consumers"
        " would handle them as they arrive. A breaker keeps them from accumulating.",
        times[worst],
    )


def _recovery(
    topology: Topology, forecast: Forecast, course: StationCourse
) -> Iterator[TimedFinding]:
    del topology
    scenario = forecast.scenario
    if not scenario.last_trouble_s:
        return
    if course.recovered_s is None:
        yield TimedFinding(
            "not-recovered",
            Severity.WARNING,
            course.queue,
            f"at the end of the rehearsal {show_count(course.left)} messages still wait,"
            f" {show_seconds(scenario.duration_s - scenario.last_trouble_s)} after the last trouble.",
            "Rehearse for longer, or add consumers.",
            scenario.duration_s,
        )
        return
    after = max(0.0, course.recovered_s - scenario.last_trouble_s)
    yield TimedFinding(
        "recovery",
        Severity.INFO,
        course.queue,
        f"all queues are back to normal {show_seconds(after)} after the last failure. The longest wait in"
        f" the queue was {show_seconds(max(course.wait_s))}, the oldest message was"
        f" {show_seconds(max(course.oldest_s))} old.",
        "The longest tier makes up most of this time."
        if course.station.waits and after > max(one.delay_s for one in course.station.waits) * 0.8
        else "More consumers shorten it.",
        course.recovered_s,
    )


def _dependency(
    topology: Topology, forecast: Forecast, course: StationCourse
) -> Iterator[TimedFinding]:
    station = course.station
    if not station.outages:
        return
    hit, peak = load_while_down(forecast, course)
    if hit < 1:
        return
    grave = station.load.breaker is None and hit > 1000
    fix = "The breaker keeps it low."
    if station.load.breaker is None:
        tried = replace(station, load=replace(station.load, breaker=BreakerPolicy()))
        other = forecast_stations(topology, forecast.scenario, (tried,))
        then, _ = load_while_down(other, other.stations[0])
        fix = (
            f"A breaker (BreakerPolicy()) would ask {show_count(then)} times and park"
            f" {show_count(other.dead_letters)}."
        )
    yield TimedFinding(
        "dependency-load",
        Severity.WARNING if grave else Severity.INFO,
        course.queue,
        f"the failed dependency is called {show_count(hit)} times without success, up to {show_rate(peak)}.",
        fix,
        station.outages[0].start_s,
    )


def load_while_down(forecast: Forecast, course: StationCourse) -> tuple[float, float]:
    """Return the number of runs that fail during an outage, and their maximum rate."""
    times, total, peak = forecast.times, 0.0, 0.0
    for place in range(1, len(times)):
        before, now = times[place - 1], times[place]
        if any(one.start_s < now and one.end_s > before for one in course.station.outages):
            total += course.failures[place] * (now - before)
            peak = max(peak, course.failures[place])
    return total, peak


def _limits(
    topology: Topology, forecast: Forecast, course: StationCourse
) -> Iterator[TimedFinding]:
    del topology
    station = course.station
    if course.refused >= 1:
        depth = forecast.queue(course.queue).depth
        limit = station.max_length or 0
        full = next((t for t, d in zip(forecast.times, depth, strict=True) if d >= limit), 0.0)
        yield TimedFinding(
            "publishers-refused",
            Severity.ERROR,
            course.queue,
            f"max-length {limit:,} is reached after {show_seconds(full)}: publishers are refused"
            f" {show_count(course.refused)} messages.",
            "Raise the limit, or let producers keep refused messages, as the outbox does.",
            full,
        )
    if course.dropped >= 1:
        yield TimedFinding(
            "dropped",
            Severity.ERROR,
            course.queue,
            f"{show_count(course.dropped)} messages are dropped, because the queue is full.",
            "Set x-overflow to reject-publish, with at-least-once dead-lettering.",
        )
    copies = sorted({queue for wait in station.waits for queue in wait.copies})
    if copies and course.retried >= 1:
        yield TimedFinding(
            "copies",
            Severity.WARNING,
            course.queue,
            f"each of {show_count(course.retried)} retries brings another copy to"
            f" {', '.join(copies)}.",
            "Let retries return straight to their queue (the hardened form does).",
        )


_RULES: tuple[Callable[[Topology, Forecast, StationCourse], Iterator[TimedFinding]], ...] = (
    _attempts,
    _overload,
    _limits,
    _herd,
    _dependency,
    _recovery,
)
