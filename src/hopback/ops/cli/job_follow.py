"""Follow a job from a command: show its progress, handle Ctrl-C, and return the exit code.

A terminal shows a bar. Otherwise a line is written every few seconds. The first Ctrl-C interrupts a job of
this process after the messages in flight. The second one cancels the command.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

import click

from hopback.cli.exits import Exit
from hopback.cli.terminal import clock_text, json_line, on_terminal
from hopback.ops.cli.dlq_print import came_back_text, output
from hopback.ops.contract.requests import JobKind
from hopback.ops.contract.values import Job, JobState
from hopback.text import count_of, safe_lines
from hopback.text import one_line as safe
from hopback.waiting import first_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hopback.ops.contract.interface import DeadLetters

_SPAN_S = 10.0  # long enough to be steady, short enough to follow a new rate
_BETWEEN_RECORDS_S = 5.0  # twelve lines a minute: a log stays readable
_BAR_CELLS = 24
"""Each cell is about 4 % of the job: finer than the eye follows."""
_NARROW_CELLS = 10
"""A tenth per cell: what is left of 80 columns beside the counts."""
_WIDE_COLUMNS = 100  # from here on the wide bar leaves room for a long queue name
_LOG_COLUMNS = 200  # a line of a log is as long as it needs to be
_DONE = {JobKind.REDRIVE: "re-driven", JobKind.DISCARD: "discarded"}


class Meter:
    """How fast messages come to their end, by what was counted within the last seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, at: float, finished: int) -> None:
        """So many are through at that moment."""
        self._samples.append((at, finished))
        while len(self._samples) > 2 and at - self._samples[0][0] > _SPAN_S:
            self._samples.popleft()

    @property
    def rate(self) -> float | None:
        """Messages per second; None before anything can be said."""
        if len(self._samples) < 2:
            return None
        (began, before), (now, after) = self._samples[0], self._samples[-1]
        return (after - before) / (now - began) if now > began else None


def time_left(job: Job, rate: float | None) -> float | None:
    """Seconds until it is through at this rate; None where nobody can say, as of a job that waits."""
    is_sending = job.state is JobState.RUNNING and not _waits_for(job)
    return job.counts.remaining / rate if rate and is_sending else None


def _waits_for(job: Job) -> str:
    """What a running job waits for, in words; empty while it sends."""
    return job.reason if job.state is JobState.RUNNING else ""


def _finished_count(job: Job) -> int:
    return job.counts.done + job.counts.skipped + job.counts.failed


def bar_line(job: Job, rate: float | None, columns: int) -> str:
    """The bar as one line that fits."""
    counts = job.counts
    finished = _finished_count(job)
    share = min(finished / max(counts.selected, 1), 1.0)
    cells = _BAR_CELLS if columns >= _WIDE_COLUMNS else _NARROW_CELLS
    filled = int(share * cells)
    left = time_left(job, rate)
    # What it waits for is worth more than a bar that stands still, and has its place.
    waits_for = clock_text(_waits_for(job), day=False)  # nothing is waited for longer than a day
    parts = [
        f"{job.kind} {job.queue}",
        "" if waits_for else "━" * filled + "─" * (cells - filled),
        f"{int(share * 100):3d}%",
        f"{finished:,}/{counts.selected:,}",
        f"{rate:,.0f}/s" if rate is not None and not waits_for else "",
        f"{_brief(left)} left" if left is not None else "",
        f"failed {counts.failed:,}" if counts.failed or not waits_for else "",
        f"came back {came_back_text(counts)}" if counts.came_back is not None else "",
        waits_for if job.state is JobState.RUNNING else job.state,
    ]
    line = safe("  ".join(part for part in parts if part))
    # One column less than there are: some terminals wrap when the last one is written.
    most = max(columns - 1, 10)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _brief(seconds: float) -> str:
    whole = int(seconds + 0.999)  # what has begun counts: 0.2 s is not "0s left"
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


