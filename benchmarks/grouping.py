"""Measure the time and memory to group a large dead-letter queue, and the delay of other tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.contestants import HOPBACK, PythonClient
from benchmarks.workload import Scenario

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.broker_setup import BrokerSetup

__all__ = ["BOUND_KIB", "Grouping", "group"]

BOUND_KIB = 64 * 1024
"""The maximum growth of a process while it groups, for any number of messages."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """The result of a survey. `stall_ms` is the longest delay of another task in the process."""

    count: int
    seconds: float
    cpu_seconds: float
    grown_kib: int
    stall_ms: int

    @property
    def rate(self) -> float:
        return self.count / self.seconds


def group(setup: BrokerSetup, python: Path, count: int) -> Grouping:
    """Fill a queue and group its messages with Hopback."""
    client = PythonClient(HOPBACK, "grouping_client", python)
    job = setup.job(client, Scenario.GROUP, "classic", count)
    measured = client.run(job)
    (_, before), (stall, _) = measured.samples
    return Grouping(
        count, measured.seconds, measured.cpu_seconds, measured.peak_kib - before, stall
    )
