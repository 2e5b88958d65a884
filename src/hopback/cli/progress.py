"""How a job comes on, told on stderr: a bar on a terminal, a record every few seconds elsewhere."""

from __future__ import annotations

import shutil
from collections import deque
from typing import TYPE_CHECKING, Protocol

import click

from hopback.cli.printing import json_line, on_terminal, safe

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.cli.documents import Document

__all__ = ["Bar", "Meter", "Progress", "Records", "bar_line", "progress_to_stderr", "time_left"]

_SPAN_S = 10.0
_BETWEEN_RECORDS_S = 5.0
_BAR_CELLS = 24
_NARROW_CELLS = 10


class Meter:
    """How fast messages come to their end, by what was counted within the last seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, at: float, settled: int) -> None:
        """So many are through at that moment."""
        self._samples.append((at, settled))
        while len(self._samples) > 2 and at - self._samples[0][0] > _SPAN_S:
            self._samples.popleft()

    @property
    def rate(self) -> float | None:
        """Messages per second; None before anything can be said."""
        if len(self._samples) < 2:
            return None
        (began, before), (now, after) = self._samples[0], self._samples[-1]
        return (after - before) / (now - began) if now > began else None


def time_left(job: Document, rate: float | None) -> float | None:
    """Seconds until it is through at this rate; None where nobody can say."""
    return job["counts"]["remaining"] / rate if rate and job["state"] == "running" else None


def _settled(job: Document) -> int:
    counts = job["counts"]
    return int(counts["done"] + counts["skipped"] + counts["failed"])


def bar_line(job: Document, rate: float | None, columns: int) -> str:
    """The bar as one line that fits."""
    counts = job["counts"]
    settled, selected = _settled(job), max(counts["selected"], 1)
    share = min(settled / selected, 1.0)
    cells = _BAR_CELLS if columns >= 100 else _NARROW_CELLS
    filled = int(share * cells)
    left = time_left(job, rate)
    parts = [
        f"{job['kind']} {job['queue']}",
        "━" * filled + "─" * (cells - filled),
        f"{int(share * 100):3d}%",
        f"{settled:,}/{counts['selected']:,}",
        f"{rate:,.0f}/s" if rate is not None else "",
        f"{_brief(left)} left" if left is not None else "",
        f"failed {counts['failed']:,}",
        f"came back {counts['cameBack']:,}",
        "" if job["state"] == "running" else str(job["state"]),
        str(job.get("stateReason") or "") if job["state"] == "running" else "",
    ]
    return safe("  ".join(part for part in parts if part))[: max(columns - 1, 10)]


def _brief(seconds: float) -> str:
    whole = int(seconds + 0.999)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


class Progress(Protocol):
    """Where the progress of a job is told."""

    def show(self, job: Document) -> None:
        """The job has come so far."""

    def finish(self) -> None:
        """Nothing more is told: leave the place clean."""


class Bar:
    """One line of a terminal, drawn again and again. No escape sequences are needed for it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._meter = Meter()
        self._drawn = 0

    def show(self, job: Document) -> None:
        """Draw it."""
        self._meter.add(self._now(), _settled(job))
        columns = shutil.get_terminal_size().columns
        line = bar_line(job, self._meter.rate, columns)
        click.echo("\r" + line.ljust(min(self._drawn, columns - 1)), err=True, nl=False)
        self._drawn = len(line)

    def finish(self) -> None:
        """End the line: what was last drawn stays to be read."""
        if self._drawn:
            click.echo(err=True)
            self._drawn = 0


class Records:
    """A line of JSON every few seconds, for logs."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._meter = Meter()
        self._next = now() + _BETWEEN_RECORDS_S
        self._reason = ""

    def show(self, job: Document) -> None:
        """Write a record if it is time for one, and at once if the job has begun to wait."""
        now, known = self._now(), self._reason
        self._meter.add(now, _settled(job))
        self._reason = str(job.get("stateReason") or "")
        if now < self._next and self._reason == known:
            return
        self._next = now + _BETWEEN_RECORDS_S
        rate = self._meter.rate
        left = time_left(job, rate)
        record = {
            "event": "progress",
            "job": job["id"],
            "state": job["state"],
            "reason": self._reason,
            "counts": job["counts"],
            "rate": None if rate is None else round(rate, 1),
            "secondsLeft": None if left is None else round(left, 1),
        }
        click.echo(json_line(record), err=True)

    def finish(self) -> None:
        """There is nothing to leave clean."""


def progress_to_stderr(now: Callable[[], float]) -> Progress:
    """A bar if stderr is a terminal, records if not; `now` is a clock that never goes back."""
    return Bar(now) if on_terminal(err=True) else Records(now)
