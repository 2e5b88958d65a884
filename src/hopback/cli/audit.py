"""`hopback audit`: who did what to dead letters, when and why."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from hopback.cli.dlq_print import ago, form_option, output
from hopback.cli.terminal import table
from hopback.cli.where import complete_job, complete_queue, where_options, with_dead_letters
from hopback.deadletters.requests import AuditQuery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.cli.where import Where
    from hopback.deadletters.contract import AuditEntry

__all__ = ["audit", "print_audit"]


@click.command(short_help="Who did what to dead letters, when and why.")
@click.option("--by", default="", metavar="NAME", help="Only what this person did.")
@click.option("--action", default="", metavar="WORD", help="Only this, as in job.start.")
@click.option(
    "--queue", default="", metavar="Q", help="Only to this queue.", shell_complete=complete_queue
)
@click.option(
    "--job", default="", metavar="JOB", help="Only about this job.", shell_complete=complete_job
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    metavar="N",
    help="At most so many, the newest first.",
)
@click.option(
    "--before", type=click.IntRange(min=1), metavar="NUMBER", help="Only what is older than this."
)
@where_options
@form_option
def audit(
    by: str,
    action: str,
    queue: str,
    job: str,
    limit: int,
    before: int | None,
    form: str,
    where: Where,
) -> None:
    """Show the audit: every change, every refusal and every payload that was shown.

    It is kept in the store (--store), or at the server, where it takes an admin to read it.
    """
    query = AuditQuery(by, action, queue, job, before, limit)
    found = with_dead_letters(where, lambda dead_letters: dead_letters.audit(query))
    output(form, found, lambda: print_audit(found, limit, time.time()))


def print_audit(entries: Sequence[AuditEntry], limit: int, now: float) -> None:
    """A row for each entry, the newest first."""
    if not entries:
        click.echo("Nothing was written down yet: changes, refusals and payloads shown will be.")
        return
    rows = [
        (
            str(one.number),
            ago(one.at, now),
            one.by or "nobody",
            one.action + ("" if one.result == "ok" else f" ({one.result})"),
            one.queue,
            one.job,
            one.reason,
        )
        for one in entries
    ]
    columns = ("number", "when", "who", "what", "queue", "job", "why")
    kept = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    table(
        [columns[place] for place in kept],
        [[row[place] for place in kept] for row in rows],
        right=("number", "when"),
        keep=("queue", "job"),
    )
    if len(entries) == limit:
        click.echo(f"Older ones: --before {entries[-1].number}")
