"""The commands of `hopback jobs`, which list and control re-drives and discards of all processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import WholeNumber, limit_option
from hopback.cli.terminal import ask_for_reason, table
from hopback.ops.cli.access import (
    OpsAccess,
    access_options,
    complete_job,
    complete_queue,
    dead_letter_command,
    resume_command,
    with_dead_letters,
)
from hopback.ops.cli.dlq_print import form_option, output, print_job, print_jobs
from hopback.ops.cli.job_follow import exit_code, follow, handle_signals, see_through
from hopback.ops.contract.values import FailedMessage, Job, JobState
from hopback.text import count_of
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.ops.contract.interface import DeadLetters

_job_argument = click.argument("job", metavar="JOB", shell_complete=complete_job)


@click.group(short_help="List and control re-drives and discards.")
def jobs() -> None:
    """List and control re-drives and discards.

    Jobs are kept in the store (--store), which several processes can share.
    """


@jobs.command(short_help="List jobs, newest first.")
@click.option(
    "--queue",
    default="",
    metavar="Q",
    help="Only jobs of this queue.",
    shell_complete=complete_queue,
)
@click.option("--active", is_flag=True, help="Only running and paused jobs.")
@limit_option("Maximum number of entries.", 20, 500)
@dead_letter_command
@form_option
async def ls(dead_letters: DeadLetters, queue: str, active: bool, limit: int, form: str) -> None:
    """List jobs of one or all brokers, newest first."""
    found = await dead_letters.jobs(queue=queue, active=active, limit=limit)
    output(form, found, lambda: print_jobs(found, time.time()))


@jobs.command(short_help="Show a job.")
@_job_argument
@dead_letter_command
@form_option
async def show(dead_letters: DeadLetters, job: str, form: str) -> None:
    """Show the owner, reason, state and counts of JOB."""
    found = await dead_letters.job(job)
    output(form, found, lambda: print_job(found))


@jobs.command(short_help="Follow a job until it ends.")
@_job_argument
@dead_letter_command
@form_option
async def watch(dead_letters: DeadLetters, job: str, form: str) -> int:
    """Follow JOB until it ends, and exit with its status.

    Ctrl-C ends the watching, not the job.
    """
    with handle_signals() as signals:
        last = await follow(dead_letters, await dead_letters.job(job), signals, form)
        if signals.heard:
            return Exit.INTERRUPTED
        code = await exit_code(dead_letters, last)
    output(form, last, lambda: print_job(last))
    return code


@jobs.command(short_help="Pause a job after the messages in flight.")
@_job_argument
@dead_letter_command
@form_option
async def pause(dead_letters: DeadLetters, job: str, form: str) -> None:
    """Pause JOB after the messages in flight, in whichever process it runs."""
    found = await dead_letters.pause(job)
    output(form, found, lambda: _print_effect(found, "will pause"))


@jobs.command(short_help="Resume a paused, interrupted, failed or stopped job.")
@_job_argument
@dead_letter_command
@form_option
async def resume(dead_letters: DeadLetters, job: str, form: str) -> int:
    """Resume JOB. A paused job resumes in its process, any other in this one."""
    before = await dead_letters.job(job)
    if before.state is JobState.RUNNING:
        raise CommandFailed(
            f"job {job} is running",
            do="Follow it with `hopback jobs watch`. If its process has died, try again in 30 s.",
            code=Exit.CONFLICT,
        )
    resumed = await dead_letters.resume(job)
    if before.is_active:
        output(form, resumed, lambda: _print_effect(resumed, "will resume"))
        return Exit.OK
    return await see_through(dead_letters, resumed, form, resume_command(job))


@jobs.command(short_help="Cancel a job after the messages in flight.")
@_job_argument
@dead_letter_command
@form_option
async def cancel(dead_letters: DeadLetters, job: str, form: str) -> None:
    """Cancel JOB after the messages in flight, in whichever process it runs. The others are requeued."""
    found = await dead_letters.cancel(job)
    output(form, found, lambda: _print_effect(found, "will end"))


def _print_effect(job: Job, request: str) -> None:
    """Print the effect of a request. If the job has already ended, print its state."""
    happens = request if job.is_active else f"is {job.state}"
    click.echo(safe(f"{job.id} ({job.kind} from {job.queue}) {happens}."))


def _read_rate(text: str) -> float | None:
    return None if text == "none" else float(text)


def _check_rate(_ctx: click.Context, _param: click.Parameter, text: str) -> str:
    try:
        _read_rate(text)
    except ValueError:
        raise click.BadParameter(
            f"expected a number above 0 or none, got {text!r}.", param_hint="RATE"
        ) from None
    return text


@jobs.command(short_help="Change the rate of a job.")
@_job_argument
@click.argument("rate", metavar="(R | none)", callback=_check_rate)
@dead_letter_command
@form_option
async def rate(dead_letters: DeadLetters, job: str, rate: str, form: str) -> None:
    """Limit JOB to R messages per second, or remove the limit with `none`."""
    found = await dead_letters.set_rate(job, _read_rate(rate))
    limit = "has no rate limit" if rate == "none" else f"is limited to {rate} messages per second"
    output(form, found, lambda: _print_effect(found, limit))


@jobs.command(short_help="List messages that a job could not move or skipped.")
@_job_argument
@limit_option("Maximum number of entries.", 100, 1000)
@click.option(
    "--after", type=WholeNumber(min=0), default=0, metavar="N", help="Skip the first N entries."
)
@dead_letter_command
@form_option
async def failures(dead_letters: DeadLetters, job: str, limit: int, after: int, form: str) -> None:
    """List the messages that JOB could not move or skipped, with the reasons.

    All of them are still in the queue.
    """
    known = await dead_letters.job(job)
    found = await dead_letters.failures(job, cursor=after, limit=limit)
    output(form, found, lambda: print_failures(known, found, after))


def print_failures(job: Job, found: Sequence[FailedMessage], after: int = 0) -> None:
    """Print the messages that a job could not move. Those that do not match the filter are only counted."""
    if found:
        rows = [(one.id, one.message_id, one.reason) for one in found]
        table(("id", "message", "reason"), rows, keep=("message",))
    elif after:
        click.echo("No more failures.")
    elif job.counts.skipped:
        wanted = f" the filter {job.selection.filter}" if job.selection.filter else ""
        click.echo(safe(f"No failures. {count_of(job.counts.skipped)} did not match{wanted}."))
    else:
        click.echo("No failures.")


@jobs.command(name="came-back", short_help="Show re-driven messages that were dead-lettered again.")
@_job_argument
@limit_option("Maximum number of messages to show. All are counted.", 100, 10_000)
@click.option("--force", is_flag=True, help="Browse even if messages could be lost.")
@dead_letter_command
@form_option
async def came_back(dead_letters: DeadLetters, job: str, limit: int, force: bool, form: str) -> int:
    """Show the messages sent by JOB that were dead-lettered again, with their new error.

    Reads the whole queue, requeues all messages in order, and records the number with JOB. Exits with
    status 5 if there are none.
    """
    from hopback.ops.cli.dlq import print_search
    from hopback.ops.contract.search import SearchRequest

    request = SearchRequest(job=job, limit=limit, force=force)
    return await print_search(dead_letters, request, form)


@jobs.command(
    name="retry-failures", short_help="Start a job for the messages that another could not move."
)
@_job_argument
@click.option("--reason", default="", metavar="TEXT", help="Reason for the audit.")
@access_options
@form_option
def retry_failures(job: str, reason: str, form: str, access: OpsAccess) -> int:
    """Start a new job for exactly the messages that JOB could not move."""
    why = ask_for_reason(reason)

    async def retry(dead_letters: DeadLetters) -> int:
        begun = await dead_letters.retry_failures(job, reason=why)
        return await see_through(dead_letters, begun, form, resume_command(begun.id))

    return with_dead_letters(access, retry)
