"""One section: calibrate once, then rounds in which every client takes its turn, in changing order.

All take part in three rounds. Where they disagree about a goal, those whom it concerns have up to two more:
what is the same in every round will not be told better by a fourth.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.broker_setup import CountsDiffer
from benchmarks.workload import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.broker_setup import BrokerSetup
    from benchmarks.contestants import Contestant
    from benchmarks.workload import Measured

__all__ = ["Case", "Results", "Settings", "run_rounds"]


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """One cell of the tables."""

    queue_type: str
    scenario: Scenario
    name: str


@dataclass(frozen=True, slots=True)
class Settings:
    """How long and how often."""

    rounds: int = 5
    """At most, for those about whose goals the first ones disagree."""
    fewest: int = 3
    seconds: float = 1.5
    """How long one run should take; the number of messages follows from the calibration."""
    least: int = 1_000
    most: int = 24_000
    """Filling a queue takes as long as emptying it: more would double the time and tell nothing more."""


@dataclass(slots=True)
class Results:
    """Every counted run, by case; one entry per round, None where a client failed."""

    runs: dict[Case, list[Measured | None]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, case: Case, measured: Measured | None) -> None:
        self.runs.setdefault(case, []).append(measured)


def run_rounds(
    setup: BrokerSetup,
    everyone: Sequence[Contestant],
    queue_type: str,
    scenario: Scenario,
    settings: Settings,
    undecided: Callable[[Results], frozenset[str]],
) -> Results:
    """Measure one section; a client that fails is reported, the others go on.

    `undecided` names the clients whose goals some rounds reach and others miss.
    """
    results = Results()
    entered = [one for one in everyone if scenario in one.scenarios]
    counts: dict[Case, int] = {}
    small = settings.least if scenario is not Scenario.PUBLISH_ONE else settings.least // 4
    for contestant in entered:
        case = Case(queue_type, scenario, contestant.name)
        measured = _run(setup, case, contestant, small, results)
        if measured is not None:
            counts[case] = _sized(measured.rate, settings)
    taking_part = [one for one in entered if Case(queue_type, scenario, one.name) in counts]
    for number in range(1, settings.rounds + 1):
        shift = number % max(len(taking_part), 1)  # who begins changes from round to round
        for contestant in (*taking_part[shift:], *taking_part[:shift]):
            case = Case(queue_type, scenario, contestant.name)
            measured = _run(setup, case, contestant, counts[case], results)
            results.add(case, measured)
            _tell(number, case, measured)
        if number >= settings.fewest:
            # Nobody comes back who was left out, so that the rounds of two clients are the same ones.
            concerned = undecided(results)
            taking_part = [one for one in taking_part if one.name in concerned]
    return results


def _sized(rate: float, settings: Settings) -> int:
    wanted = int(rate * settings.seconds) // 100 * 100
    return max(min(wanted, settings.most), min(settings.least, wanted), 100)


def _run(
    setup: BrokerSetup, case: Case, contestant: Contestant, count: int, results: Results
) -> Measured | None:
    try:
        measured = _verified(setup, case, contestant, count)
    except Exception as exc:
        results.failures.append(f"{case.name}, {case.scenario}, {case.queue_type}: {exc}")
        print(f"FAILED {results.failures[-1]}", file=sys.stderr)
        return None
    return measured


def _verified(setup: BrokerSetup, case: Case, contestant: Contestant, count: int) -> Measured:
    """One run whose counts are right; a run that ended before its last acks came in is repeated."""
    for last in (False, False, True):
        job = setup.job(contestant, case.scenario, case.queue_type, count)
        measured = contestant.run(job)
        try:
            setup.verify(job, contestant)
        except CountsDiffer as differ:
            if last or not differ.surplus:
                raise
        else:
            return measured
    raise AssertionError("unreachable")


def _tell(number: int, case: Case, measured: Measured | None) -> None:
    if measured is not None:
        print(
            f"round {number}  {case.queue_type:8} {case.scenario:12} {case.name:28}"
            f" {measured.rate:9,.0f} msg/s {measured.cpu_us:7.1f} µs",
            file=sys.stderr,
        )
