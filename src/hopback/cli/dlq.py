"""`hopback dlq`: look at dead letters, send them back, discard them, keep them in files."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hopback.cli.desk import Look
from hopback.cli.dlq_print import (
    count_of,
    form_option,
    print_groups,
    print_letters,
    print_message,
    print_not_looked_into,
    print_queue,
    print_queues,
    tell,
)
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.terminal import on_terminal, safe_lines
from hopback.cli.where import Place, at_desk, complete_queue, desk_options
from hopback.errors import UnsafeOperation
from hopback.private_files import write_private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hopback.cli.desk import Desk
    from hopback.cli.documents import Document

__all__ = [
    "chosen_letter",
    "filter_option",
    "get",
    "groups",
    "list_groups",
    "list_letters",
    "list_queues",
    "look_options",
    "ls",
    "peek",
    "queue_argument",
    "refusing",
    "show",
    "show_message",
    "show_queue",
    "watch",
    "watch_queues",
]

_Command = TypeVar("_Command", bound="Callable[..., object]")

queue_argument = click.argument("queue", shell_complete=complete_queue)
filter_option = click.option(
    "--filter",
    "where",
    default="",
    metavar="TERMS",
    help="Only messages for which all terms hold, as in 'reason:rejected age>2h'.",
)


def look_options(command: _Command) -> _Command:
    """What a command that takes messages to look at them lets one say of the danger."""
    for option in (
        click.option(
            "--lift-limit",
            "lift",
            is_flag=True,
            help="If looking could lose messages, lift the queue's delivery limit by a policy first.",
        ),
        click.option(
            "--force", "forced", is_flag=True, help="Look even if that could lose messages."
        ),
    ):
        command = option(command)
    return command


@contextmanager
def refusing(queue: str) -> Iterator[None]:
    """Say of a refused look which options make it possible."""
    try:
        yield
    except UnsafeOperation as refused:
        raise CommandFailed(
            str(refused),
            do="--lift-limit lifts the queue's delivery limit by a policy (`hopback topology revert"
            f" --queue {queue}` takes it back); --force looks in spite of the danger.",
            code=Exit.NOT_ALLOWED,
        ) from refused


@click.command(short_help="List dead-letter queues with their depths.")
@desk_options
@form_option
@click.option("--detailed-exit-code", is_flag=True, help="Leave with 10 if there is a dead letter.")
def ls(form: str, detailed_exit_code: bool, **place: Any) -> int:
    """List the dead-letter queues with their depths; never looks into one."""
    found = at_desk(Place(**place), lambda desk: list_queues(desk, form))
    return Exit.FOUND if detailed_exit_code and any(one["messages"] for one in found) else Exit.OK


async def list_queues(desk: Desk, form: str) -> list[Document]:
    """Print every queue."""
    found = await desk.queues()
    tell(form, found, lambda: print_queues(found))
    return found


@click.command(short_help="Show a queue: type, cost of looking, targets.")
@queue_argument
@desk_options
@form_option
def show(queue: str, form: str, **place: Any) -> None:
    """Show what is known of QUEUE without looking into it: depth, type, cost of looking, targets."""
    at_desk(Place(**place), lambda desk: show_queue(desk, queue, form))


async def show_queue(desk: Desk, queue: str, form: str) -> None:
    """Print one queue."""
    found = await desk.queue(queue)
    tell(form, found, lambda: print_queue(found))


@click.command(short_help="Count messages by what they have in common.")
@queue_argument
@click.option(
    "--by",
    type=click.Choice(("fingerprint", "reason", "origin", "type", "error")),
    default="fingerprint",
    show_default=True,
    help="What they have in common.",
)
@filter_option
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N; by default all."
)
@look_options
@desk_options
@form_option
def groups(
    queue: str,
    by: str,
    where: str,
    limit: int | None,
    lift: bool,
    forced: bool,
    form: str,
    **place: Any,
) -> None:
    """Count the messages of QUEUE by what they have in common, the largest group first.

    Each message is taken once, and all are given back in order. The fingerprint of a failure can be
    used as a filter: --filter group:3f9a.
    """
    look = Look(queue, limit, where, forced, lift)
    at_desk(Place(**place), lambda desk: list_groups(desk, look, by, form))


async def list_groups(desk: Desk, look: Look, by: str, form: str) -> None:
    """Print the groups of a queue."""
    with refusing(look.queue):
        found = await desk.groups(look, by)
    items = found if form == "json" else found["items"]
    tell(form, items, lambda: print_groups(found, time.time()))


@click.command(short_help="List the messages at the head.")
@queue_argument
@filter_option
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    metavar="N",
    help="Hold so many messages.",
)
@look_options
@desk_options
@form_option
def peek(
    queue: str, where: str, limit: int, lift: bool, forced: bool, form: str, **place: Any
) -> None:
    """List the messages at the head of QUEUE. They are held for a moment and given back in order."""
    look = Look(queue, limit, where, forced, lift)
    at_desk(Place(**place), lambda desk: list_letters(desk, look, form))


async def list_letters(desk: Desk, look: Look, form: str) -> None:
    """Print the letters at the head of a queue."""
    size = look.limit or 20
    with refusing(look.queue):
        async with desk.hold(look) as held:
            found = await held.letters(look.where, size)
    letters = found["items"]

    def in_words() -> None:
        print_letters(letters, time.time())
        if look.where:
            click.echo(f"{found['matching']:,} of the first {count_of(size)} match.")
            print_not_looked_into(found)

    tell(form, letters, in_words)


@click.command(short_help="Follow the depths until stopped.")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...", shell_complete=complete_queue)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="S",
    help="Seconds between two looks at the depths.",
)
@click.option("--times", type=click.IntRange(min=1), metavar="N", help="End after N looks.")
@desk_options
@form_option
def watch(
    queues: tuple[str, ...], interval: float, times: int | None, form: str, **place: Any
) -> None:
    """Follow the depths of all dead-letter queues, or of those named, until Ctrl-C."""
    at_desk(Place(**place), lambda desk: watch_queues(desk, queues, interval, times, form))


async def watch_queues(
    desk: Desk, names: tuple[str, ...], interval: float, times: int | None, form: str
) -> None:
    """Print the queues again and again: a table in place, or a line for each change."""
    last: dict[str, Document] = {}
    count = 0
    while True:
        found = [one for one in await desk.queues() if not names or one["queue"] in names]
        if form == "table":
            if on_terminal() and count:
                click.clear()
            print_queues(found)
        else:
            changed = [one for one in found if _told(one) != last.get(one["queue"])]
            tell("ndjson", changed, lambda: None)
            last = {one["queue"]: _told(one) for one in found}
        count += 1
        if times is not None and count >= times:
            return
        await asyncio.sleep(interval)


def _told(queue: Document) -> Document:
    """What counts as a change: not the moment at which it was read."""
    return {name: value for name, value in queue.items() if name not in ("depth", "idleSince")}


_SHORTEST_DIGEST = 6


@click.command(short_help="Show one message with everything about it.")
@queue_argument
@click.argument("ident", metavar="ID")
@click.option(
    "--within",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    metavar="N",
    help="Look for it among the first N messages.",
)
@click.option(
    "--payload",
    "view",
    type=click.Choice(("pretty", "raw", "hex")),
    default="pretty",
    show_default=True,
    help="How to show the payload.",
)
@click.option("--body", is_flag=True, help="Print nothing but the bytes of the payload.")
@click.option(
    "--save", type=click.Path(dir_okay=False, path_type=Path), help="Write the bytes to this file."
)
@look_options
@desk_options
@form_option
def get(
    queue: str,
    ident: str,
    within: int,
    view: str,
    body: bool,
    save: Path | None,
    lift: bool,
    forced: bool,
    form: str,
    **place: Any,
) -> None:
    """Show one message of QUEUE. ID is what `peek` shows, a place in the queue, or a message id."""
    limit = max(within, _place(ident) or 0)
    look = Look(queue, limit, "", forced, lift)
    form = "bytes" if body else form
    at_desk(Place(**place), lambda desk: show_message(desk, look, ident, form, view, save))


def _place(ident: str) -> int | None:
    """The place that an id begins with; a bare number is a place, too."""
    first = ident.partition("-")[0]
    return int(first) if first.isdecimal() and first.isascii() and len(first) <= 4 else None


async def show_message(
    desk: Desk, look: Look, ident: str, form: str, view: str = "pretty", save: Path | None = None
) -> None:
    """Find a message and print it; `form` may also be `bytes`."""
    with refusing(look.queue):
        async with desk.hold(look) as held:
            found = await held.letters("", look.limit or 100)
            letter = chosen_letter(found["items"], ident, look)
            message = None if form == "bytes" else await held.message(letter["id"])
            bytes_wanted = form in ("bytes", "table") or save is not None
            body = await held.body(letter["id"]) if bytes_wanted else b""
    if save is not None:
        _save(save, body)
    if message is None:
        _print_bytes(body, saved=save is not None)
    else:
        tell(form, message, lambda: print_message(message, body, view))


def chosen_letter(letters: Sequence[Document], ident: str, look: Look) -> Document:
    """The letter that is meant: by id, by what its id hashes, by message id, or by place."""
    digest = ident.partition("-")[2] or ident
    ways = (
        lambda one: one["id"] == ident,
        lambda one: len(digest) >= _SHORTEST_DIGEST and one["digest"].startswith(digest),
        lambda one: one["messageId"] == ident,
        lambda one: str(one["place"]) == ident,
    )
    for way in ways:
        found = [one for one in letters if way(one)]
        if found:
            return found[0]
    raise CommandFailed(
        f"there is no message {ident!r} among the first {len(letters)} of {look.queue!r}",
        do="`hopback dlq peek` lists ids; --within N looks further.",
        code=Exit.NOT_FOUND,
    )


def _save(path: Path, body: bytes) -> None:
    try:
        write_private(path, body)  # a payload may be private
    except OSError as error:
        raise CommandFailed(
            f"{path} cannot be written: {error.strerror}", do="Name another file with --save."
        ) from error
    click.echo(f"Wrote {len(body)} bytes to {path}.", err=True)


def _print_bytes(body: bytes, *, saved: bool) -> None:
    """Exactly as they are into a file or pipe, made safe on a terminal."""
    if saved:
        return
    if on_terminal():
        click.echo(safe_lines(body.decode("utf-8", "backslashreplace")))
    else:
        click.echo(body, nl=False)
