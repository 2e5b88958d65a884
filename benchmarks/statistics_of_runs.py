"""Compute medians and spreads, and ratios within the same round."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.rounds import Case, Results

__all__ = ["Spread", "cpu_more", "cpu_us", "rates", "ratio"]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, minimum and maximum of several values."""

    median: float
    low: float
    high: float
    values: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return the spread of the values, or None if there are none."""
        return cls(median(values), min(values), max(values), len(values)) if values else None


def rates(results: Results, case: Case) -> Spread | None:
    """Return the spread of the messages per second."""
    return Spread.of([run.rate for run in results.runs.get(case, ()) if run])


def cpu_us(results: Results, case: Case) -> Spread | None:
    """Return the spread of the client's CPU time per message in microseconds."""
    return Spread.of([run.cpu_us for run in results.runs.get(case, ()) if run])


def cpu_more(results: Results, case: Case, than: Case) -> Spread | None:
    """Return the spread of the additional CPU time per message in microseconds, compared within
    each round.
    """
    pairs = zip(results.runs.get(case, ()), results.runs.get(than, ()), strict=False)
    return Spread.of([one.cpu_us - other.cpu_us for one, other in pairs if one and other])


def ratio(results: Results, case: Case, against: Case) -> Spread | None:
    """Return the spread of the ratio of the rates within each round. A disturbance affects both
    clients of a round.
    """
    pairs = zip(results.runs.get(case, ()), results.runs.get(against, ()), strict=False)
    return Spread.of([one.rate / other.rate for one, other in pairs if one and other])
