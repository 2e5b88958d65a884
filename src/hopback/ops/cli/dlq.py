"""The commands of `hopback dlq` that only read."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import Number, WholeNumber, limit_option
from hopback.cli.terminal import on_terminal, table
from hopback.errors import UnsafeOperation
from hopback.ops.cli.access import complete_queue, dead_letter_command
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
    RedriveRequest,
    Selection,
    SessionRequest,
)
from hopback.ops.contract.search import (
    MOST_WALKED,
    SearchHit,
    SearchProgress,
    SearchRequest,
    collect_survey,
)
from hopback.ops.contract.values import DeadLetter, Price
from hopback.private_files import write_private
from hopback.text import count_of, safe_lines
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from hopback.ops.contract.interface import DeadLetters
    from hopback.ops.contract.surveys import ErrorOverview

_Command = TypeVar("_Command", bound="Callable[..., object]")

TO_BROWSE = "to browse it"
"""The reason in the audit if a command without --reason lifts a delivery limit."""
_SHORTEST_DIGEST = 6  # characters of a hash that identify one of thousands of messages

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
    type=WholeNumber(1, MOST_HELD),
    default=USUAL_SESSION.limit,
    show_default=True,
    metavar="N",
    help="Search only the first N messages.",
)


def look_options(command: _Command) -> _Command:
    """Add the options --force and --lift-limit."""
    return field_option(RedriveRequest, "force")(lift_option(command))


@contextmanager
def explain_refusals(queue: str) -> Iterator[None]:
    """If an operation is refused, add the options that allow it to the error."""
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
    dead_letters: DeadLetters, queue: str, reason: str = TO_BROWSE, *, job: bool = False
) -> None:
    """Lift the delivery limit of a queue with a policy if browsing or a job could lose messages.

    The reason is recorded in the audit.
    """
    detail = await dead_letters.queue(queue)
    if (detail.job_cost if job else detail.cost).price is Price.REFUSED:
        await dead_letters.lift_limit(queue, reason=reason)


@asynccontextmanager
async def hold(
    dead_letters: DeadLetters,
    queue: str,
    size: int,
    *,
    skip: int = 0,
    lift: bool = False,
    force: bool = False,
    reason: str = TO_BROWSE,
) -> AsyncIterator[str]:
    """Open a browse session with up to `size` messages. They are requeued when the context exits.

    `force` accepts that messages can be lost, and `lift` prevents this by lifting the delivery
    limit. In this case, `reason` is recorded in the audit.
    """
    if lift:
        await lift_if_needed(dead_letters, queue, reason)
    request = SessionRequest(limit=size, skip=skip, force=force)
    with show_progress() as tell:
        session = await dead_letters.open_session(queue, request, on_progress=tell)
    try:
        yield session.id
    finally:
        await dead_letters.release(session.id)


@click.command(short_help="List dead-letter queues with their depths.")
@dead_letter_command
@form_option
@click.option(
    "--detailed-exit-code", is_flag=True, help="Exit with status 10 if there is a dead letter."
)
async def ls(dead_letters: DeadLetters, form: str, detailed_exit_code: bool) -> int:
    """List the dead-letter queues with their depths, without reading messages."""
    found = await dead_letters.queues()
    output(form, found, lambda: print_queues(found))
    return Exit.FOUND if detailed_exit_code and any(one.messages for one in found) else Exit.OK


@click.command(short_help="Show type, browsing cost and targets of a queue.")
@queue_argument
@dead_letter_command
@form_option
async def show(dead_letters: DeadLetters, queue: str, form: str) -> None:
    """Show depth, type, browsing cost and targets of QUEUE, without reading messages."""
    found = await dead_letters.queue(queue)
    output(form, found, lambda: print_queue(found))


@click.command(short_help="Print depths periodically.")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...", shell_complete=complete_queue)
@click.option(
    "--interval",
    type=Number(min=0.1),
    default=2.0,
    show_default=True,
    metavar="S",
    help="Seconds between two readings.",
)
@click.option("--times", type=WholeNumber(min=1), metavar="N", help="Stop after N readings.")
@dead_letter_command
@form_option
async def watch(
    dead_letters: DeadLetters,
    queues: tuple[str, ...],
    interval: float,
    times: int | None,
    form: str,
) -> None:
    """Print the depths of all or the named dead-letter queues until Ctrl-C."""
    from hopback.ops.contract.codec import to_json

    last: dict[str, object] = {}
    count = 0
    while True:
        found = [one for one in await dead_letters.queues() if not queues or one.queue in queues]
        if form == "table":
            if on_terminal() and count:
                click.clear()
            print_queues(found)
        else:
            # Only print queues that have changed. The time of reading is ignored.
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
@limit_option("Only the first N messages. Default: all.", most=MOST_WALKED)
@look_options
@dead_letter_command
@form_option
async def groups(
    dead_letters: DeadLetters,
    queue: str,
    by: str,
    terms: str,
    limit: int | None,
    lift: bool,
    force: bool,
    form: str,
) -> None:
    """Count the messages of QUEUE by a common property, largest group first.

    Each message is read once and requeued in order. A fingerprint can be used as a filter: --filter
    group:3f9a.
    """
    request = SearchRequest(terms, (queue,), 0, force, by=by, first=limit)
    with explain_refusals(queue):
        if lift:
            await lift_if_needed(dead_letters, queue)
        found = await collect_survey(request, show_search(dead_letters.search(request)))
    shown = found if form == "json" else found.groups
    output(form, shown, lambda: print_groups(found, time.time()))
    if form != "table":
        print_held(found.held, err=True)
        print_not_looked_into(found.not_looked_into, err=True)


@click.command(short_help="List the messages at the head.")
@queue_argument
@filter_option
@limit_option("Number of messages to show.", 20, MOST_HELD)
@click.option(
    "--skip",
    type=WholeNumber(0, MOST_WALKED),
    default=0,
    metavar="N",
    help="Skip the first N messages. The broker holds them meanwhile.",
)
@look_options
@dead_letter_command
@form_option
async def peek(
    dead_letters: DeadLetters,
    queue: str,
    terms: str,
    limit: int,
    skip: int,
    lift: bool,
    force: bool,
    form: str,
) -> None:
    """List the messages at the head of QUEUE. They are held briefly and requeued in order."""
    with explain_refusals(queue):
        held = hold(dead_letters, queue, limit, skip=skip, lift=lift, force=force)
        async with held as session:
            found = await dead_letters.messages(session, terms, limit=limit)

    def in_words() -> None:
        print_messages(found.dead_letters, time.time())
        if terms:
            click.echo(f"{found.matching:,} of the first {count_of(limit)} match.")
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
@dead_letter_command
@form_option
async def get(
    dead_letters: DeadLetters,
    queue: str,
    message: str,
    within: int,
    payload: str,
    body: bool,
    save: Path | None,
    lift: bool,
    force: bool,
    form: str,
) -> None:
    """Show one message of QUEUE. ID is the id from `peek`, a position in the queue, or a message id."""
    with explain_refusals(queue):
        held = hold_for(dead_letters, queue, message, within, lift=lift, force=force)
        async with held as (session, dead_letter):
            shown = None if body else await dead_letters.message(session, dead_letter.id)
            content = b""
            if body or form == "table" or save is not None:
                content = await dead_letters.body(session, dead_letter.id)
    if save is not None:
        try:
            write_private(save, content)  # a payload may be confidential
        except OSError as error:
            raise CommandFailed(
                f"{save} cannot be written: {error.strerror}", do="Name another file with --save."
            ) from error
        click.echo(f"Wrote {len(content)} bytes to {save}.", err=True)
    if shown is not None:
        output(form, shown, lambda: print_message(shown, content, payload))
    elif save is None:
        # Write the exact bytes to a file or pipe, but escape them on a terminal.
        if on_terminal():
            click.echo(safe_lines(content.decode("utf-8", "backslashreplace")))
        else:
            click.echo(content, nl=False)


@asynccontextmanager
async def hold_for(
    dead_letters: DeadLetters, queue: str, name: str, size: int, **options: Any
) -> AsyncIterator[tuple[str, DeadLetter]]:
    """Open a browse session that contains the named message. `options` are those of `hold`."""
    # An id starts with the position of the message. A name can also be just a position.
    named = name.partition("-")[0]
    place = int(named) if named.isdecimal() and named.isascii() and len(named) <= 7 else 0
    # Skip most of the messages before it, but not all, because its position may have changed.
    skip = max(place - size // 2, 0)
    if place > size and skip <= MOST_WALKED:  # a session cannot skip more
        async with hold(dead_letters, queue, size, skip=skip, **options) as session:
            found = await dead_letters.messages(session, cursor=skip, limit=size)
            known = _message_named(found.dead_letters, name)
            if known is not None:
                yield session, known
                return
    async with hold(dead_letters, queue, size, **options) as session:
        found = await dead_letters.messages(session, limit=size)
        known = _message_named(found.dead_letters, name)
        if known is None:
            raise CommandFailed(
                f"message {name!r} is not among the first {len(found.dead_letters)} of {queue!r}",
                do="`hopback dlq search` finds messages in the whole queue and shows their ids.",
                code=Exit.NOT_FOUND,
            )
        yield session, known


def _message_named(messages: Sequence[DeadLetter], name: str) -> DeadLetter | None:
    """Find a message by its id, hash, message id or position."""
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


@click.command(short_help="List the errors of all queues.")
@click.option("--survey", is_flag=True, help="Survey all queues first, where browsing is free.")
@dead_letter_command
@form_option
async def errors(dead_letters: DeadLetters, survey: bool, form: str) -> None:
    """List the errors of all dead-letter queues from their last survey, most frequent first.

    A survey reads every message once and requeues all in order. It skips queues with consumers or an
    active job, and queues where browsing could lose messages. From streams and files of discards it reads
    only new messages.
    """
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
        print_held(one.held)


@click.command(short_help="Search messages in one or all queues.")
@click.argument("terms", nargs=-1, required=True, metavar="WORD...")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    shell_complete=complete_queue,
    help="Only this queue. Repeatable. Default: all queues where browsing loses no messages.",
)
@limit_option("Maximum number of matches to show. All are counted.", 100, 10_000)
@click.option("--force", is_flag=True, help="Browse even if messages could be lost.")
@dead_letter_command
@form_option
async def search(
    dead_letters: DeadLetters,
    terms: tuple[str, ...],
    queues: tuple[str, ...],
    limit: int,
    force: bool,
    form: str,
) -> int:
    """Find messages that contain every WORD in body, headers or key. A WORD may also be a filter term.

    Reads whole queues, including compressed bodies (gzip, zstd), and requeues all messages in order.
    Ctrl-C cancels. Exits with status 5 if no message matches.
    """
    # The shell has removed the quotes around phrases. Add them again, except for filter terms.
    text = " ".join(f'"{term}"' if " " in term and ":" not in term else term for term in terms)
    return await print_search(dead_letters, SearchRequest(text, queues, limit, force), form)


async def print_search(dead_letters: DeadLetters, request: SearchRequest, form: str) -> int:
    """Print matches as they are found, followed by the totals. Returns the exit code."""
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
    if last is not None:
        _print_unread(last, err=form != "table")
    if form == "table" and hits:
        first = hits[0].dead_letter
        click.echo(safe(f"`hopback dlq get {first.queue} {first.id}` shows one of them."))
    return Exit.OK if last is not None and last.matching else Exit.NOT_FOUND


def _print_unread(last: SearchProgress, *, err: bool) -> None:
    """Print which messages were not searched. If JSON is printed, this goes to stderr."""
    if last.not_looked_into:
        click.echo(f"{count_of(last.not_looked_into)} too large to search completely.", err=err)
    for one in last.skipped:
        click.echo(safe(f"Not searched: {one.queue}: {one.reason}"), err=err)
    print_held(last.held_by_others, err=err)
