"""`hopback dlq redrive` and `discard`: the plan, a question, then a job that is followed to its end."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import structs

from hopback.cli.dlq import filter_option, look_options, queue_argument, refusing
from hopback.cli.dlq_print import count_of, form_option, print_plan, tell
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.job_progress import see_through
from hopback.cli.terminal import ask, ask_for_name, ask_for_reason, json_line, on_terminal
from hopback.cli.where import Place, at_desk, desk_options, resume_command
from hopback.deadletters.requests import HIGHEST_RATE, MOST_IN_FLIGHT, UNHURRIED

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.cli.desk import Desk
    from hopback.cli.documents import Document
    from hopback.deadletters.requests import Request, Target

__all__ = ["Choices", "Ramp", "carry_out", "discard", "redrive", "target_of"]

_Command = TypeVar("_Command", bound="Callable[..., object]")
_PLANNED = "to see the plan"


_PLAIN = ("design", "failed-queue", "retry-exchange", "origin-exchange")


class Ramp(click.ParamType[tuple[int, ...]]):
    """Stages of a ramp: `1,5,25`."""

    name = "stages"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The sizes of the stages."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isdecimal() and part.isascii() and int(part) > 0 for part in parts):
            self.fail(f"expected numbers of messages, as in 1,5,25, got {value!r}", param, ctx)
        return tuple(map(int, parts))


def target_of(text: str, routing_key: str, reset: bool | None) -> Target:
    """The target that `--to` names; a usage error says what there is."""
    from hopback.deadletters.requests import Target, TargetKind

    kind, _, name = text.partition(":")
    if routing_key and kind != "exchange":
        raise click.UsageError("--routing-key belongs to --to exchange:NAME.")
    if text in _PLAIN:
        return Target(TargetKind(text), reset=reset)
    if kind == "queue" and name:
        return Target(TargetKind.QUEUE, routing_key=name, reset=reset)
    if kind == "exchange" and name:
        return Target(TargetKind.EXCHANGE, name, routing_key, reset)
    raise click.BadParameter(
        f"expected {', '.join(_PLAIN)}, queue:NAME or exchange:NAME, got {text!r}.",
        param_hint="--to",
    )


@dataclass(frozen=True, slots=True)
class Choices:
    """How the user wants to be asked and told."""

    form: str
    yes: bool
    dry_run: bool
    detailed: bool
    lift: bool


def _act_options(command: _Command) -> _Command:
    """What both acts understand."""
    for option in (
        click.option("--detailed-exit-code", "detailed", is_flag=True, help=_DETAILED),
        click.option("--dry-run", is_flag=True, help="Show the plan and stop."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        look_options,
        click.option("--reason", default="", metavar="TEXT", help="Why; it is kept in the audit."),
        click.option(
            "--expect-count",
            type=click.IntRange(min=0),
            metavar="N",
            help="Do nothing unless exactly N messages are selected.",
        ),
        click.option(
            "--rate",
            type=click.FloatRange(min=0, min_open=True, max=HIGHEST_RATE),
            metavar="R",
            help="At most R messages per second.",
        ),
        click.option(
            "--limit",
            type=click.IntRange(min=1),
            metavar="N",
            help="Only the first N messages of the queue; by default all that are there now.",
        ),
        filter_option,
    ):
        command = option(command)
    return command


_DETAILED = "With --dry-run: leave with 10 if there is something to do."


@click.command(short_help="Send messages back to where they failed, safely.")
@queue_argument
@_act_options
@click.option(
    "--to",
    "target",
    default="design",
    metavar="TARGET",
    show_default=True,
    help="design, failed-queue, retry-exchange, origin-exchange, queue:NAME or exchange:NAME.",
)
@click.option("--routing-key", default="", metavar="KEY", help="The key for --to exchange:NAME.")
@click.option(
    "--reset/--keep-attempts",
    default=None,
    help="Whether attempts begin anew; by default as the design says.",
)
@click.option(
    "--in-flight",
    type=click.IntRange(1, MOST_IN_FLIGHT),
    default=UNHURRIED.in_flight,
    show_default=True,
    metavar="N",
    help="At most N messages sent and not yet confirmed.",
)
@click.option(
    "--ramp",
    type=Ramp(),
    is_flag=False,
    flag_value="1,5,25",
    default=None,
    metavar="[1,5,25]",
    help="Begin with a few messages, and stop by itself if they come back.",
)
@click.option(
    "--watch",
    "watch_s",
    type=click.FloatRange(min=0),
    metavar="S",
    help="Seconds to wait after each step of the ramp; by default as long as a retry takes.",
)
@click.option(
    "--max-redrives",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    metavar="N",
    help="Leave out what was re-driven N times before; 0 leaves out nothing.",
)
@desk_options
@form_option
def redrive(
    queue: str,
    where: str,
    limit: int | None,
    target: str,
    routing_key: str,
    reset: bool | None,
    rate: float | None,
    in_flight: int,
    ramp: tuple[int, ...] | None,
    watch_s: float | None,
    max_redrives: int,
    expect_count: int | None,
    reason: str,
    forced: bool,
    **rest: Any,
) -> int:
    """Send the messages of QUEUE back, by default to where its design says: the queue that failed.

    Shows the plan and asks. Each message is published, mandatory and confirmed, before it leaves the
    queue. The first Ctrl-C finishes what is in flight and prints how to go on; a second one leaves.
    """
    from hopback.deadletters.requests import FromHead, Pace, RedriveRequest

    request = RedriveRequest(
        queue=queue,
        selection=FromHead(limit, where),
        reason=reason,
        target=target_of(target, routing_key, reset),
        pace=Pace(rate, in_flight, ramp or (), watch_s),
        max_redrives=max_redrives or None,
        expected_count=expect_count,
        forced=forced,
    )
    return _act(request, Place.taken_from(rest), Choices(**rest))


@click.command(short_help="Remove messages for good, after writing them to a file.")
@queue_argument
@_act_options
@click.option(
    "--export-to",
    default="",
    metavar="FILE",
    help="Write the messages here first (.zst compresses); by default a file of the user's own.",
)
@click.option("--no-export", is_flag=True, help="Write them nowhere: they are gone for good.")
@desk_options
@form_option
def discard(
    queue: str,
    where: str,
    limit: int | None,
    rate: float | None,
    expect_count: int | None,
    reason: str,
    forced: bool,
    export_to: str,
    no_export: bool,
    **rest: Any,
) -> int:
    """Remove messages of QUEUE for good. Each is written to a file before it goes.

    Shows the plan and asks for the queue's name. `hopback dlq import` publishes the file again.
    """
    from hopback.deadletters.requests import DiscardRequest, FromHead, Pace

    if no_export and export_to:
        raise click.UsageError("--no-export and --export-to exclude each other.")
    request = DiscardRequest(
        queue=queue,
        selection=FromHead(limit, where),
        reason=reason,
        confirm=queue,
        export=not no_export,
        export_to=export_to,
        pace=Pace(rate),
        expected_count=expect_count,
        forced=forced,
    )
    return _act(request, Place.taken_from(rest), Choices(**rest))


def _act(request: Request, place: Place, choices: Choices) -> int:
    """Plan, ask, act. Questions are asked between two visits: nothing is held meanwhile."""
    plan = at_desk(place, lambda desk: _plan(desk, request, choices))
    if choices.dry_run:
        return _rehearsed(plan, choices)
    _show(plan, choices)
    _may_start(plan)
    if not plan["selected"] or (plan["seen"] == plan["selected"] and not plan["matching"]):
        tell(choices.form, plan, lambda: click.echo("Nothing to do."))
        return Exit.OK
    if not choices.yes:
        _ask(plan)
    decided = structs.replace(
        request,
        reason=ask_for_reason(request.reason),
        # What was shown is what is meant: messages that arrive meanwhile are not touched.
        selection=structs.replace(request.selection, limit=plan["selected"]),
    )
    if request.expected_count is None and not request.selection.filter:
        decided = structs.replace(decided, expected_count=plan["selected"])
    with refusing(request.queue) if plan["cost"]["price"] == "refused" else nullcontext():
        return at_desk(place, lambda desk: carry_out(desk, decided, choices.form, resume_command))


async def _plan(desk: Desk, request: Request, choices: Choices) -> Document:
    if not choices.dry_run:
        _must_be_free(await desk.queue(request.queue))
    if choices.lift and not choices.dry_run:
        await desk.lift(request.queue)
    return await desk.plan(structs.replace(request, reason=request.reason.strip() or _PLANNED))


def _must_be_free(queue: Document) -> None:
    """A queue has one job at a time; what that one holds would not even be seen by another."""
    job = queue["activeJob"]
    if job is not None:
        raise CommandFailed(
            f"{queue['queue']} has an active job: {job['id']}, a {job['kind']} that is {job['state']}",
            do=f"Follow it with `hopback jobs watch {job['id']}`, or end it with `jobs cancel`.",
            code=Exit.CONFLICT,
        )


def _rehearsed(plan: Document, choices: Choices) -> int:
    tell(choices.form, plan, lambda: print_plan(plan, err=False))
    if plan["flaws"]:
        return Exit.NOT_ALLOWED
    return Exit.FOUND if choices.detailed and plan["matching"] else Exit.OK


def _show(plan: Document, choices: Choices) -> None:
    """The plan on stderr: for people, or as a record where people do not look."""
    if choices.form == "table" or on_terminal(err=True):
        print_plan(plan, err=True)
    else:
        click.echo(json_line(_record(plan)), err=True)


def _record(plan: Document) -> Document:
    """The plan for a log: counts instead of samples."""
    counted = {
        name: {group["key"]: group["count"] for group in plan[name]}
        for name in ("reasons", "errors")
    }
    return {"event": "plan", **plan, **counted, "cost": plan["cost"]["text"]}


def _may_start(plan: Document) -> None:
    if plan["flaws"]:
        raise CommandFailed(
            f"nothing was touched: {'; '.join(plan['flaws'])}",
            do="Remove what is in the way, lift a delivery limit with --lift-limit, choose another"
            " --to, or accept the danger with --force.",
            code=Exit.NOT_ALLOWED,
        )


def _ask(plan: Document) -> None:
    exact = plan["seen"] == plan["selected"]
    number = plan["matching"] if exact else plan["selected"]
    some = count_of(number) if exact or plan["matching"] == plan["seen"] else "what matches"
    if plan["kind"] == "discard":
        ask_for_name(f"Type the queue's name to discard {some}", plan["queue"])
    else:
        ask(f"Re-drive {some}?", changes="this moves messages")


async def carry_out(
    desk: Desk, request: Request, form: str, how_to_resume: Callable[[str], str]
) -> int:
    """Begin the job and see it through."""
    if not desk.keeps_jobs:
        click.echo("Warning: jobs are kept in memory; name a --store to resume them.", err=True)
    job = await desk.start(request)
    return await see_through(desk, job, form, how_to_resume(job["id"]))
