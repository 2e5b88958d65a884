"""The command `hopback audit`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from hopback.cli.options import WholeNumber, limit_option
from hopback.ops.cli.access import (
    complete_job,
    complete_queue,
    dead_letter_command,
)
from hopback.ops.cli.dlq_print import ago, form_option, output, print_table
from hopback.ops.contract.requests import AuditQuery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.ops.contract.interface import DeadLetters
    from hopback.ops.contract.values import AuditEntry


@click.command(short_help="Show the audit of dead letters.")
@click.option("--by", default="", metavar="NAME", help="Only actions of this user.")
@click.option(
    "--action", default="", metavar="WORD", help="Only this action, for example job.start."
)
@click.option(
    "--queue",
    default="",
    metavar="Q",
    help="Only actions on this queue.",
    shell_complete=complete_queue,
)
@click.option(
    "--job",
    default="",
    metavar="JOB",
    help="Only actions on this job.",
    shell_complete=complete_job,
)
@limit_option("Maximum number of entries, newest first.", 50, 1000)
@click.option(
    "--before",
    type=WholeNumber(min=1),
    metavar="NUMBER",
    help="Only entries before this number.",
)
@dead_letter_command
@form_option
async def audit(
    dead_letters: DeadLetters,
    by: str,
    action: str,
    queue: str,
    job: str,
    limit: int,
    before: int | None,
    form: str,
) -> None:
    """Show the audit: changes, refused requests and displayed payloads.

    It is read from the store (--store) or the server (--server). A server requires the role admin.
    """
    query = AuditQuery(by, action, queue, job, before, limit)
    found = await dead_letters.audit(query)
    output(form, found, lambda: print_audit(found, limit, time.time()))


def print_audit(entries: Sequence[AuditEntry], limit: int, now: float) -> None:
    if not entries:
        click.echo("No entries.")
        return
    rows = [
        (
            str(one.number),
            ago(one.at, now),
            one.by or "unknown",
            one.action + ("" if one.result == "ok" else f" ({one.result})"),
            one.queue,
            one.job,
            one.reason,
        )
        for one in entries
    ]
    columns = ("number", "when", "who", "action", "queue", "job", "reason")
    print_table(columns, rows, right=("number", "when"), keep=("queue", "job"))
    if len(entries) == limit:
        click.echo(f"Older entries: --before {entries[-1].number}")