class Progress(Protocol):
    """Where the progress of a job is told."""

    def show(self, job: Job) -> None:
        """The job has come so far."""

    def finish(self) -> None:
        """Nothing more is told: leave the place clean."""


class Bar:
    """One line of a terminal, drawn again and again. No escape sequences are needed for it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._meter = Meter()
        self._drawn = 0

    def show(self, job: Job) -> None:
        """Draw it."""
        self._meter.add(self._now(), _finished_count(job))
        columns = shutil.get_terminal_size().columns
        line = bar_line(job, self._meter.rate, columns)
        click.echo("\r" + line.ljust(min(self._drawn, columns - 1)), err=True, nl=False)
        self._drawn = len(line)

    def finish(self) -> None:
        """End the line: what was last drawn stays to be read."""
        if self._drawn:
            click.echo(err=True)
            self._drawn = 0


class _EveryFewSeconds:
    """Progress that is written down: every few seconds, and at once if the job has begun to wait."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._meter = Meter()
        self._next = now() + _BETWEEN_RECORDS_S
        self._reason = ""

    def show(self, job: Job) -> None:
        """Write it down if it is time."""
        now, known = self._now(), self._reason
        self._meter.add(now, _finished_count(job))
        self._reason = job.reason
        if now >= self._next or self._reason != known:
            self._next = now + _BETWEEN_RECORDS_S
            click.echo(self._line(job, self._meter.rate), err=True)

    def finish(self) -> None:
        """There is nothing to leave clean."""

    def _line(self, job: Job, rate: float | None) -> str:
        raise NotImplementedError


class Records(_EveryFewSeconds):
    """A line of JSON, for logs."""

    def _line(self, job: Job, rate: float | None) -> str:
        from hopback.ops.contract.codec import to_json

        left = time_left(job, rate)
        return json_line(
            {
                "event": "progress",
                "job": job.id,
                "state": job.state,
                "reason": job.reason,
                "counts": to_json(job.counts),
                "rate": None if rate is None or _waits_for(job) else round(rate, 1),
                "secondsLeft": None if left is None else round(left, 1),
            }
        )


class TextLines(_EveryFewSeconds):
    """A line for people, where a table goes into a pipe or a file."""

    def _line(self, job: Job, rate: float | None) -> str:
        return bar_line(job, rate, _LOG_COLUMNS)


class Signals:
    """Hears SIGINT and SIGTERM: the first is an event, the second cancels, the third ends."""

    def __init__(self) -> None:
        self.first: asyncio.Event = asyncio.Event()
        self.heard: int = 0
        self._main = asyncio.current_task()

    def __call__(self) -> None:
        """A signal has come."""
        self.heard += 1
        self.first.set()
        if self.heard == 2 and self._main is not None:
            self._main.cancel()
        elif self.heard > 2:
            os._exit(Exit.INTERRUPTED)


@contextmanager
def signals_heard() -> Iterator[Signals]:
    """Hear signals as long as this lasts."""
    loop, signals = asyncio.get_running_loop(), Signals()
    numbers = (signal.SIGINT, signal.SIGTERM)
    # Where a loop hears no signals, Ctrl-C ends the process at once, which loses nothing either.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        for number in numbers:
            loop.add_signal_handler(number, signals)
    try:
        yield signals
    except asyncio.CancelledError:
        if signals.heard > 1:
            raise click.Abort from None
        raise
    finally:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            for number in numbers:
                loop.remove_signal_handler(number)


