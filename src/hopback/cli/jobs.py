"""`hopback jobs`: re-drives and discards that run, here or in another process, or have ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from hopback.cli.dlq_print import form_option, print_job, print_jobs, tell
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.job_progress import ending, follow, see_through, signals_heard
from hopback.cli.terminal import ask_for_reason, safe, table
from hopback.cli.where import (
    Place,
    at_desk,
    complete_job,
    complete_queue,
    desk_options,
    resume_command,
)

if TYPE_CHECKING:
    from hopback.cli.desk import Desk
    from hopback.cli.documents import Document

__all__ = [
    "cancel",
    "failures",
    "jobs",
    "ls",
    "pause",
    "rate",
    "resume",
    "resume_job",
    "retry_failures",
    "show",
    "watch",
    "watch_job",
]

_ACTIVE = ("running", "paused")
_job_argument = click.argument("ident", metavar="JOB", shell_complete=complete_job)


@click.group(short_help="Re-drives and discards: follow, pause, cancel, resume them.")
def jobs() -> None:
    """Re-drives and discards: those that run, here or in another process, and those that ended.

    They are kept in the store (--store), where every process that names the same one finds them.
    """


@jobs.command(short_help="List jobs, the newest first.")
@click.option(
    "--queue", default="", metavar="Q", help="Only of this queue.", shell_complete=complete_queue
)
@click.option("--active", is_flag=True, help="Only those that run or are paused.")
@click.option(
    "--limit",
    type=click.IntRange(1, 500),
    default=20,
    show_default=True,
    metavar="N",
    help="At most so many.",
)
@desk_options
@form_option
def ls(queue: str, active: bool, limit: int, form: str, **place: Any) -> None:
    """List jobs, the newest first; of all brokers unless one is named."""
    found = at_desk(Place(**place), lambda desk: desk.jobs(queue, active, limit))
    tell(form, found, lambda: print_jobs(found, time.time()))


@jobs.command(short_help="Show a job.")
@_job_argument
@desk_options
@form_option
def show(ident: str, form: str, **place: Any) -> None:
    """Show what JOB does, for whom and why, and how far it is."""
    found = at_desk(Place(**place), lambda desk: desk.job(ident))
    tell(form, found, lambda: print_job(found))


@jobs.command(short_help="Follow a job until it ends.")
@_job_argument
@desk_options
@form_option
def watch(ident: str, form: str, **place: Any) -> int:
    """Follow JOB until it runs no more; leaves with the code that says how it ended.

    Ctrl-C ends the watching, not the job.
    """
    return at_desk(Place(**place), lambda desk: watch_job(desk, ident, form))


async def watch_job(desk: Desk, ident: str, form: str) -> int:
    """Follow a job that runs somewhere."""
    with signals_heard() as signals:
        last = await follow(desk, await desk.job(ident), signals)
        if signals.heard:
            return Exit.INTERRUPTED
        code = await ending(desk, last)
    tell(form, last, lambda: print_job(last))
    return code


@jobs.command(short_help="Let a job finish what is in flight, then wait.")
@_job_argument
@desk_options
@form_option
def pause(ident: str, form: str, **place: Any) -> None:
    """Let JOB finish what is in flight, then wait, in whatever process it runs."""
    found = at_desk(Place(**place), lambda desk: desk.pause(ident))
    tell(form, found, lambda: _say(found, "is told to pause"))


@jobs.command(short_help="Let a paused, interrupted or failed job go on.")
@_job_argument
@desk_options
@form_option
def resume(ident: str, form: str, **place: Any) -> int:
    """Let JOB go on: a paused one in the process where it runs, any other in this one."""
    again = resume_command(ident)
    return at_desk(Place(**place), lambda desk: resume_job(desk, ident, form, again))


async def resume_job(desk: Desk, ident: str, form: str, again: str) -> int:
    """Go on with a job; one that begins here is seen through."""
    state = (await desk.job(ident))["state"]
    if state == "running":
        raise CommandFailed(
            f"job {ident} is running",
            do="Follow it with `hopback jobs watch`. If its process has died, try again in half a"
            " minute: then it counts as interrupted.",
            code=Exit.CONFLICT,
        )
    was_active = state in _ACTIVE
    job = await desk.resume(ident)
    if was_active:
        tell(form, job, lambda: _say(job, "is told to go on"))
        return Exit.OK
    return await see_through(desk, job, form, again)


@jobs.command(short_help="Let a job finish what is in flight and give the rest back.")
@_job_argument
@desk_options
@form_option
def cancel(ident: str, form: str, **place: Any) -> None:
    """Let JOB finish what is in flight and give the rest back, in whatever process it runs."""
    found = at_desk(Place(**place), lambda desk: desk.cancel(ident))
    tell(form, found, lambda: _say(found, "is told to end"))


def _say(job: Document, wish: str) -> None:
    state = f"is {job['state']}" if job["state"] not in _ACTIVE else wish
    click.echo(safe(f"{job['id']} ({job['kind']} from {job['queue']}) {state}."))


@jobs.command(short_help="Let a job go faster or slower.")
@_job_argument
@click.argument("rate", metavar="(R | none)")
@desk_options
@form_option
def rate(ident: str, rate: str, form: str, **place: Any) -> None:
    """Let JOB send at most R messages per second from now on, or as many as it can."""
    found = at_desk(Place(**place), lambda desk: desk.set_rate(ident, _rate(rate)))
    tell(form, found, lambda: _say(found, f"goes at {rate} messages per second"))


def _rate(text: str) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(
            f"expected a number above 0 or none, got {text!r}.", param_hint="RATE"
        ) from None


@jobs.command(short_help="List what a job could not move or left out.")
@_job_argument
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    metavar="N",
    help="At most so many.",
)
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="N", help="Begin after N.")
@desk_options
@form_option
def failures(ident: str, limit: int, after: int, form: str, **place: Any) -> None:
    """List the messages that JOB could not move or left out, with the reasons.

    All of them are still in their queue.
    """
    found = at_desk(Place(**place), lambda desk: desk.failures(ident, after, limit))
    tell(form, found, lambda: _print_failures(found))


def _print_failures(found: list[Document]) -> None:
    if not found:
        click.echo("Nothing failed and nothing was left out.")
        return
    table(("id", "message", "why"), [(one["id"], one["messageId"], one["reason"]) for one in found])


@jobs.command(name="retry-failures", short_help="Begin a job for what another could not move.")
@_job_argument
@click.option("--reason", default="", metavar="TEXT", help="Why; it is kept in the audit.")
@desk_options
@form_option
def retry_failures(ident: str, reason: str, form: str, **place: Any) -> int:
    """Begin a new job for exactly the messages that JOB could not move."""
    why = ask_for_reason(reason)
    return at_desk(Place(**place), lambda desk: _retry(desk, ident, why, form))


async def _retry(desk: Desk, ident: str, reason: str, form: str) -> int:
    job = await desk.retry_failures(ident, reason)
    return await see_through(desk, job, form, resume_command(job["id"]))
