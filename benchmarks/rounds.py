"""One section: calibrate once, then rounds in which every client takes its turn, in changing order."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.broker_setup import CountsDiffer
from benchmarks.workload import Scenario

if TYPE_CHECKING:
    from collections.abc import Sequence

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

    rounds: int = 7
    """At most; a section whose figures agree sooner has fewer, but `fewest`."""
    fewest: int = 3
    seconds: float = 2.0
    """How long one run should take; the number of messages follows from the calibration."""
    least: int = 2_000
    most: int = 60_000


_AGREE = 0.1
"""Figures of rounds that lie within a tenth of their middle will not be bettered by more of them."""


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
) -> Results:
    """Measure one section; a client that fails is reported, the others go on."""
    results = Results()
    entered = [one for one in everyone if scenario in one.scenarios]
    counts: dict[Case, int] = {}
    small = settings.least if scenario is not Scenario.PUBLISH_ONE else settings.least // 4
    for contestant in entered:
        case = Case(queue_type, scenario, contestant.name)
        measured = _run(setup, case, contestant, small, results)
        if measured is not None:
            counts[case] = _sized(measured.rate, settings)
    for number in range(1, settings.rounds + 1):
        shift = number % max(len(entered), 1)  # who begins changes from round to round
        for contestant in (*entered[shift:], *entered[:shift]):
            case = Case(queue_type, scenario, contestant.name)
            if case in counts:
                measured = _run(setup, case, contestant, counts[case], results)
                results.add(case, measured)
                _tell(number, case, measured)
        if number >= settings.fewest and _agree(results):
            break
    return results


def _agree(results: Results) -> bool:
    """Whether rate and CPU of every client hardly differ from round to round."""
    for runs in results.runs.values():
        done = [run for run in runs if run]
        for figures in ([run.rate for run in done], [run.cpu_us for run in done]):
            if figures and max(figures) - min(figures) > 2 * _AGREE * median(figures):
                return False
    return True


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
