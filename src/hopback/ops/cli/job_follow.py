"""Follow a job in a command, handle Ctrl-C and determine the exit code.

A terminal shows a progress bar. Otherwise, a line is written every few seconds. The first Ctrl-C
interrupts the job after the messages in flight if it belongs to this process. The second one
cancels the command.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.terminal import clock_text, json_line, on_terminal
from hopback.errors import ServerUnavailable
from hopback.ops.cli.dlq_print import about, came_back_text, export_files, output
from hopback.ops.contract.job_meter import JobMeter
from hopback.ops.contract.requests import JobKind
from hopback.ops.contract.values import Job, JobState
from hopback.text import count_of, safe_lines, span_text
from hopback.text import one_line as safe
from hopback.waiting import first_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hopback.ops.contract.interface import DeadLetters

_BETWEEN_RECORDS_S = 5.0  # seconds. A log stays readable with twelve lines per minute.
_BAR_CELLS = 24  # cells, so each represents about 4 % of the job
_NARROW_CELLS = 10  # cells, so each represents 10 %. The bar and the counts fit in 80 columns.
_WIDE_COLUMNS = 100  # columns from which there is room for the wide bar and a long queue name
_LOG_COLUMNS = 200  # columns. Lines in a log are not truncated to the width of a terminal.
_DONE = {JobKind.REDRIVE: "re-driven", JobKind.DISCARD: "discarded"}


def time_left(job: Job, rate: float | None) -> float | None:
    """Return the remaining time in seconds, or None if the rate is unknown or the job waits."""
    is_sending = job.state is JobState.RUNNING and not _wait_reason(job)
    return job.counts.remaining / rate if rate and is_sending else None


def _wait_reason(job: Job) -> str:
    """Return why a running job waits. It is empty while the job is sending."""
    return job.state_reason if job.state is JobState.RUNNING else ""


def bar_line(job: Job, rate: float | None, columns: int = _LOG_COLUMNS) -> str:
    """Format the progress of a job as a line of at most `columns` characters."""
    counts = job.counts
    finished = counts.selected - counts.remaining
    share = min(finished / max(counts.selected, 1), 1.0)
    cells = _BAR_CELLS if columns >= _WIDE_COLUMNS else _NARROW_CELLS
    filled = int(share * cells)
    left = time_left(job, rate)
    # If a job waits, show the reason instead of the bar.
    waits_for = clock_text(_wait_reason(job), day=False)  # no job waits for more than a day
    parts = [
        f"{job.kind} {job.queue}",
        "" if waits_for else "━" * filled + "─" * (cells - filled),
        f"{int(share * 100):3d}%",
        f"{finished:,}/{counts.selected:,}",
        f"{rate:,.0f}/s" if rate is not None and not waits_for else "",
        f"{span_text(math.ceil(left))} left" if left is not None else "",
        f"failed {counts.failed:,}" if counts.failed or not waits_for else "",
        f"returned {came_back_text(counts)}" if counts.came_back is not None else "",
        waits_for if job.state is JobState.RUNNING else job.state,
    ]
    line = safe("  ".join(part for part in parts if part))
    # Leave the last column empty, because some terminals wrap the line otherwise.
    most = max(columns - 1, 10)
    return line if len(line) <= most else f"{line[: most - 1]}…"


class Bar:
    """A progress bar that redraws a line of the terminal without escape sequences."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._meter = JobMeter()
        self._drawn = 0

    def show(self, job: Job) -> None:
        """Draw the line."""
        self._meter.add(self._now(), job.counts)
        columns = shutil.get_terminal_size().columns
        line = bar_line(job, self._meter.rate, columns)
        click.echo("\r" + line.ljust(min(self._drawn, columns - 1)), err=True, nl=False)
        self._drawn = len(line)

    def finish(self) -> None:
        """Finish the line and keep it visible."""
        if self._drawn:
            click.echo(err=True)
            self._drawn = 0


class Lines:
    """Write a line every `_BETWEEN_RECORDS_S` seconds, and whenever the reason of the job changes."""

    def __init__(
        self, now: Callable[[], float], line_of: Callable[[Job, float | None], str]
    ) -> None:
        self._now = now
        self._line_of = line_of
        self._meter = JobMeter()
        self._next = now() + _BETWEEN_RECORDS_S
        self._reason = ""

    def show(self, job: Job) -> None:
        """Write a line if it is due."""
        now, known = self._now(), self._reason
        self._meter.add(now, job.counts)
        self._reason = job.state_reason
        if now >= self._next or self._reason != known:
            self._next = now + _BETWEEN_RECORDS_S
            click.echo(self._line_of(job, self._meter.rate), err=True)

    def finish(self) -> None:
        """Do nothing, because all lines are complete."""


def record_line(job: Job, rate: float | None) -> str:
    """Format the progress of a job as a line of JSON for logs."""
    from hopback.ops.contract.codec import to_json

    left = time_left(job, rate)
    return json_line(
        {
            "event": "progress",
            "job": job.id,
            "state": job.state,
            "reason": job.state_reason,
            "counts": to_json(job.counts),
            "rate": None if rate is None or _wait_reason(job) else round(rate, 1),
            "secondsLeft": None if left is None else round(left, 1),
        }
    )


