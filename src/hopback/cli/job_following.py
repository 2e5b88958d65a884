"""Following a job to its end; the first Ctrl-C lets it finish what is in flight, a second one leaves."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from hopback.cli.dlq_printing import count_of, tell
from hopback.cli.exits import Exit
from hopback.cli.printing import safe, safe_lines
from hopback.cli.progress import progress_to_stderr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.cli.desk import Desk
    from hopback.cli.documents import Document

__all__ = ["Signals", "ending", "follow", "see_through", "signals_heard"]

_DONE = {"re-drive": "re-driven", "discard": "discarded"}


class Signals:
    """Hears SIGINT and SIGTERM: the first is an event, the second cancels, the third ends."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.heard = 0
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


async def see_through(desk: Desk, job: Document, form: str, resume: str) -> int:
    """Follow a job that was begun from here, print how it ended and return the exit code.

    `resume` is the command that goes on with it if it is interrupted.
    """
    with signals_heard() as signals:
        last = await follow(desk, job, signals)
        if signals.heard and last["state"] in ("running", "paused"):
            last = await _interrupted(desk, last)
        code = await ending(desk, last)
    if signals.heard and last["state"] in ("running", "paused", "interrupted"):
        tell(form, last, lambda: None)
        _tell_how_to_go_on(desk, last, resume)
        return Exit.INTERRUPTED
    tell(form, last, lambda: _print_end(last, noted=code is not Exit.OK))
    if last["canResume"] and desk.keeps_jobs and code is not Exit.OK:
        click.echo(safe_lines(f"Go on with:\n  {resume}"), err=True)
    return code


async def follow(desk: Desk, job: Document, signals: Signals | None = None) -> Document:
    """Tell the progress until the job runs no more, or a signal comes; the job as it then is."""
    progress = progress_to_stderr(asyncio.get_running_loop().time)
    last = job

    async def watch() -> None:
        nonlocal last
        async for last in desk.events(job["id"]):
            progress.show(last)

    watching = asyncio.ensure_future(watch())
    stopped = asyncio.ensure_future(signals.first.wait()) if signals is not None else None
    try:
        waits = {watching} if stopped is None else {watching, stopped}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
    finally:
        progress.finish()
        for one in filter(None, (watching, stopped)):
            one.cancel()
        await asyncio.gather(*filter(None, (watching, stopped)), return_exceptions=True)
    return last


async def _interrupted(desk: Desk, job: Document) -> Document:
    """Let the job come to rest, if it ends with this process."""
    if not desk.runs_jobs_here:
        return job
    click.echo("Finishing what is in flight; Ctrl-C again leaves at once.", err=True)
    return await desk.interrupt(job["id"])


def _tell_how_to_go_on(desk: Desk, job: Document, resume: str) -> None:
    counts = job["counts"]
    if not desk.runs_jobs_here:
        text = (
            f"Job {job['id']} goes on at the server; `hopback jobs watch {job['id']}` follows it."
        )
    else:
        again = f"Go on with:\n  {resume}" if desk.keeps_jobs else "Begin again for the rest."
        text = (
            f"Interrupted: {counts['done']:,} of {count_of(counts['selected'])} are"
            f" {_DONE[job['kind']]}, the rest is in {job['queue']}. {again}"
        )
    click.echo(safe_lines(text), err=True)


async def ending(desk: Desk, job: Document) -> Exit:
    """The exit code that says how a job ended."""
    counts = job["counts"]
    match job["state"]:
        case "completed":
            # What a filter leaves out is meant to stay; what is noted is not.
            left = counts["failed"] or (counts["skipped"] and await desk.failures(job["id"], 0, 1))
            return Exit.PARTIAL if left else Exit.OK
        case "cancelled":
            return Exit.CANCELLED
        case "failed":
            return Exit.PARTIAL if counts["done"] else Exit.FAILED
        case "interrupted":
            return Exit.UNREACHABLE
    return Exit.OK


def _print_end(job: Document, *, noted: bool) -> None:
    counts = job["counts"]
    first = f"{job['state'].capitalize()}: {count_of(counts['done'])} {_DONE[job['kind']]}"
    more = [
        f"{counts[key]:,} {words}"
        for key, words in (
            ("skipped", "left out"),
            ("failed", "failed"),
            ("remaining", "not touched"),
            ("arrivedMeanwhile", "arrived meanwhile"),
            ("cameBack", "came back"),
        )
        if counts[key]
    ]
    click.echo(safe(", ".join([first, *more]) + "."))
    if job["stateReason"] and job["state"] in ("failed", "interrupted"):
        click.echo(safe(f"Because: {job['stateReason']}"))
    if job["exportTo"] and counts["done"]:
        click.echo(safe(f"Written to {job['exportTo']}"))
    if noted and (counts["failed"] or counts["skipped"]):
        click.echo(f"`hopback jobs failures {job['id']}` lists what was not moved.")
