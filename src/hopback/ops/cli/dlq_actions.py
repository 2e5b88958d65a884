"""The commands `hopback dlq redrive`, `discard`, `edit` and `restore-limit`.

To re-drive or discard messages, a command shows the plan, asks for confirmation, and follows the
job until it ends. While it waits for an answer, it is not connected and does not hold any messages.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import group_options, header_pairs
from hopback.cli.terminal import ask, ask_for_name, ask_for_reason, details, json_line, on_terminal
from hopback.errors import CountMismatch
from hopback.ops.cli.access import OpsAccess, access_options, resume_command, with_dead_letters
from hopback.ops.cli.dlq import (
    TO_BROWSE,
    explain_refusals,
    hold_for,
    lift_if_needed,
    lift_option,
    look_options,
    queue_argument,
    within_option,
)
from hopback.ops.cli.dlq_print import form_option, output, place_text, print_plan, show_progress
from hopback.ops.cli.job_follow import see_through
from hopback.ops.cli.job_options import field_option, job_options
from hopback.ops.contract.options import with_options
from hopback.ops.contract.requests import (
    BY_CALLER,
    DiscardRequest,
    Edit,
    EditRequest,
    JobKind,
    JobRequest,
    RedriveRequest,
    Submission,
    Target,
    TargetKind,
)
from hopback.ops.contract.values import EditedCopy, JobPlan, MessageView, Price
from hopback.text import count_of
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.ops.contract.interface import DeadLetters
    from hopback.ops.contract.requests import PatchOperation

_PLANNED = "to see the plan"
_MOST_EDITED_BYTES = 128 * 1024 * 1024  # bytes, the highest default limit of RabbitMQ for a message
_BY_NAME = tuple(kind for kind in TargetKind if kind not in (TargetKind.QUEUE, TargetKind.EXCHANGE))


def target_of(to: str, routing_key: str, reset: bool | None) -> Target:
    """Return the target for the value of `--to`."""
    kind, _, name = to.partition(":")
    if routing_key and kind != TargetKind.EXCHANGE:
        raise click.UsageError("--routing-key belongs to --to exchange:NAME.")
    if to in _BY_NAME:
        return Target(TargetKind(to), reset=reset)
    if kind == TargetKind.QUEUE and name:
        return Target(TargetKind.QUEUE, routing_key=name, reset=reset)
    if kind == TargetKind.EXCHANGE and name:
        return Target(TargetKind.EXCHANGE, name, routing_key, reset)
    raise click.BadParameter(
        f"expected {', '.join(_BY_NAME)}, queue:NAME or exchange:NAME, got {to!r}.",
        param_hint="--to",
    )


target_options = group_options(
    "target",
    target_of,
    click.option(
        "--to",
        default="design",
        metavar="TARGET",
        show_default=True,
        help="design, failed-queue, retry-exchange, origin-exchange, queue:NAME or exchange:NAME.",
    ),
    click.option(
        "--routing-key", default="", metavar="KEY", help="Routing key for --to exchange:NAME."
    ),
    click.option(
        "--reset/--keep-attempts",
        default=None,
        help="Restart attempts at 1, or keep them. Default: restart, unless the design keeps them.",
    ),
)
"""Add --to, --routing-key and --reset to a command, which receives them as `target`."""


@dataclass(frozen=True, slots=True)
class ActionChoices:
    """Options of a re-drive or a discard for output and confirmation."""

    yes: bool
    dry_run: bool
    detailed: bool
    lift: bool
    form: str = "table"
    submission: Submission = BY_CALLER


_action_options = group_options(
    "choices",
    ActionChoices,
    lift_option,
    click.option("--yes", is_flag=True, help="Skip the confirmation."),
    click.option("--dry-run", is_flag=True, help="Show the plan and stop."),
    click.option(
        "--detailed-exit-code",
        "detailed",
        is_flag=True,
        help="With --dry-run, exit with status 10 if messages are selected.",
    ),
)
"""Add the options for confirmation to a command, which receives them as `choices`."""


@click.command(short_help="Send messages back to the queue in which they failed.")
@queue_argument
@job_options(RedriveRequest, "change")
@_action_options
@target_options
@field_option(RedriveRequest, "change")
@access_options
@form_option
def redrive(
    queue: str,
    options: dict[str, Any],
    target: Target,
    change: Path | None,
    choices: ActionChoices,
    form: str,
    access: OpsAccess,
) -> int:
    """Send messages of QUEUE back, by default to the target of the design or to the failed queue.

    Shows the plan and asks for confirmation. Each message is published, mandatory and confirmed, before
    it is removed. The first Ctrl-C finishes the messages in flight and prints the command to resume, a
    second one exits.
    """
    patch: tuple[PatchOperation, ...] = ()
    if change is not None:
        from hopback.ops.contract.codec import read_patch

        try:
            patch = read_patch(change.read_bytes())
        except OSError as error:
            raise CommandFailed(
                f"{change} cannot be read: {error.strerror or error}",
                do="Name another file.",
                code=Exit.USAGE,
            ) from error
    # contract/options.py explains how request fields define command options.
    request = with_options(RedriveRequest, options, queue=queue, target=target, change=patch)
    return _act(request, access, replace(choices, form=form))


@click.command(short_help="Write messages to a file and remove them.")
@queue_argument
@job_options(DiscardRequest)
@_action_options
@click.option(
    "--export-to",
    default="",
    metavar="FILE",
    help="File for the messages (.zst compresses). Default: a file in the user's state folder.",
)
@access_options
@form_option
def discard(
    queue: str,
    options: dict[str, Any],
    export_to: str,
    choices: ActionChoices,
    form: str,
    access: OpsAccess,
) -> int:
    """Remove messages of QUEUE permanently. Each is first written to a file.

    Shows the plan and asks for the queue's name. `hopback dlq import` publishes the file again.
    """
    if export_to and not options["export"]:
        raise click.UsageError("--no-export and --export-to exclude each other.")
    if export_to and access.server is not None:
        raise CommandFailed(
            "--export-to names a file on this machine, but the server writes to its own",
            do="Remove it: the plan shows the server's file. Or use --broker URL instead of --server.",
            code=Exit.USAGE,
        )
    request = with_options(DiscardRequest, options, queue=queue, confirm=queue)
    choices = replace(choices, form=form, submission=Submission(export_to=export_to))
    return _act(request, access, choices)


def _act(request: JobRequest, access: OpsAccess, choices: ActionChoices) -> int:
    """Plan a job, show the plan, ask for confirmation, and run the job.

    The connection is closed before a question is asked. If there is no question, a single
    connection is used.
    """
    if choices.yes and request.reason.strip() and not choices.dry_run:
        return with_dead_letters(access, lambda found: plan_and_run(found, request, choices))
    plan = with_dead_letters(access, lambda found: plan_job(found, request, choices))
    if choices.dry_run:
        output(choices.form, plan, lambda: print_plan(plan, err=False))
        if plan.flaws:
            return Exit.NOT_ALLOWED
        return Exit.FOUND if choices.detailed and plan.matching else Exit.OK
    _show_plan(plan, choices)
    if not _has_work(plan, request, choices):
        return Exit.OK
    if not choices.yes:
        _confirm(plan)
    reason = ask_for_reason(request.reason)
    planned = structs.replace(request, reason=reason, selection=plan.selection)
    return with_dead_letters(access, lambda found: run_job(found, planned, choices, plan))


async def plan_and_run(
    dead_letters: DeadLetters, request: JobRequest, choices: ActionChoices
) -> int:
    """Plan a job, show the plan, and run the job. Returns the exit code."""
    plan = await plan_job(dead_letters, request, choices)
    _show_plan(plan, choices)
    if not _has_work(plan, request, choices):
        return Exit.OK
    planned = structs.replace(request, selection=plan.selection)
    return await run_job(dead_letters, planned, choices, plan)


async def plan_job(
    dead_letters: DeadLetters, request: JobRequest, choices: ActionChoices
) -> JobPlan:
    """Return the plan of a job. Raises CommandFailed if the queue has an active job."""
    if not choices.dry_run:
        # A queue can only have one active job. A plan would not include the messages it holds.
        active = await dead_letters.jobs(queue=request.queue, active=True)
        if active:
            job = active[0]
            raise CommandFailed(
                f"{job.queue} has an active job: {job.id}, a {job.kind} that is {job.state}",
                do=f"Follow it with `hopback jobs watch {job.id}`, or end it with `jobs cancel`.",
                code=Exit.CONFLICT,
            )
    reason = request.reason.strip() or _PLANNED
    if choices.lift and not choices.dry_run:
        await lift_if_needed(dead_letters, request.queue, reason, job=True)
    with show_progress() as tell:
        request = structs.replace(request, reason=reason)
        return await dead_letters.plan(request, choices.submission, on_progress=tell)


def _show_plan(plan: JobPlan, choices: ActionChoices) -> None:
    """Print the plan to stderr. It is formatted for terminals and tables, and is otherwise a line
    of JSON.
    """
    if choices.form == "table" or on_terminal(err=True):
        print_plan(plan, err=True)
        return
    from hopback.ops.contract.codec import to_json

    # Logs contain counts instead of samples.
    counts = {
        "reasons": {group.key: group.count for group in plan.reasons},
        "errors": {group.key: group.count for group in plan.errors},
    }
    record = {"event": "plan", **to_json(plan), **counts, "cost": plan.cost.text}
    click.echo(json_line(record), err=True)


def _has_work(plan: JobPlan, request: JobRequest, choices: ActionChoices) -> bool:
    """Return whether the job would process any message.

    Raises CommandFailed if the plan has flaws, and CountMismatch if messages were expected and none
    are selected.
    """
    if plan.flaws:
        raise CommandFailed(
            f"no message was touched: {'; '.join(plan.flaws)}",
            do="Repair the cause, lift a delivery limit with --lift-limit, choose another --to, or"
            " accept the risk with --force.",
            code=Exit.NOT_ALLOWED,
        )
    has_work = bool(plan.selected) and (plan.seen != plan.selected or bool(plan.matching))
    if not has_work and request.expected_count:
        raise CountMismatch(request.expected_count, 0)
    if not has_work:
        output(choices.form, plan, lambda: click.echo("No messages selected."))
    return has_work


def _confirm(plan: JobPlan) -> None:
    about = "about " if plan.selection.estimate else ""
    some = f"{about}{count_of(plan.selection.count or 0)}"
    if plan.kind is JobKind.DISCARD:
        ask_for_name(f"Type the queue's name to discard {some}", plan.queue)
    else:
        ask(f"Re-drive {some}?", changes="this moves messages")


async def run_job(
    dead_letters: DeadLetters,
    request: JobRequest,
    choices: ActionChoices,
    plan: JobPlan | None = None,
) -> int:
    """Start a job and follow it until it ends. Returns the exit code."""
    if not dead_letters.keeps_jobs:
        click.echo("Warning: jobs are kept in memory. Use --store to resume them.", err=True)
    is_refused = plan is not None and plan.cost.price is Price.REFUSED
    with explain_refusals(request.queue) if is_refused else nullcontext():
        with show_progress() as tell:
            job = await dead_letters.start(request, choices.submission, on_progress=tell)
        return await see_through(dead_letters, job, choices.form, resume_command(job.id))


@click.command(short_help="Send a changed copy of one message.")
@queue_argument
@click.argument("message", metavar="ID")
@within_option
@click.option(
    "--body",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    metavar="FILE",
    help="File with the new payload. `-` is stdin.",
)
@click.option("--content-type", metavar="TYPE", help="New content type.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=TEXT",
    help="Header to set. Repeatable. Headers of Hopback and the broker cannot be changed.",
)
@click.option("--without", multiple=True, metavar="NAME", help="Header to remove. Repeatable.")
@target_options
@field_option(RedriveRequest, "reason")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@click.option("--dry-run", is_flag=True, help="Show the copy and stop.")
@look_options
@access_options
@form_option
def edit(
    queue: str,
    message: str,
    within: int,
    body: Path | None,
    content_type: str | None,
    headers: tuple[str, ...],
    without: tuple[str, ...],
    target: Target,
    reason: str,
    yes: bool,
    dry_run: bool,
    lift: bool,
    force: bool,
    form: str,
    access: OpsAccess,
) -> int:
    """Send a copy of one message of QUEUE with another payload or other headers.

    ID is the id from `peek`, a position in the queue, or a message id. Shows the changes and asks for
    confirmation. The copy has a new message id, and a header with the original's. The original stays in
    QUEUE until it is discarded.
    """
    change = Edit(
        None if body is None else _payload(body),
        content_type,
        header_pairs(headers),
        frozenset(without),
    )
    if change == Edit():
        raise click.UsageError("Expected --body, --content-type, --header or --without.")
    held = {"lift": lift, "force": force, "reason": reason or TO_BROWSE}

    async def find(dead_letters: DeadLetters) -> MessageView:
        with explain_refusals(queue):
            async with hold_for(dead_letters, queue, message, within, **held) as (session, found):
                return await dead_letters.message(session, found.id)

    async def send(dead_letters: DeadLetters) -> EditedCopy:
        # Find the message by its hash, because its position may have changed.
        digest = shown.dead_letter.digest
        async with hold_for(dead_letters, queue, digest, within, **held) as (session, found):
            request = EditRequest(edit=change, target=target, reason=why)
            return EditedCopy(await dead_letters.edit_and_redrive(session, found.id, request))

    shown = with_dead_letters(access, find)
    if dry_run:
        output(form, shown, lambda: details(_edit_lines(shown, change, target)))
        return Exit.OK
    if form == "table" or on_terminal(err=True):
        details(_edit_lines(shown, change, target), err=True)
    if not yes:
        ask("Send the changed copy?", changes="this publishes a message")
    why = ask_for_reason(reason)
    sent = with_dead_letters(access, send)
    output(
        form, sent, lambda: click.echo(safe(f"Sent a changed copy as message {sent.message_id}."))
    )
    return Exit.OK


def _payload(path: Path) -> bytes:
    try:
        if str(path) == "-":
            body = sys.stdin.buffer.read(_MOST_EDITED_BYTES + 1)
        else:
            with path.open("rb") as file:
                body = file.read(_MOST_EDITED_BYTES + 1)
    except OSError as error:
        raise CommandFailed(
            f"{path} cannot be read: {error.strerror or error}",
            do="Name the file of the new payload with --body.",
            code=Exit.NOT_FOUND if isinstance(error, FileNotFoundError) else Exit.FAILED,
        ) from error
    if len(body) > _MOST_EDITED_BYTES:
        raise CommandFailed(
            f"expected a payload of at most {_MOST_EDITED_BYTES:,} bytes, got more in {path}",
            do="Name the file of the new payload with --body.",
            code=Exit.USAGE,
        )
    return body


def _edit_lines(message: MessageView, change: Edit, target: Target) -> Iterator[tuple[str, str]]:
    dead_letter = message.dead_letter
    yield "edit", f"a copy of {dead_letter.id} from {dead_letter.queue}, the original stays"
    if change.body is not None:
        yield "payload", f"{message.payload_bytes:,} -> {len(change.body):,} bytes"
    if change.content_type is not None:
        yield "type", change.content_type
    for name, value in change.headers.items():
        yield "set", f"{name}: {value}"
    for name in sorted(change.without):
        yield "without", name
    way = message.way
    if target.kind is TargetKind.DESIGN and way is not None:
        yield "to", place_text(way.exchange, way.routing_key)
    else:
        yield "to", str(target)


@click.command(name="restore-limit", short_help="Restore a lifted delivery limit.")
@queue_argument
@field_option(RedriveRequest, "reason")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@access_options
def restore_limit(queue: str, reason: str, yes: bool, access: OpsAccess) -> None:
    """Delete the policy with which --lift-limit lifted the delivery limit of QUEUE.

    The previous limit applies again. Refused while it would remove messages of the queue.
    """
    if not yes:
        ask(f"Restore the previous delivery limit of {queue}?")
    with_dead_letters(access, lambda dead_letters: dead_letters.restore_limit(queue, reason=reason))
    click.echo(safe(f"Restored the previous delivery limit of {queue}."), err=True)
