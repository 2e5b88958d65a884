"""Grouping a large dead-letter queue: how long, how much memory, how long others had to wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.contestants import HOPBACK, PythonClient
from benchmarks.workload import Scenario

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.stage import Stage

__all__ = ["Grouping", "group"]

_BOUND_KIB = 64 * 1024


@dataclass(frozen=True, slots=True)
class Grouping:
    """One survey; `stall_ms` is the longest time that another task of the process had to wait."""

    count: int
    seconds: float
    grown_kib: int
    stall_ms: int

    def lines(self) -> list[str]:
        """The section of the page."""
        verdict = "within" if self.grown_kib <= _BOUND_KIB else "beyond"
        return [
            "\n## Grouping a dead-letter queue\n",
            f"{self.count:,} messages of 1 KiB in a classic queue, grouped by fingerprint in one pass:"
            f" {self.seconds:.1f} s, {self.count / self.seconds:,.0f} per second. The process grew by"
            f" {self.grown_kib / 1024:.1f} MiB ({verdict} the bound of {_BOUND_KIB // 1024} MiB);"
            f" another task waited {self.stall_ms} ms at most.\n",
        ]


def group(stage: Stage, python: Path, count: int) -> Grouping:
    """Fill a queue and let Hopback group it."""
    client = PythonClient(HOPBACK, "grouping_client", python)
    job = stage.job(client, Scenario.GROUP, "classic", count)
    measured = client.run(job)
    (_, before), (stall, _) = measured.samples
    return Grouping(count, measured.seconds, measured.peak_kib - before, stall)
