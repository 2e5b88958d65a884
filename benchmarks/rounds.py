"""The run: calibrate once, then rounds in which every client takes its turn, in changing order."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.stage import CountsDiffer
from benchmarks.workload import Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.contestants import Contestant
    from benchmarks.stage import Stage
    from benchmarks.workload import Measured

__all__ = ["Case", "Results", "Settings", "play"]


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
    seconds: float = 2.0
    """How long one run should take; the number of messages follows from the calibration."""
    least: int = 2_000
    most: int = 60_000
    queue_types: tuple[str, ...] = ("classic", "quorum")
    scenarios: tuple[Scenario, ...] = (
        Scenario.CONSUME,
        Scenario.PUBLISH,
        Scenario.PUBLISH_ONE,
        Scenario.MOVE,
        Scenario.MOVE_REAL,
        Scenario.RETRY,
        Scenario.FAIL,
        Scenario.PARK,
    )


@dataclass(slots=True)
class Results:
    """Every counted run, by case; one entry per round, None where a client failed."""

    runs: dict[Case, list[Measured | None]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, case: Case, measured: Measured | None) -> None:
        self.runs.setdefault(case, []).append(measured)


def play(stage: Stage, everyone: Sequence[Contestant], settings: Settings) -> Results:
    """Measure everything; a client that fails is reported, the others go on."""
    results = Results()
    counts: dict[Case, int] = {}
    for case, contestant in _turns(everyone, settings, 0):
        small = settings.least if case.scenario is not Scenario.PUBLISH_ONE else settings.least // 4
        measured = _run(stage, case, contestant, small, results)
        if measured is not None:
            counts[case] = _sized(measured.rate, settings)
    for number in range(1, settings.rounds + 1):
        for case, contestant in _turns(everyone, settings, number):
            if case in counts:
                measured = _run(stage, case, contestant, counts[case], results)
                results.add(case, measured)
                _tell(number, case, measured)
    return results


def _turns(
    everyone: Sequence[Contestant], settings: Settings, number: int
) -> Iterator[tuple[Case, Contestant]]:
    """All cases of a round; who begins changes from round to round."""
    shift = number % len(everyone)
    order = [*everyone[shift:], *everyone[:shift]]
    for queue_type in settings.queue_types:
        for scenario in settings.scenarios:
            for contestant in order:
                if scenario in contestant.scenarios:
                    yield Case(queue_type, scenario, contestant.name), contestant


def _sized(rate: float, settings: Settings) -> int:
    wanted = int(rate * settings.seconds) // 100 * 100
    return max(min(wanted, settings.most), min(settings.least, wanted), 100)


def _run(
    stage: Stage, case: Case, contestant: Contestant, count: int, results: Results
) -> Measured | None:
    try:
        measured = _verified(stage, case, contestant, count)
    except Exception as exc:
        results.failures.append(f"{case.name}, {case.scenario}, {case.queue_type}: {exc}")
        print(f"FAILED {results.failures[-1]}", file=sys.stderr)
        return None
    return measured


def _verified(stage: Stage, case: Case, contestant: Contestant, count: int) -> Measured:
    """One run whose counts are right; a run that ended before its last acks came in is repeated."""
    for last in (False, False, True):
        job = stage.job(contestant, case.scenario, case.queue_type, count)
        measured = contestant.run(job)
        try:
            stage.verify(job, contestant)
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
