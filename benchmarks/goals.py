"""What is to be reached, as data. An application-level row adds its goals here."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import statistics_of_runs as stats
from benchmarks.contestants import (
    APPLICATION,
    AWAITING,
    HOPBACK,
    METRICS,
    REDRIVE,
    SHOVEL,
    UNRECORDED,
    C,
)
from benchmarks.rounds import Case
from benchmarks.workload import Scenario

if TYPE_CHECKING:
    from benchmarks.rounds import Results

__all__ = ["GOALS", "Goal", "Verdict", "judge", "reason_for"]

_REASONS = Path(__file__).with_name("reasons.toml")


@dataclass(frozen=True, slots=True)
class Goal:
    """At least `times` another's rate, or at most `cpu_us` of CPU per message (more than `against`)."""

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


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal and what was found; `reached` is None where it could not be measured."""

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
)


def judge(results: Results, goals: tuple[Goal, ...] = GOALS) -> tuple[Verdict, ...]:
    """Every goal on every kind of queue that was measured."""
    measured = {(case.queue_type, case.scenario) for case in results.runs}
    return tuple(
        _verdict(results, goal, queue_type)
        for goal in goals
        for queue_type in goal.queue_types
        if (queue_type, goal.scenario) in measured
    )


def _verdict(results: Results, goal: Goal, queue_type: str) -> Verdict:
    case = Case(queue_type, goal.scenario, goal.subject)
    if goal.against and not goal.times:
        beside = Case(queue_type, goal.scenario, goal.against)
        found = stats.cpu_more(results, case, beside)
        text, reached = (
            (f"{found.median:+.1f} µs", found.median <= goal.cpu_us) if found else ("–", None)
        )
    elif goal.against:
        found = stats.ratio(results, case, Case(queue_type, goal.scenario, goal.against))
        text, reached = (
            (f"{found.median:.2f} ×", found.median >= goal.times) if found else ("–", None)
        )
    else:
        found = stats.cpu_us(results, case)
        text, reached = (
            (f"{found.median:.1f} µs", found.median <= goal.cpu_us) if found else ("–", None)
        )
    return Verdict(goal, queue_type, text, reached)


def reason_for(verdict: Verdict) -> str:
    """Why a goal is missed, as `reasons.toml` says; it is written by whoever has read the profile."""
    reasons = tomllib.loads(_REASONS.read_text()) if _REASONS.exists() else {}
    kind = verdict.goal.against if verdict.goal.times else "cpu"
    scenario = reasons.get(verdict.queue_type, {}).get(str(verdict.goal.scenario), {})
    table = scenario.get(verdict.goal.subject, {})
    return str(table.get(kind, "not explained yet: add it to benchmarks/reasons.toml"))