async def see_through(dead_letters: DeadLetters, job: Job, form: str, resume: str) -> int:
    """Follow a job that was begun from here, print how it ended and return the exit code.

    `resume` is the command that goes on with it if it is interrupted.
    """
    with signals_heard() as signals:
        last = await follow(dead_letters, job, signals, form)
        if signals.heard and last.is_active and dead_letters.runs_jobs_here:
            click.echo("Finishing what is in flight; Ctrl-C again leaves at once.", err=True)
            last = await dead_letters.interrupt(last.id)
        code = await exit_code(dead_letters, last)
    if signals.heard and (last.is_active or last.state is JobState.INTERRUPTED):
        output(form, last, lambda: None)
        if dead_letters.runs_jobs_here:
            again = (
                f"Go on with:\n  {resume}"
                if dead_letters.keeps_jobs
                else "Begin again for the rest."
            )
            text = (
                f"Interrupted: {last.counts.done:,} of {count_of(last.counts.selected)} are"
                f" {_DONE[last.kind]}, the rest is in {last.queue}. {again}"
            )
        else:
            text = (
                f"Job {last.id} goes on at the server; `hopback jobs watch {last.id}` follows it."
            )
        click.echo(safe_lines(text), err=True)
        return Exit.INTERRUPTED
    output(form, last, lambda: _print_end(last, noted=code is not Exit.OK))
    if last.can_resume and dead_letters.keeps_jobs and code is not Exit.OK:
        click.echo(safe_lines(f"Go on with:\n  {resume}"), err=True)
    return code


async def follow(
    dead_letters: DeadLetters, job: Job, signals: Signals, form: str = "ndjson"
) -> Job:
    """Tell the progress until the job runs no more, or a signal comes; the job as it then is.

    Off a terminal it is told in the form of the rest: lines of JSON, or of words beside a table.
    """
    now = asyncio.get_running_loop().time
    told = TextLines if form == "table" else Records
    progress: Progress = Bar(now) if on_terminal(err=True) else told(now)
    last = job

    async def watch() -> None:
        nonlocal last
        async for last in dead_letters.events(job.id):
            progress.show(last)

    try:
        watched, _ = await first_of(watch(), signals.first.wait())
        if watched is not None:
            watched.result()
    finally:
        progress.finish()
    return last


async def exit_code(dead_letters: DeadLetters, job: Job) -> Exit:
    """The exit code that says how a job ended."""
    counts = job.counts
    match job.state:
        case JobState.COMPLETED:
            # What a filter leaves out is meant to stay; what is noted is not.
            left = counts.failed or (
                counts.skipped and await dead_letters.failures(job.id, limit=1)
            )
            return Exit.PARTIAL if left else Exit.OK
        case JobState.CANCELLED:
            return Exit.CANCELLED
        case JobState.STOPPED:
            return Exit.PARTIAL
        case JobState.FAILED:
            return Exit.PARTIAL if counts.done else Exit.FAILED
        case JobState.INTERRUPTED:
            return Exit.UNREACHABLE
    return Exit.OK


def _print_end(job: Job, *, noted: bool) -> None:
    counts = job.counts
    first = f"{job.state.capitalize()}: {count_of(counts.done)} {_DONE[job.kind]}"
    if job.state is JobState.STOPPED:
        first = f"Stopped: messages came back. {count_of(counts.done)} {_DONE[job.kind]}"
    more = [
        f"{number:,} {words}"
        for number, words in (
            (counts.skipped, "left out"),
            (counts.failed, "failed"),
            (counts.gone, "left the queue otherwise"),
            (counts.remaining, "not touched"),
            (counts.arrived_meanwhile, "arrived meanwhile"),
        )
        if number
    ]
    more += [f"{came_back_text(counts)} came back"] if counts.came_back else []
    click.echo(safe(", ".join([first, *more]) + "."))
    if job.reason and job.state in (JobState.FAILED, JobState.STOPPED, JobState.INTERRUPTED):
        click.echo(safe(f"Because: {job.reason}"))
    if job.state is JobState.STOPPED:
        click.echo(f"`hopback jobs came-back {job.id}` shows what came back.")
    if job.duplicates:
        click.echo(f"Delivered twice: {job.duplicates}.")
    if job.export_to and counts.done:
        click.echo(safe(f"Written to {job.export_to}"))
    if noted and (counts.failed or counts.skipped):
        click.echo(f"`hopback jobs failures {job.id}` lists what was not moved.")
