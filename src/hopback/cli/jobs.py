"""`hopback jobs`: re-drives and discards that run, here or in another process, or have ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from hopback.cli.dlq_print import form_option, output, print_job, print_jobs
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.job_progress import exit_code, follow, see_through, signals_heard
from hopback.cli.terminal import ask_for_reason, safe, table
from hopback.cli.where import (
    complete_job,
    complete_queue,
    resume_command,
    where_options,
    with_dead_letters,
)
from hopback.deadletters.contract import JobState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.cli.where import Where
    from hopback.deadletters.contract import FailedMessage, Job
    from hopback.deadletters.interface import DeadLetters

__all__ = [
    "came_back",
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

_job_argument = click.argument("job", metavar="JOB", shell_complete=complete_job)


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
@where_options
@form_option
def ls(queue: str, active: bool, limit: int, form: str, where: Where) -> None:
    """List jobs, the newest first; of all brokers unless one is named."""
    found = with_dead_letters(
        where, lambda dead_letters: dead_letters.jobs(queue=queue, active=active, limit=limit)
    )
    output(form, found, lambda: print_jobs(found, time.time()))


@jobs.command(short_help="Show a job.")
@_job_argument
@where_options
@form_option
def show(job: str, form: str, where: Where) -> None:
    """Show what JOB does, for whom and why, and how far it is."""
    found = with_dead_letters(where, lambda dead_letters: dead_letters.job(job))
    output(form, found, lambda: print_job(found))


@jobs.command(short_help="Follow a job until it ends.")
@_job_argument
@where_options
@form_option
def watch(job: str, form: str, where: Where) -> int:
    """Follow JOB until it runs no more; leaves with the code that says how it ended.

    Ctrl-C ends the watching, not the job.
    """
    return with_dead_letters(where, lambda dead_letters: watch_job(dead_letters, job, form))


async def watch_job(dead_letters: DeadLetters, job: str, form: str) -> int:
    """Follow a job that runs somewhere."""
    with signals_heard() as signals:
        last = await follow(dead_letters, await dead_letters.job(job), signals, form)
        if signals.heard:
            return Exit.INTERRUPTED
        code = await exit_code(dead_letters, last)
    output(form, last, lambda: print_job(last))
    return code


@jobs.command(short_help="Let a job finish what is in flight, then wait.")
@_job_argument
@where_options
@form_option
def pause(job: str, form: str, where: Where) -> None:
    """Let JOB finish what is in flight, then wait, in whatever process it runs."""
    found = with_dead_letters(where, lambda dead_letters: dead_letters.pause(job))
    output(form, found, lambda: _say(found, "is told to pause"))


@jobs.command(short_help="Let a paused, interrupted or failed job go on.")
@_job_argument
@where_options
@form_option
def resume(job: str, form: str, where: Where) -> int:
    """Let JOB go on: a paused one in the process where it runs, any other in this one."""
    again = resume_command(job)
    return with_dead_letters(where, lambda dead_letters: resume_job(dead_letters, job, form, again))


async def resume_job(dead_letters: DeadLetters, job: str, form: str, again: str) -> int:
    """Go on with a job; one that begins here is seen through."""
    before = await dead_letters.job(job)
    if before.state is JobState.RUNNING:
        raise CommandFailed(
            f"job {job} is running",
            do="Follow it with `hopback jobs watch`. If its process has died, try again in half a"
            " minute: then it counts as interrupted.",
            code=Exit.CONFLICT,
        )
    resumed = await dead_letters.resume(job)
    if before.is_active:
        output(form, resumed, lambda: _say(resumed, "is told to go on"))
        return Exit.OK
    return await see_through(dead_letters, resumed, form, again)


@jobs.command(short_help="Let a job finish what is in flight and give the rest back.")
@_job_argument
@where_options
@form_option
def cancel(job: str, form: str, where: Where) -> None:
    """Let JOB finish what is in flight and give the rest back, in whatever process it runs."""
    found = with_dead_letters(where, lambda dead_letters: dead_letters.cancel(job))
    output(form, found, lambda: _say(found, "is told to end"))


def _say(job: Job, request: str) -> None:
    """What becomes of the job: what it was asked for, or that it has ended already."""
    happens = request if job.is_active else f"is {job.state}"
    click.echo(safe(f"{job.id} ({job.kind} from {job.queue}) {happens}."))


@jobs.command(short_help="Let a job go faster or slower.")
@_job_argument
@click.argument("rate", metavar="(R | none)")
@where_options
@form_option
def rate(job: str, rate: str, form: str, where: Where) -> None:
    """Let JOB send at most R messages per second from now on, or as many as it can."""
    try:
        wanted = None if rate == "none" else float(rate)
    except ValueError:
        raise click.BadParameter(
            f"expected a number above 0 or none, got {rate!r}.", param_hint="RATE"
        ) from None
    found = with_dead_letters(where, lambda dead_letters: dead_letters.set_rate(job, wanted))
    output(form, found, lambda: _say(found, f"goes at {rate} messages per second"))


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
@where_options
@form_option
def failures(job: str, limit: int, after: int, form: str, where: Where) -> None:
    """List the messages that JOB could not move or left out, with the reasons.

    All of them are still in their queue.
    """
    found = with_dead_letters(
        where, lambda dead_letters: dead_letters.failures(job, cursor=after, limit=limit)
    )
    output(form, found, lambda: _print_failures(found))


def _print_failures(found: Sequence[FailedMessage]) -> None:
    if not found:
        click.echo("Nothing failed and nothing was left out.")
        return
    rows = [(one.id, one.message_id, one.reason) for one in found]
    table(("id", "message", "why"), rows, keep=("message",))


@jobs.command(name="came-back", short_help="Show what a re-drive had sent and what died again.")
@_job_argument
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    metavar="N",
    help="Show so many; all are counted.",
)
@click.option("--force", "forced", is_flag=True, help="Look even if that could lose messages.")
@where_options
@form_option
def came_back(job: str, limit: int, forced: bool, form: str, where: Where) -> int:
    """Show the messages that JOB had sent and that are dead again, with their new error.

    The whole queue is read, and all is given back in order; JOB keeps how many there are. Leaves with 5 if
    there are none.
    """
    from hopback.cli.dlq_search import search_messages
    from hopback.deadletters.search import SearchRequest

    request = SearchRequest(job=job, limit=limit, force=forced)
    found = with_dead_letters(
        where, lambda dead_letters: search_messages(dead_letters, request, form)
    )
    return Exit.OK if found else Exit.NOT_FOUND


@jobs.command(name="retry-failures", short_help="Begin a job for what another could not move.")
@_job_argument
@click.option("--reason", default="", metavar="TEXT", help="Why; it is kept in the audit.")
@where_options
@form_option
def retry_failures(job: str, reason: str, form: str, where: Where) -> int:
    """Begin a new job for exactly the messages that JOB could not move."""
    why = ask_for_reason(reason)

    async def retry(dead_letters: DeadLetters) -> int:
        begun = await dead_letters.retry_failures(job, reason=why)
        return await see_through(dead_letters, begun, form, resume_command(begun.id))

    return with_dead_letters(where, retry)
