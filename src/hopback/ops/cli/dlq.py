"""The read-only commands `hopback dlq ls`, `show`, `groups`, `peek`, `get`, `errors`, `search`, `watch`."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.terminal import on_terminal, table
from hopback.errors import UnsafeOperation
from hopback.ops.cli.access import OpsAccess, access_options, complete_queue, with_dead_letters
from hopback.ops.cli.dlq_print import (
    ago,
    form_option,
    output,
    print_groups,
    print_held,
    print_message,
    print_messages,
    print_not_looked_into,
    print_queue,
    print_queues,
    show_progress,
    show_search,
)
from hopback.ops.cli.job_options import field_option
from hopback.ops.contract.requests import (
    MOST_HELD,
    USUAL_SESSION,
    GroupBy,
    RedriveRequest,
    Selection,
    SessionLimits,
)
from hopback.ops.contract.search import (
    MOST_WALKED,
    SearchHit,
    SearchProgress,
    SearchRequest,
    collect_survey,
)
from hopback.ops.contract.values import DeadLetter, Price, QueueSummary
from hopback.private_files import write_private
from hopback.text import count_of, safe_lines
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from hopback.ops.contract.interface import DeadLetters
    from hopback.ops.contract.surveys import ErrorOverview

_Command = TypeVar("_Command", bound="Callable[..., object]")

_TO_BROWSE = "to browse it"
"""Reason in the audit when a command without --reason lifts a delivery limit."""
_SHORTEST_DIGEST = 6  # characters of a hash, enough to identify one of thousands of messages

queue_argument = click.argument("queue", shell_complete=complete_queue)
filter_option = field_option(Selection, "filter", "terms")
lift_option = click.option(
    "--lift-limit",
    "lift",
    is_flag=True,
    help="If browsing could lose messages, lift the queue's delivery limit by a policy first.",
)
within_option = click.option(
    "--within",
    type=click.IntRange(1, MOST_HELD),
    default=USUAL_SESSION.limit,
    show_default=True,
    metavar="N",
    help="Search only the first N messages.",
)


@dataclass(frozen=True, slots=True)
class Look:
    """Options of a command that reads messages.

    `forced` accepts a possible loss of messages, `lift` prevents it by lifting the delivery limit.
    """

    queue: str
    limit: int | None = None
    terms: str = ""
    forced: bool = False
    lift: bool = False
    skip: int = 0
    reason: str = _TO_BROWSE
    """Reason in the audit if the delivery limit is lifted."""


def look_options(command: _Command) -> _Command:
    """Add --force and --lift-limit."""
    return field_option(RedriveRequest, "forced")(lift_option(command))


@contextmanager
def explain_refusals(queue: str) -> Iterator[None]:
    """Add the options that allow the operation to the error of a refused one."""
    try:
        yield
    except UnsafeOperation as refused:
        do = "--force browses despite the risk."
        if refused.can_lift:
            do = (
                "--lift-limit lifts the queue's delivery limit by a policy (`hopback dlq restore-limit"
                f" {queue}` restores it). {do}"
            )
        raise CommandFailed(str(refused), do=do, code=Exit.NOT_ALLOWED) from refused


async def lift_if_needed(
    dead_letters: DeadLetters, queue: str, reason: str = _TO_BROWSE, *, job: bool = False
) -> None:
    """Lift the delivery limit of a queue by a policy if browsing, or a job, could lose messages.

    The audit records the reason.
    """
    detail = await dead_letters.queue(queue)
    if (detail.job_cost if job else detail.cost).price is Price.REFUSED:
        await dead_letters.lift_limit(queue, reason=reason)


@asynccontextmanager
async def hold(dead_letters: DeadLetters, look: Look, size: int) -> AsyncIterator[str]:
    """Open a browse session of up to `size` messages. They are requeued at the end of the context."""
    if look.lift:
        await lift_if_needed(dead_letters, look.queue, look.reason)
    with show_progress() as tell:
        session = await dead_letters.open_session(
            look.queue,
            SessionLimits(limit=size, skip=look.skip),
            forced=look.forced,
            on_progress=tell,
        )
    try:
        yield session.id
    finally:
        await dead_letters.release(session.id)


@click.command(short_help="List dead-letter queues with their depths.")
@access_options
@form_option
@click.option(
    "--detailed-exit-code", is_flag=True, help="Exit with status 10 if there is a dead letter."
)
def ls(form: str, detailed_exit_code: bool, access: OpsAccess) -> int:
    """List the dead-letter queues with their depths, without reading messages."""
    found = with_dead_letters(access, lambda dead_letters: list_queues(dead_letters, form))
    return Exit.FOUND if detailed_exit_code and any(one.messages for one in found) else Exit.OK


async def list_queues(dead_letters: DeadLetters, form: str) -> Sequence[QueueSummary]:
    """Print and return all queues."""
    found = await dead_letters.queues()
    output(form, found, lambda: print_queues(found))
    return found


@click.command(short_help="Show type, browsing cost and targets of a queue.")
@queue_argument
@access_options
@form_option
def show(queue: str, form: str, access: OpsAccess) -> None:
    """Show depth, type, browsing cost and targets of QUEUE, without reading messages."""
    with_dead_letters(access, lambda dead_letters: show_queue(dead_letters, queue, form))


async def show_queue(dead_letters: DeadLetters, queue: str, form: str) -> None:
    """Print one queue."""
    found = await dead_letters.queue(queue)
    output(form, found, lambda: print_queue(found))


@click.command(short_help="Print depths periodically.")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...", shell_complete=complete_queue)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="S",
    help="Seconds between two readings.",
)
@click.option("--times", type=click.IntRange(min=1), metavar="N", help="Stop after N readings.")
@access_options
@form_option
def watch(
    queues: tuple[str, ...], interval: float, times: int | None, form: str, access: OpsAccess
) -> None:
    """Print the depths of all or the named dead-letter queues until Ctrl-C."""
    with_dead_letters(
        access, lambda dead_letters: watch_queues(dead_letters, queues, interval, times, form)
    )


async def watch_queues(
    dead_letters: DeadLetters, names: tuple[str, ...], interval: float, times: int | None, form: str
) -> None:
    """Print the queues periodically: a table that is redrawn, or a line for each changed queue."""
    from hopback.ops.contract.codec import to_json

    last: dict[str, object] = {}
    count = 0
    while True:
        found = [one for one in await dead_letters.queues() if not names or one.queue in names]
        if form == "table":
            if on_terminal() and count:
                click.clear()
            print_queues(found)
        else:
            # A new time of reading is not a change.
            now = {one.queue: {**to_json(one), "depth": None, "idleSince": None} for one in found}
            changed = [one for one in found if now[one.queue] != last.get(one.queue)]
            output("ndjson", changed, lambda: None)
            last = dict(now)
        count += 1
        if times is not None and count >= times:
            return
        await asyncio.sleep(interval)


@click.command(short_help="Count messages by error or another property.")
@queue_argument
@click.option(
    "--by",
    default="fingerprint",
    show_default=True,
    metavar="FIELD",
    help="Property: fingerprint, reason, origin, type, error, header.NAME or payload.PATH.",
)
@filter_option
@click.option(
    "--limit",
    type=click.IntRange(1, MOST_WALKED),
    metavar="N",
    help="Only the first N messages. Default: all.",
)
@look_options
@access_options
@form_option
def groups(
    queue: str,
    by: str,
    terms: str,
    limit: int | None,
    lift: bool,
    forced: bool,
    form: str,
    access: OpsAccess,
) -> None:
    """Count the messages of QUEUE by a common property, the largest group first.

    Each message is read once and requeued in order. A fingerprint can be used as a filter: --filter
    group:3f9a.
    """
    look = Look(queue, limit, terms, forced, lift)
    with_dead_letters(access, lambda dead_letters: list_groups(dead_letters, look, by, form))


async def list_groups(dead_letters: DeadLetters, look: Look, by: GroupBy | str, form: str) -> None:
    """Print the groups of a queue."""
    with explain_refusals(look.queue):
        if look.lift:
            await lift_if_needed(dead_letters, look.queue)
        request = SearchRequest(
            look.terms, (look.queue,), 0, look.forced, by=str(by), first=look.limit
        )
        found = await collect_survey(request, show_search(dead_letters.search(request)))
    shown = found if form == "json" else found.groups
    output(form, shown, lambda: print_groups(found, time.time()))


@click.command(short_help="List the messages at the head.")
@queue_argument
@filter_option
@click.option(
    "--limit",
    type=click.IntRange(1, MOST_HELD),
    default=20,
    show_default=True,
    metavar="N",
    help="Number of messages to show.",
)
@click.option(
    "--skip",
    type=click.IntRange(0, 5_000_000),
    default=0,
    metavar="N",
    help="Skip the first N messages. The broker holds them meanwhile.",
)
@look_options
@access_options
@form_option
def peek(
    queue: str,
    terms: str,
    limit: int,
    skip: int,
    lift: bool,
    forced: bool,
    form: str,
    access: OpsAccess,
) -> None:
    """List the messages at the head of QUEUE. They are held briefly and requeued in order."""
    look = Look(queue, limit, terms, forced, lift, skip)
    with_dead_letters(access, lambda dead_letters: list_messages(dead_letters, look, form))


async def list_messages(dead_letters: DeadLetters, look: Look, form: str) -> None:
    """Print the messages at the head of a queue."""
    size = look.limit or 20  # about one screen
    with explain_refusals(look.queue):
        async with hold(dead_letters, look, size) as session:
            found = await dead_letters.messages(session, look.terms, size=size)

    def in_words() -> None:
        print_messages(found.dead_letters, time.time())
        if look.terms:
            click.echo(f"{found.matching:,} of the first {count_of(size)} match.")
            print_not_looked_into(found.not_looked_into)

    output(form, found.dead_letters, in_words)


@click.command(short_help="Show one message in full.")
@queue_argument
@click.argument("message", metavar="ID")
@within_option
@click.option(
    "--payload",
    type=click.Choice(("pretty", "raw", "hex")),
    default="pretty",
    show_default=True,
    help="Format of the payload.",
)
@click.option("--body", is_flag=True, help="Print only the bytes of the payload.")
@click.option(
    "--save", type=click.Path(dir_okay=False, path_type=Path), help="Write the bytes to this file."
)
@look_options
@access_options
@form_option
def get(
    queue: str,
    message: str,
    within: int,
    payload: str,
    body: bool,
    save: Path | None,
    lift: bool,
    forced: bool,
    form: str,
    access: OpsAccess,
) -> None:
    """Show one message of QUEUE. ID is the id from `peek`, a position in the queue, or a message id."""
    look = Look(queue, within, "", forced, lift)
    form = "bytes" if body else form
    with_dead_letters(
        access, lambda dead_letters: show_message(dead_letters, look, message, form, payload, save)
    )


async def show_message(
    dead_letters: DeadLetters,
    look: Look,
    name: str,
    form: str,
    payload: str = "pretty",
    save: Path | None = None,
) -> None:
    """Find a message and print it. `form` may also be `bytes`."""
    with explain_refusals(look.queue):
        async with hold_for(dead_letters, look, name) as (session, dead_letter):
            message = None
            if form != "bytes":
                message = await dead_letters.message(session, dead_letter.id)
            body = b""
            if form in ("bytes", "table") or save is not None:
                body = await dead_letters.body(session, dead_letter.id)
    if save is not None:
        try:
            write_private(save, body)  # a payload may be private
        except OSError as error:
            raise CommandFailed(
                f"{save} cannot be written: {error.strerror}", do="Name another file with --save."
            ) from error
        click.echo(f"Wrote {len(body)} bytes to {save}.", err=True)
    if message is not None:
        output(form, message, lambda: print_message(message, body, payload))
    elif save is None:
        # A file or pipe gets the exact bytes, a terminal a safe text.
        if on_terminal():
            click.echo(safe_lines(body.decode("utf-8", "backslashreplace")))
        else:
            click.echo(body, nl=False)


@asynccontextmanager
async def hold_for(
    dead_letters: DeadLetters, look: Look, name: str
) -> AsyncIterator[tuple[str, DeadLetter]]:
    """Yield a browse session that contains the named message, and that message."""
    # An id begins with the position. A number alone is a position, too.
    named = name.partition("-")[0]
    place = int(named) if named.isdecimal() and named.isascii() and len(named) <= 7 else 0
    size = look.limit or USUAL_SESSION.limit
    if place > size:
        # Skip the messages before it, except some: its position may have changed since.
        beyond = replace(look, skip=max(place - size // 2, 0))
        async with hold(dead_letters, beyond, size) as session:
            found = await dead_letters.messages(session, cursor=beyond.skip, size=size)
            known = message_named(found.dead_letters, name)
            if known is not None:
                yield session, known
                return
    async with hold(dead_letters, look, size) as session:
        found = await dead_letters.messages(session, size=size)
        yield session, chosen_message(found.dead_letters, name, look.queue)


def message_named(messages: Sequence[DeadLetter], name: str) -> DeadLetter | None:
    """Return the message with this id, hash, message id or position, None if there is none."""
    digest = name.partition("-")[2] or name
    ways = (
        lambda one: one.id == name,
        lambda one: len(digest) >= _SHORTEST_DIGEST and one.digest.startswith(digest),
        lambda one: one.message_id == name,
        lambda one: str(one.place) == name,
    )
    for way in ways:
        found = next((one for one in messages if way(one)), None)
        if found is not None:
            return found
    return None


def chosen_message(messages: Sequence[DeadLetter], name: str, queue: str) -> DeadLetter:
    """Return the named message. CommandFailed if it is not in `messages`."""
    found = message_named(messages, name)
    if found is not None:
        return found
    raise CommandFailed(
        f"message {name!r} is not among the first {len(messages)} of {queue!r}",
        do="`hopback dlq search` finds messages in the whole queue and shows their ids.",
        code=Exit.NOT_FOUND,
    )


@click.command(short_help="List the errors of all queues.")
@click.option("--survey", is_flag=True, help="Survey all queues first, where browsing is free.")
@access_options
@form_option
def errors(survey: bool, form: str, access: OpsAccess) -> None:
    """List the errors of all dead-letter queues from their last survey, the most frequent first.

    A survey reads every message once and requeues all in order. It skips queues with consumers or an
    active job, and queues where browsing could lose messages. From streams and files of discards it reads
    only new messages.
    """
    with_dead_letters(access, lambda dead_letters: list_errors(dead_letters, form, survey=survey))


async def list_errors(dead_letters: DeadLetters, form: str, *, survey: bool) -> None:
    with show_progress() as tell:
        found = await dead_letters.errors(survey=survey, on_progress=tell)
    output(
        form, found if form == "json" else found.items, lambda: _print_errors(found, time.time())
    )


def _print_errors(found: ErrorOverview, now: float) -> None:
    if not found.items:
        click.echo("No known errors. `hopback dlq errors --survey` reads all queues.")
    else:
        rows = [
            (
                f"{one.count:,}",
                one.error or one.reason,
                one.message,
                ", ".join(f"{each.queue} {each.count:,}" for each in one.queues),
                ago(one.first, now),
                ago(one.last, now),
                "new" if one.is_new else "",
                one.fingerprint,
            )
            for one in found.items
        ]
        columns = ("count", "error", "message", "queues", "first", "last", "", "group")
        table(columns, rows, right=("count", "first", "last"))
    surveyed = [one for one in found.queues if one.at is not None]
    if surveyed:
        oldest = ago(min(one.at for one in surveyed if one.at is not None), now)
        click.echo(
            f"Surveyed {count_of(found.messages)} in {count_of(len(surveyed), 'queue')}. The oldest survey"
            f" was {oldest}."
        )
    discarded = sum(one.seen for one in found.archives)
    if discarded:
        files = count_of(len(found.archives), "file")
        click.echo(f"Read {count_of(discarded)} of discards in {files}.")
    for one in found.queues:
        if one.why_not:
            click.echo(safe(f"Not surveyed: {one.queue}: {one.why_not}"))
        elif one.is_stream:
            click.echo(safe(f"Stream, read without cost: {one.queue}"))


@click.command(short_help="Search messages in one or all queues.")
@click.argument("terms", nargs=-1, required=True, metavar="WORD...")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    shell_complete=complete_queue,
    help="Only this queue. Repeatable. Default: all queues where browsing is free.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    metavar="N",
    help="Maximum number of matches to show. All are counted.",
)
@click.option("--force", "forced", is_flag=True, help="Browse even if messages could be lost.")
@access_options
@form_option
def search(
    terms: tuple[str, ...],
    queues: tuple[str, ...],
    limit: int,
    forced: bool,
    form: str,
    access: OpsAccess,
) -> int:
    """Find messages that contain every WORD in body, headers or key. A WORD may also be a filter term.

    Reads whole queues, including compressed bodies (gzip, zstd), and requeues all messages in order.
    Ctrl-C cancels. Exits with status 5 if no message matches.
    """
    # The shell has removed the quotes of a phrase. Add them again unless it is a filter term.
    text = " ".join(f'"{term}"' if " " in term and ":" not in term else term for term in terms)
    request = SearchRequest(text, queues, limit, forced)
    found = with_dead_letters(
        access, lambda dead_letters: search_messages(dead_letters, request, form)
    )
    return Exit.OK if found else Exit.NOT_FOUND


async def search_messages(dead_letters: DeadLetters, request: SearchRequest, form: str) -> int:
    """Print matches when they are found, then the totals. Return the number of matches."""
    hits: list[SearchHit] = []
    last: SearchProgress | None = None
    with explain_refusals(request.queues[0] if request.queues else "QUEUE"):
        async with aclosing(show_search(dead_letters.search(request))) as progress:
            async for last in progress:
                if form == "ndjson":
                    output(form, last.hits, lambda: None)
                else:
                    hits.extend(last.hits)
    if form == "json":
        output(form, hits, lambda: None)
    elif form == "table" and last is not None:
        if hits:
            rows = [
                (one.queue, one.id, one.error or one.reason, hit.excerpt or one.error_message)
                for hit in hits
                for one in (hit.dead_letter,)
            ]
            table(("queue", "id", "error", "text"), rows, keep=("id",))
        shown = "" if len(hits) == last.matching else f" (the first {len(hits):,} are shown)"
        click.echo(f"{last.matching:,} of {count_of(last.seen)} match{shown}.")
        if last.not_looked_into:
            click.echo(f"{count_of(last.not_looked_into)} too large to search completely.")
        for one in last.skipped:
            click.echo(safe(f"Not searched: {one.queue}: {one.reason}"))
        print_held(last.held_by_others)
        if hits:
            first = hits[0].dead_letter
            click.echo(safe(f"`hopback dlq get {first.queue} {first.id}` shows one of them."))
    return 0 if last is None else last.matching
