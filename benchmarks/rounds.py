"""Measure a section. After a calibration, each client runs once per round, in changing order.

All clients run in three rounds. If these disagree about a goal, its clients run in up to two more
rounds.
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
    """A row of a table."""

    queue_type: str
    scenario: Scenario
    name: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The duration and the number of runs."""

    rounds: int = 5
    """The maximum for clients whose first rounds disagree about a goal."""
    fewest: int = 3
    seconds: float = 1.5
    """The target duration of a run. The calibration determines the number of messages."""
    least: int = 1_000
    most: int = 24_000
    """The maximum number of messages. It takes as long to fill a queue as to empty it, so more
    messages would double the time without benefit.
    """


@dataclass(slots=True)
class Results:
    """The runs of each case, with one entry per round. It is None if the client failed."""

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
    """Measure a section. If a client fails, it is reported and the others continue.

    `undecided` returns the clients whose goals are reached in some rounds and missed in others.
    """
    results = Results()
    entered = [one for one in everyone if scenario in one.scenarios]
    counts: dict[Case, int] = {}
    small = settings.least if scenario is not Scenario.PUBLISH_ONE else settings.least // 4
    for contestant in entered:
        case = Case(queue_type, scenario, contestant.name)
        measured = _run(setup, case, contestant, small, results)
        if measured is not None:
            counts[case] = _message_count(measured.rate, settings)
    active = [one for one in entered if Case(queue_type, scenario, one.name) in counts]
    for number in range(1, settings.rounds + 1):
        shift = number % max(len(active), 1)  # the order is different in each round
        for contestant in (*active[shift:], *active[:shift]):
            case = Case(queue_type, scenario, contestant.name)
            measured = _run(setup, case, contestant, counts[case], results)
            results.add(case, measured)
            _print_run(number, case, measured)
        if number >= settings.fewest:
            # Once a client is excluded, it is not run again, so that the rounds of two clients can
            # be compared.
            concerned = undecided(results)
            active = [one for one in active if one.name in concerned]
    return results


def _message_count(rate: float, settings: Settings) -> int:
    wanted = int(rate * settings.seconds) // 100 * 100
    return max(min(wanted, settings.most), min(settings.least, wanted), 100)


def _run(
    setup: BrokerSetup, case: Case, contestant: Contestant, count: int, results: Results
) -> Measured | None:
    try:
        measured = _run_verified(setup, case, contestant, count)
    except Exception as exc:
        results.failures.append(f"{case.name}, {case.scenario}, {case.queue_type}: {exc}")
        print(f"FAILED {results.failures[-1]}", file=sys.stderr)
        return None
    return measured


def _run_verified(setup: BrokerSetup, case: Case, contestant: Contestant, count: int) -> Measured:
    """Run a client and check the counts. If it ended before its last acks arrived, it is run again."""
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


def _print_run(number: int, case: Case, measured: Measured | None) -> None:
    if measured is not None:
        print(
            f"round {number}  {case.queue_type:8} {case.scenario:12} {case.name:28}"
            f" {measured.rate:9,.0f} msg/s {measured.cpu_us:7.1f} µs",
            file=sys.stderr,
        )
