"""Find the cheapest change of a plan that meets a goal. Changes are evaluated with the fluid model."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING

from hopback.durations import format_duration
from hopback.policy.breaker import BreakerPolicy
from hopback.rehearse.engine import forecast_stations
from hopback.rehearse.findings import load_while_down
from hopback.rehearse.quantities import parse_rate, parse_seconds, show_rate, show_seconds
from hopback.rehearse.scenario import Outage, Scenario
from hopback.rehearse.station import Station, Wait, stations_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hopback.topology.model import Topology

_FORMS = (
    (re.compile(r"no dead letters(?: up to (\S+)(?: outage)?)?"), "dead-letters"),
    (re.compile(r"recovered within (\S+)"), "recovery"),
    (re.compile(r"at most (\S+?)(?: retries)?(/s)(?: at the dependency)?"), "asked"),
)
_LADDERS_S = (
    (30, 300, 1800, 3600),
    (30, 300, 1800, 7200),
    (30, 300, 1800, 14_400),
    (30, 300, 1800, 7200, 28_800),
    (30, 120, 600),
    (30, 120, 600, 3600),
    (10, 60, 300),
)
"""Common retry delays for short and long outages."""
_MORE_ATTEMPTS = (0, 3, 8)
"""Number of attempts to add. The last delay is used for all of them."""
_FACTORS = (1.25, 1.5, 2.0, 3.0, 4.0)
"""Factors by which the concurrency is increased. If four times as much is not enough, there is a
different problem.
"""
_BREAKERS = (
    BreakerPolicy(),
    BreakerPolicy(failures=20, cool_down=5.0, longest_cool_down=60.0),
    BreakerPolicy(failures=10, cool_down=2.0, longest_cool_down=15.0),
)
# The cost of a change, relative to the current consumers, which cost 1. Machines are expensive,
# while retry queues and settings are cheap.
_TIER_COST = 0.02
_ATTEMPT_COST = 0.005
_BREAKER_COST = 0.01
_CHANGE_COST = 0.05


class GoalKind(StrEnum):
    """What a goal limits."""

    DEAD_LETTERS = "dead-letters"
    RECOVERY = "recovery"
    ASKED = "asked"


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal for a plan. `outage_s` is the length of the outage it applies to, if specified."""

    kind: GoalKind
    text: str
    limit: float = 0.0
    outage_s: float | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan that was evaluated, with its changes, cost and results."""

    station: Station
    changes: tuple[str, ...]
    cost: float
    dead_letters: float
    recovery_s: float | None
    asked: float
    asked_peak: float
    peak: float
    met: bool


def parse_goal(text: str) -> Goal:
    """Parse a goal. Raises ValueError with examples of all three kinds."""
    words = " ".join(text.split()).lower()
    for form, kind in _FORMS:
        found = form.fullmatch(words)
        if found is None:
            continue
        if kind == GoalKind.DEAD_LETTERS:
            outage = found[1]
            return Goal(GoalKind(kind), words, 0.0, parse_seconds(outage) if outage else None)
        if kind == GoalKind.RECOVERY:
            return Goal(GoalKind(kind), words, parse_seconds(found[1]))
        return Goal(GoalKind(kind), words, parse_rate(found[1] + "/s"))
    raise ValueError(
        "expected `no dead letters up to 1h outage`, `recovered within 15m` or"
        f" `at most 50 retries/s at the dependency`, got {text!r}"
    )


def advise(
    topology: Topology, scenario: Scenario, queue: str, goals: Sequence[Goal]
) -> tuple[Proposal, ...]:
    """Return the current plan, followed by plans that meet all goals, cheapest first.

    There is at most one plan for each kind of change. If no plan meets the goals, only the current
    plan is returned.
    """
    scenario = _for_goals(scenario, goals)
    station = next(one for one in stations_of(topology, scenario) if one.queue == queue)
    today = _try_changes(topology, scenario, station, (), 0.0, goals)
    if today.met:
        return (today,)
    found: list[Proposal] = []
    for kinds in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1), (1, 0, 1), (1, 1, 1)):
        if sum(kinds) == 3 and found:
            break  # only change everything if smaller changes are not enough
        for cost, changes, other in _variants(station, kinds):
            tried = _try_changes(topology, scenario, other, changes, cost, goals)
            if tried.met:
                found.append(tried)
                break
    return (today, *sorted(found, key=lambda one: one.cost))


def _for_goals(scenario: Scenario, goals: Sequence[Goal]) -> Scenario:
    """Extend the scenario to the longest outage of any goal, with enough time to recover."""
    named = max((goal.outage_s or 0.0 for goal in goals), default=0.0)
    outages = scenario.outages
    if named:
        start = outages[0].start_s if outages else min(300.0, scenario.duration_s / 4)
        outages = (Outage(start, named, outages[0].hits if outages else ()),)
    end = max((one.end_s for one in outages), default=0.0)
    longest = end + max(sum(ladder) for ladder in _LADDERS_S[:3]) + named + 3600
    return replace(scenario, outages=outages, duration_s=max(scenario.duration_s, longest))


def _try_changes(
    topology: Topology,
    scenario: Scenario,
    station: Station,
    changes: tuple[str, ...],
    cost: float,
    goals: Sequence[Goal],
) -> Proposal:
    forecast = forecast_stations(topology, scenario, (station,))
    asked, asked_peak = load_while_down(forecast, forecast.stations[0])
    recovery_s, dead_letters = forecast.recovery_s, forecast.dead_letters
    course = forecast.stations[0]
    load = course.station.load
    # Some dead letters cannot be avoided: poison messages, and those that fail by chance in each
    # attempt.
    hopeless = load.poison + (1 - load.poison) * load.fail ** (len(course.station.wait_after) + 1)
    measured = {
        GoalKind.DEAD_LETTERS: dead_letters - course.published * hopeless * 1.05,
        GoalKind.RECOVERY: math.inf if recovery_s is None else recovery_s,
        GoalKind.ASKED: asked_peak,
    }
    met = all(measured[goal.kind] <= max(goal.limit, 0.5) for goal in goals)
    peak = sum(max(queue.depth) for queue in forecast.queues if queue.role == "main")
    return Proposal(station, changes, cost, dead_letters, recovery_s, asked, asked_peak, peak, met)


def _variants(
    station: Station, kinds: tuple[int, int, int]
) -> list[tuple[float, tuple[str, ...], Station]]:
    """Return variants of a station for these kinds of change (delays, breaker, consumers), cheapest
    first.
    """
    found = []
    ladders: list[tuple[tuple[float, ...], int] | None] = [None]
    if kinds[0]:  # the current delays with more attempts, and common delays
        own = tuple(wait.delay_s for wait in station.waits)
        today = len(station.wait_after) + 1
        ladders = [(own, today + more) for more in _MORE_ATTEMPTS if own and more]
        for usual, more in product(_LADDERS_S, _MORE_ATTEMPTS):
            ladders.append((tuple(map(float, usual)), len(usual) + 1 + more))
    breakers = _BREAKERS if kinds[1] else (None,)
    factors = _FACTORS if kinds[2] else (None,)
    for ladder, breaker, factor in product(ladders, breakers, factors):
        other, cost = station, 0.0
        changes: list[str] = []
        if ladder is not None:
            delays, attempts = ladder
            waits = tuple(
                Wait(f"{station.queue}.retry.{_text(delay)}", delay, _text(delay), ())
                for delay in delays
            )
            after = tuple(min(number, len(waits) - 1) for number in range(attempts - 1))
            other = replace(other, waits=waits, wait_after=after)
            cost += _TIER_COST * len(waits) + _ATTEMPT_COST * attempts + _CHANGE_COST
            changes.append("waits")
        if breaker is not None:
            if breaker == station.load.breaker:
                continue
            other = replace(other, load=replace(other.load, breaker=breaker))
            cost += _BREAKER_COST + _CHANGE_COST
            changes.append("breaker")
        if factor is not None:
            more = math.ceil(station.load.concurrency * factor)
            other = replace(other, load=replace(other.load, concurrency=more))
            cost += more / station.load.concurrency - 1 + _CHANGE_COST
            changes.append("consumers")
        found.append((cost, tuple(changes), other))
    return sorted(found, key=lambda one: one[0])


def _text(seconds: float) -> str:
    return format_duration(round(seconds * 1000))


def plan_text(proposal: Proposal) -> str:
    """Describe the delays, attempts, consumers and breaker of a plan."""
    station = proposal.station
    load = station.load
    waits = ", ".join(_text(wait.delay_s) for wait in station.waits)
    breaker = (
        ""
        if load.breaker is None
        else f", breaker {load.breaker.failures}, {_text(load.breaker.cool_down)}"
        f" to {_text(load.breaker.longest_cool_down)}"
    )
    attempts = len(station.wait_after) + 1
    return f"{waits}, {attempts} attempts, {load.processes}×{load.concurrency}{breaker}"


def decorator_line(proposal: Proposal) -> str:
    """Return the decorator that configures a handler accordingly."""
    station = proposal.station
    load = station.load
    waits = ", ".join(f'"{_text(wait.delay_s)}"' for wait in station.waits)
    parts = [
        f'"{station.queue}"',
        f"retry=({waits},)" if len(station.waits) == 1 else f"retry=({waits})",
        f"attempts={len(station.wait_after) + 1}",
        f"concurrency={load.concurrency}",
    ]
    if load.breaker is not None:
        one = load.breaker
        parts.append(
            f"breaker=BreakerPolicy(failures={one.failures}, cool_down={one.cool_down:g},"
            f" longest_cool_down={one.longest_cool_down:g})"
        )
    return f"@app.handler({', '.join(parts)})"


def toml_lines(proposal: Proposal) -> str:
    """Return the queue for a topology file. Options of the handler are not included."""
    station = proposal.station
    waits = ", ".join(f'"{_text(wait.delay_s)}"' for wait in station.waits)
    return (
        f'[queues."{station.queue}"]\nretry = [{waits}]\nattempts = {len(station.wait_after) + 1}\n'
    )


def jitter_note(scenario: Scenario, goals: Sequence[Goal], today: Proposal) -> str:
    """Explain why jitter is not an option, and what ±50 % of the longest delay would change.

    Messages that failed during the outage return over a period as long as the outage plus the
    jitter. The rate is only lower if the jitter is longer than the outage.
    """
    note = "Jitter is not offered: a retry queue has one time to live for all its messages."
    outages = _for_goals(scenario, goals).outages
    if not outages or not today.station.waits:
        return note
    outage_s = max(one.length_s for one in outages)
    spread_s = max(wait.delay_s for wait in today.station.waits)
    wait, outage = _text(spread_s), show_seconds(outage_s)
    if outage_s >= spread_s:
        gain = f"shorter than the outage of {outage}: as many would return per second"
    else:
        gain = (
            f"longer than the outage of {outage}: {outage_s / spread_s:.0%} as many would return"
            " per second"
        )
    return (
        f"{note} ±50 % of {wait} would spread the returns over {wait}, {gain}, and the last"
        f" up to {_text(spread_s / 2)} later. A breaker keeps them in their queue instead."
    )


def table_rows(proposals: Sequence[Proposal]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table that compares the plans. The last row explains jitter."""
    for proposal in proposals:
        recovery = proposal.recovery_s
        yield (
            " and ".join(proposal.changes) or "nothing",
            plan_text(proposal),
            f"{proposal.dead_letters:,.0f}",
            "not in time" if recovery is None else show_seconds(recovery),
            show_rate(proposal.asked_peak),
            f"{proposal.peak:,.0f}",
            f"{proposal.cost:.2f}" if proposal.changes else "",
        )
    yield ("jitter", "not offered, see below", *[""] * 5)
