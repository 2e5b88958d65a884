"""The commands `hopback dlq notes`, `history` and `filters`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from hopback.cli.terminal import table
from hopback.ops.cli.access import OpsAccess, access_options, complete_queue, with_dead_letters
from hopback.ops.cli.dlq_print import ago, form_option, output
from hopback.ops.contract.codec import convert
from hopback.ops.notes.values import GroupNote, NewFilter, NewNote, SavedFilter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.ops.contract.interface import DeadLetters
    from hopback.ops.contract.values import AuditEntry

_queue = click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)


def _need_broker(access: OpsAccess) -> None:
    """Raise UsageError if there is no broker, because all notes belong to one."""
    if access.broker is None and access.server is None:
        raise click.UsageError("Missing option '--broker URL' or '--server URL'.")


_group = click.option("--group", default="", metavar="FINGERPRINT", help="Only this group.")


@click.command(short_help="List, add or remove notes on groups of a queue.")
@_queue
@_group
@click.option("--add", "text", metavar="TEXT", help="Add this note to the group.")
@click.option("--remove", metavar="ID", help="Remove this note.")
@access_options
@form_option
def notes(
    queue: str, group: str, text: str | None, remove: str | None, form: str, access: OpsAccess
) -> None:
    """List the notes on the groups of QUEUE, newest first, or add or remove a note.

    A group is specified by its fingerprint, which `hopback dlq groups QUEUE` shows.
    """
    _need_broker(access)
    if text is not None and not group:
        raise click.UsageError("Missing option '--group': the group of the note.")

    async def work(dead_letters: DeadLetters) -> tuple[GroupNote, ...]:
        kept = dead_letters.notes
        if text is not None:
            await kept.add(queue, convert(NewNote, {"group": group, "text": text}))
        if remove is not None:
            await kept.remove(queue, remove)
        return await kept.of(queue, group)

    found = with_dead_letters(access, work)
    rows = [(one.id, one.group, one.text, one.by, ago(one.at, time.time())) for one in found]
    output(form, found, lambda: _print(("id", "group", "note", "by", "written"), rows))


@click.command(short_help="Show the actions on a group or a queue.")
@_queue
@_group
@access_options
@form_option
def history(queue: str, group: str, form: str, access: OpsAccess) -> None:
    """Show the re-drives, discards and notes of QUEUE or of one of its groups, newest first."""
    _need_broker(access)

    async def work(dead_letters: DeadLetters) -> tuple[AuditEntry, ...]:
        return await dead_letters.notes.history(queue, group)

    found = with_dead_letters(access, work)
    rows = [
        (ago(one.at, time.time()), one.by, one.action, one.job, one.reason, one.result)
        for one in found
    ]
    output(form, found, lambda: _print(("when", "who", "what", "job", "why", "result"), rows))


@click.command(short_help="List, save or remove filters.")
@_queue
@click.option("--save", nargs=2, metavar="NAME FILTER", help="Save a filter under this name.")
@click.option("--remove", metavar="NAME", help="Remove this saved filter.")
@access_options
@form_option
def filters(
    queue: str, save: tuple[str, str] | None, remove: str | None, form: str, access: OpsAccess
) -> None:
    """List the saved filters of QUEUE, or save or remove a filter."""
    _need_broker(access)

    async def work(dead_letters: DeadLetters) -> tuple[SavedFilter, ...]:
        kept = dead_letters.notes
        if save is not None:
            new = convert(NewFilter, {"name": save[0], "filter": save[1]})
            await kept.save_filter(queue, new)
        if remove is not None:
            await kept.remove_filter(queue, remove)
        return await kept.filters(queue)

    found = with_dead_letters(access, work)
    rows = [(one.name, one.filter, one.by, ago(one.at, time.time())) for one in found]
    output(form, found, lambda: _print(("name", "filter", "by", "saved"), rows))


def _print(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if rows:
        table(columns, rows)
    else:
        click.echo("No entries.")
