"""The goals of the benchmarks."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import statistics_of_runs as stats
from benchmarks.contestants import (
    APPLICATION,
    AWAITING,
    BARE_LOOP,
    HOPBACK,
    METRICS,
    REDRIVE,
    SHOVEL,
    UNRECORDED,
    UVLOOP,
    C,
)
from benchmarks.rounds import Case
from benchmarks.workload import Scenario

if TYPE_CHECKING:
    from benchmarks.rounds import Results

__all__ = ["GOALS", "Goal", "Verdict", "judge", "reason_for", "reason_in_table", "undecided"]

_REASONS = Path(__file__).with_name("reasons.toml")


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal. The rate must be at least `times` the rate of another client, or the CPU time per
    message must be at most `cpu_us`, or at most this much more than that of `against`.
    """

    subject: str
    scenario: Scenario
    against: str = ""
    times: float = 0.0
    cpu_us: float = 0.0
    queue_types: tuple[str, ...] = ("classic", "quorum")

    @property
    def text(self) -> str:
        if self.times:
            return f"≥ {self.times:g} × {self.against}"
        if self.against:
            return f"≤ {self.cpu_us:g} µs of CPU more than {self.against}"
        return f"≤ {self.cpu_us:g} µs of CPU"

    def is_reached(self, found: float) -> bool:
        """Return True if a ratio or a CPU time reaches the goal."""
        return found >= self.times if self.times else found <= self.cpu_us


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal and its result. `reached` is None if it was not measured."""

    goal: Goal
    queue_type: str
    found: str
    reached: bool | None


GOALS: tuple[Goal, ...] = (
    Goal(HOPBACK, Scenario.CONSUME, C, 1.0),
    Goal(HOPBACK, Scenario.CONSUME, cpu_us=20),
    Goal(HOPBACK, Scenario.CONSUME, "aio-pika", 4.0),
    Goal(HOPBACK, Scenario.PUBLISH, C, 0.9),
    Goal(HOPBACK, Scenario.PUBLISH, cpu_us=15),
    Goal(HOPBACK, Scenario.PUBLISH, "aio-pika", 3.0),
    Goal(HOPBACK, Scenario.MOVE, C, 1.0),
    Goal(HOPBACK, Scenario.MOVE, "aio-pika", 4.0),
    Goal(REDRIVE, Scenario.MOVE, C, 0.8),
    Goal(REDRIVE, Scenario.MOVE, "aio-pika", 4.0),
    Goal(REDRIVE, Scenario.MOVE, SHOVEL, 1.0),
    Goal(HOPBACK, Scenario.RETRY, C, 0.7),
    Goal(HOPBACK, Scenario.RETRY, "aiormq", 1.3),
    Goal(APPLICATION, Scenario.CONSUME, C, 0.8),
    Goal(APPLICATION, Scenario.CONSUME, cpu_us=35),
    Goal(APPLICATION, Scenario.CONSUME, "FastStream", 8.0, queue_types=("quorum",)),
    Goal(APPLICATION, Scenario.CONSUME, "aio-pika", 5.0, queue_types=("quorum",)),
    Goal(APPLICATION, Scenario.CONSUME, "FastStream", 5.0, queue_types=("classic",)),
    Goal(APPLICATION, Scenario.CONSUME, "aio-pika", 4.0, queue_types=("classic",)),
    Goal(METRICS, Scenario.CONSUME, C, 0.8),
    Goal(METRICS, Scenario.CONSUME, cpu_us=30),
    Goal(METRICS, Scenario.CONSUME, APPLICATION, cpu_us=5),
    Goal(AWAITING, Scenario.CONSUME, C, 0.6),
    Goal(AWAITING, Scenario.CONSUME, cpu_us=40),
    Goal(UNRECORDED, Scenario.CONSUME, APPLICATION, cpu_us=35),
    Goal(APPLICATION, Scenario.FAIL, cpu_us=120),
    Goal(APPLICATION, Scenario.PARK, cpu_us=150),
    Goal(APPLICATION, Scenario.RETRY, "aiormq", 1.2),
    Goal(APPLICATION, Scenario.RETRY, C, 0.7),
    Goal(REDRIVE, Scenario.MOVE_REAL, C, 0.8),
    Goal(REDRIVE, Scenario.MOVE_REAL, "aio-pika", 4.0),
    Goal(HOPBACK, Scenario.PUBLISH_ONE, cpu_us=100),
    Goal(UVLOOP, Scenario.PUBLISH_ONE, cpu_us=100),
    Goal(APPLICATION, Scenario.ROUND_TRIPS, BARE_LOOP, cpu_us=40),
)


def judge(results: Results, goals: tuple[Goal, ...] = GOALS) -> tuple[Verdict, ...]:
    """Return the verdicts on all goals for all queue types that were measured."""
    measured = {(case.queue_type, case.scenario) for case in results.runs}
    return tuple(
        _verdict(results, goal, queue_type)
        for goal in goals
        for queue_type in goal.queue_types
        if (queue_type, goal.scenario) in measured
    )


def undecided(results: Results, goals: tuple[Goal, ...] = GOALS) -> frozenset[str]:
    """Return the clients whose goals are reached in some rounds and missed in others."""
    found: set[str] = set()
    for case in results.runs:
        for goal in goals:
            if (goal.subject, goal.scenario) != (case.name, case.scenario):
                continue
            spread = _measure(results, goal, case.queue_type)
            if spread is not None and case.queue_type in goal.queue_types:
                ends = {goal.is_reached(spread.low), goal.is_reached(spread.high)}
                found.update({goal.subject, goal.against} if len(ends) > 1 else ())
    return frozenset(found)


def _measure(results: Results, goal: Goal, queue_type: str) -> stats.Spread | None:
    """Return the values of all rounds for a goal."""
    case = Case(queue_type, goal.scenario, goal.subject)
    if not goal.against:
        return stats.cpu_us(results, case)
    beside = Case(queue_type, goal.scenario, goal.against)
    return (stats.ratio if goal.times else stats.cpu_more)(results, case, beside)


def _verdict(results: Results, goal: Goal, queue_type: str) -> Verdict:
    found = _measure(results, goal, queue_type)
    if found is None:
        return Verdict(goal, queue_type, "–", None)
    if goal.times:
        text = f"{found.median:.2f} ×"
    else:
        text = f"{found.median:+.1f} µs" if goal.against else f"{found.median:.1f} µs"
    return Verdict(goal, queue_type, text, goal.is_reached(found.median))


_UNEXPLAINED = "not explained yet: add it to benchmarks/reasons.toml"


def reason_for(verdict: Verdict) -> str:
    """Return from `reasons.toml` why a goal was missed. The reasons are written manually after
    reading a profile.
    """
    kind = verdict.goal.against if verdict.goal.times else "cpu"
    scenario = _reasons().get(verdict.queue_type, {}).get(str(verdict.goal.scenario), {})
    return str(scenario.get(verdict.goal.subject, {}).get(kind, _UNEXPLAINED))


def reason_in_table(table: str, name: str) -> str:
    """Return why a goal of a table was missed."""
    return str(_reasons().get("tables", {}).get(table, {}).get(name, _UNEXPLAINED))


def _reasons() -> dict[str, Any]:
    return tomllib.loads(_REASONS.read_text(encoding="utf-8")) if _REASONS.exists() else {}
