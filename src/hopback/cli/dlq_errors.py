"""`hopback dlq errors`: what is broken, across all queues."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import click

from hopback.cli.dlq_print import ago, count_of, form_option, output
from hopback.cli.terminal import on_terminal, safe, table
from hopback.cli.where import where_options, with_dead_letters

if TYPE_CHECKING:
    from hopback.cli.where import Where
    from hopback.deadletters.interface import DeadLetters
    from hopback.deadletters.surveys import ErrorOverview

__all__ = ["errors", "list_errors"]

_TELL_S = 1.0  # between two questions how far it is: reading what is kept costs as much as a list


@click.command(short_help="List the errors of all queues.")
@click.option(
    "--survey", is_flag=True, help="Look through all queues first, where that harms nothing."
)
@where_options
@form_option
def errors(survey: bool, form: str, where: Where) -> None:
    """List the errors of all dead-letter queues, the most frequent first, by the last survey of each.

    A survey takes every message once and gives all back in order. It leaves out queues that looking would
    harm, that have consumers, or that a job works on.
    """
    with_dead_letters(where, lambda dead_letters: list_errors(dead_letters, form, survey=survey))


async def list_errors(dead_letters: DeadLetters, form: str, *, survey: bool) -> None:
    """Print the errors."""
    asked = asyncio.ensure_future(dead_letters.errors(survey=survey))
    try:
        while survey and on_terminal() and not (await asyncio.wait({asked}, timeout=_TELL_S))[0]:
            running = (await dead_letters.errors()).running
            if running is not None:
                share = f"{running.seen:,} of {count_of(running.total)} looked at"
                click.echo(
                    f"\x1b[2K{safe(share)}, now in {safe(running.queue)}\r", nl=False, err=True
                )
        found = await asked
    finally:
        asked.cancel()
    output(form, found if form == "json" else found.items, lambda: _print(found, time.time()))


def _print(found: ErrorOverview, now: float) -> None:
    if not found.items:
        click.echo("No errors are known. `hopback dlq errors --survey` looks through all queues.")
    else:
        rows = [
            (
                f"{one.count:,}",
                one.error or one.reason,
                one.message,
                ", ".join(f"{each.queue} {each.count:,}" for each in one.queues),
                "new" if one.is_new else "",
                one.fingerprint,
            )
            for one in found.items
        ]
        table(("count", "error", "message", "queues", "", "group"), rows, right=("count",))
    surveyed = [one for one in found.queues if one.at is not None]
    if surveyed:
        oldest = ago(min(one.at for one in surveyed if one.at is not None), now)
        click.echo(
            f"{count_of(found.messages)} of {count_of(len(surveyed), 'queue')} were looked at,"
            f" the longest time {oldest}."
        )
    for one in found.queues:
        if one.why_not:
            click.echo(safe(f"Not surveyed: {one.queue}: {one.why_not}"))
