"""`hopback dlq get`: one message with everything about it, or only its bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hopback.cli.desk import Look
from hopback.cli.dlq_access import Place, at_desk, desk_options
from hopback.cli.dlq_printing import form_option, tell
from hopback.cli.dlq_reading import look_options, queue_argument, refusing
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.message_printing import print_message
from hopback.cli.printing import on_terminal, safe_lines
from hopback.private_files import write_private

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.cli.desk import Desk
    from hopback.cli.documents import Document

__all__ = ["chosen_letter", "get", "show_message"]

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