class Signals:
    """Handle SIGINT and SIGTERM. The first one sets an event, the second cancels, and the third exits."""

    def __init__(self) -> None:
        self.first: asyncio.Event = asyncio.Event()
        self.heard: int = 0
        self._main = asyncio.current_task()

    def __call__(self) -> None:
        self.heard += 1
        self.first.set()
        if self.heard == 2 and self._main is not None:
            self._main.cancel()
        elif self.heard > 2:
            os._exit(Exit.INTERRUPTED)


@contextmanager
def handle_signals() -> Iterator[Signals]:
    """Handle signals until the context exits."""
    loop, signals = asyncio.get_running_loop(), Signals()
    numbers = (signal.SIGINT, signal.SIGTERM)
    # If the loop does not support signals, Ctrl-C ends the process directly. No messages are lost.
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
    """Follow a job that the command has started, print its result and return the exit code.

    `resume` is the command to print for resuming the job after an interruption.
    """
    with handle_signals() as signals:
        try:
            last = await follow(dead_letters, job, signals, form)
        except ServerUnavailable as gone:
            raise CommandFailed(
                str(gone),
                do=f"Job {job.id} may continue. `hopback jobs watch {job.id}` follows it as soon as"
                " the server answers.",
                code=Exit.UNREACHABLE,
            ) from gone
        if signals.heard and last.is_active and dead_letters.runs_jobs_here:
            click.echo("Finishing messages in flight. Press Ctrl-C again to exit now.", err=True)
            last = await dead_letters.interrupt(last.id)
        code = await exit_code(dead_letters, last)
    if signals.heard and (last.is_active or last.state is JobState.INTERRUPTED):
        output(form, last, lambda: None)
        if dead_letters.runs_jobs_here:
            again = (
                f"Resume with:\n  {resume}"
                if dead_letters.keeps_jobs
                else "Start a new job for them."
            )
            text = (
                f"Interrupted: {last.counts.done:,} of {about(last)}{count_of(last.matching)}"
                f" {_DONE[last.kind]}, the others are in {last.queue}. {again}"
            )
        else:
            text = (
                f"Job {last.id} continues at the server. `hopback jobs watch {last.id}` follows it."
            )
        click.echo(safe_lines(text), err=True)
        return Exit.INTERRUPTED
    output(form, last, lambda: print_end(last, noted=code is not Exit.OK))
    if last.can_resume and dead_letters.keeps_jobs and code is not Exit.OK:
        click.echo(safe_lines(f"Resume with:\n  {resume}"), err=True)
    return code


async def follow(
    dead_letters: DeadLetters, job: Job, signals: Signals, form: str = "ndjson"
) -> Job:
    """Show the progress until the job ends or a signal is received. Returns the last state of the
    job.

    Without a terminal, the progress is written as lines. They are text if `form` is `table`, and
    JSON otherwise.
    """
    now = asyncio.get_running_loop().time
    line_of = bar_line if form == "table" else record_line
    progress = Bar(now) if on_terminal(err=True) else Lines(now, line_of)
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
    """Return the exit code for a job."""
    counts = job.counts
    match job.state:
        case JobState.COMPLETED:
            # Skipped messages that do not match the filter are not recorded as failures.
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


def print_end(job: Job, *, noted: bool) -> None:
    """Print the result of a job. `noted` is True if some messages were not moved."""
    counts = job.counts
    first = f"{job.state.capitalize()}: {count_of(counts.done)} {_DONE[job.kind]}"
    if job.state is JobState.STOPPED:
        came = "returned" if counts.came_back else "arrived"
        first = f"Stopped: messages {came}. {count_of(counts.done)} {_DONE[job.kind]}"
    more = [
        f"{number:,} {words}"
        for number, words in (
            (counts.skipped, "skipped"),
            (counts.failed, "failed"),
            (counts.gone, "no longer in the queue"),
            (job.left, "remaining"),
            (not counts.came_back and counts.arrived_meanwhile, "arrived during the job"),
        )
        if number
    ]
    more += [f"{came_back_text(counts)} returned"] if counts.came_back else []
    click.echo(safe(", ".join([first, *more]) + "."))
    if job.state_reason and job.state in (JobState.FAILED, JobState.STOPPED, JobState.INTERRUPTED):
        click.echo(safe(f"Reason: {job.state_reason}"))
    if job.state is JobState.STOPPED:
        click.echo(f"`hopback jobs came-back {job.id}` shows the returned messages.")
    if job.duplicates:
        click.echo(f"Delivered twice: {job.duplicates}.")
    if job.export_to and counts.done:
        click.echo(safe(f"Written to {export_files(job)}"))
    if noted and (counts.failed or counts.skipped):
        click.echo(f"`hopback jobs failures {job.id}` lists the messages that were not moved.")
