"""What is written down about dead letters: by a team, and by Hopback itself in the audit.

`hopback dlq notes`, `history` and `filters`; `hopback dlq candidates`, `add`, `ignore` and `forget`, by which
people say which queues hold dead letters; `hopback audit`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from hopback.cli.terminal import table
from hopback.ops.brokers.discovery import CandidateAnswer, QueueAnswer
from hopback.ops.cli.dlq_print import ago, form_option, output
from hopback.ops.cli.where import complete_job, complete_queue, where_options, with_dead_letters
from hopback.ops.contract.codec import convert
from hopback.ops.contract.requests import AuditQuery
from hopback.ops.notes.values import NewFilter, NewNote
from hopback.text import count_of
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.ops.cli.where import Where
    from hopback.ops.contract.interface import DeadLetters
    from hopback.ops.contract.values import AuditEntry
    from hopback.ops.notes.values import GroupNote, SavedFilter

_queue = click.argument("queue", metavar="QUEUE", shell_complete=complete_queue)


def _need_broker(where: Where) -> None:
    """Notes belong to a broker: without one they would be written where nobody looks."""
    if where.broker is None and where.server is None:
        raise click.UsageError("Missing option '--broker URL' or '--server URL'.")


_group = click.option("--group", default="", metavar="FINGERPRINT", help="Only of this group.")


@click.command(short_help="Read or write notes on groups of a queue.")
@_queue
@_group
@click.option("--add", "text", metavar="TEXT", help="Write this note on the group.")
@click.option("--remove", metavar="ID", help="Take this note away.")
@where_options
@form_option
def notes(
    queue: str, group: str, text: str | None, remove: str | None, form: str, where: Where
) -> None:
    """List the notes on the groups of QUEUE, the newest first; or write one, or take one away.

    A group is known by its fingerprint, which `hopback dlq groups QUEUE` shows.
    """
    _need_broker(where)
    if text is not None and not group:
        raise click.UsageError("Missing option '--group': on which group the note is.")

    async def work(dead_letters: DeadLetters) -> tuple[GroupNote, ...]:
        kept = dead_letters.notes
        if text is not None:
            await kept.add(queue, convert(NewNote, {"group": group, "text": text}))
        if remove is not None:
            await kept.remove(queue, remove)
        return await kept.of(queue, group)

    found = with_dead_letters(where, work)
    rows = [(one.id, one.group, one.text, one.by, ago(one.at, time.time())) for one in found]
    output(form, found, lambda: _print(("id", "group", "note", "by", "written"), rows))


@click.command(short_help="Show what was done to a group or a queue.")
@_queue
@_group
@where_options
@form_option
def history(queue: str, group: str, form: str, where: Where) -> None:
    """Show what was done to QUEUE, or to one of its groups: re-drives, discards, notes; newest first."""
    _need_broker(where)

    async def work(dead_letters: DeadLetters) -> tuple[AuditEntry, ...]:
        return await dead_letters.notes.history(queue, group)

    found = with_dead_letters(where, work)
    rows = [
        (ago(one.at, time.time()), one.by, one.action, one.job, one.reason, one.result)
        for one in found
    ]
    output(form, found, lambda: _print(("when", "who", "what", "job", "why", "result"), rows))


@click.command(short_help="List, save or remove filters.")
@_queue
@click.option("--save", nargs=2, metavar="NAME FILTER", help="Save a filter under this name.")
@click.option("--remove", metavar="NAME", help="Take a saved filter away.")
@where_options
@form_option
def filters(
    queue: str, save: tuple[str, str] | None, remove: str | None, form: str, where: Where
) -> None:
    """List the saved filters of QUEUE; or save one, or take one away."""
    _need_broker(where)

    async def work(dead_letters: DeadLetters) -> tuple[SavedFilter, ...]:
        kept = dead_letters.notes
        if save is not None:
            said = convert(NewFilter, {"name": save[0], "filter": save[1]})
            await kept.save_filter(queue, said)
        if remove is not None:
            await kept.remove_filter(queue, remove)
        return await kept.filters(queue)

    found = with_dead_letters(where, work)
    rows = [(one.name, one.filter, one.by, ago(one.at, time.time())) for one in found]
    output(form, found, lambda: _print(("name", "filter", "by", "saved"), rows))


def _print(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if rows:
        table(columns, rows)
    else:
        click.echo("Nothing is written down.")


@click.command(short_help="List queues that may hold dead letters.")
@where_options
@form_option
def candidates(form: str, where: Where) -> None:
    """List the queues that have messages and no consumer, and of which nobody knows what they are.

    `hopback dlq add QUEUE` says that one holds dead letters, `hopback dlq ignore QUEUE` that it does not.
    """
    with_dead_letters(where, lambda dead_letters: list_candidates(dead_letters, form))


async def list_candidates(dead_letters: DeadLetters, form: str) -> None:
    """Print what is to be asked."""
    found = await dead_letters.candidates()

    def in_words() -> None:
        if not found.items:
            click.echo("No queue has messages and no consumer beside those that are known.")
        else:
            rows = [
                (one.queue, f"{one.messages:,}", "its name says so" if one.is_likely else "")
                for one in found.items
            ]
            table(("queue", "messages", "likely"), rows, right=("messages",))
            click.echo(
                f"{count_of(found.messages)} in {found.total} queues without a consumer: are they dead"
                " letters? `hopback dlq add QUEUE` or `hopback dlq ignore QUEUE`."
            )
        for said in found.answers:
            words = {
                CandidateAnswer.ADD: "holds dead letters",
                CandidateAnswer.IGNORE: "is ignored",
            }
            click.echo(safe(f"{said.queue} {words[said.answer]}, said {said.by or 'somebody'}"))

    output(form, found if form == "json" else found.items, in_words)


_reason = click.option("--reason", default="", metavar="TEXT", help="Why; it is kept in the audit.")


@click.command(short_help="Say that a queue holds dead letters.")
@click.argument("queue")
@click.option(
    "--origin", default="", metavar="QUEUE", help="The queue in which its messages failed."
)
@_reason
@where_options
def add(queue: str, origin: str, reason: str, where: Where) -> None:
    """Say that QUEUE holds dead letters: from now on it is listed, and can be looked into."""
    said = QueueAnswer(queue, CandidateAnswer.ADD, origin, reason=reason)
    with_dead_letters(where, lambda dead_letters: answer(dead_letters, said))


@click.command(short_help="Say that a queue holds no dead letters.")
@click.argument("queue")
@_reason
@where_options
def ignore(queue: str, reason: str, where: Where) -> None:
    """Say that QUEUE holds no dead letters: it is neither listed nor asked about."""
    said = QueueAnswer(queue, CandidateAnswer.IGNORE, reason=reason)
    with_dead_letters(where, lambda dead_letters: answer(dead_letters, said))


@click.command(short_help="Take back what was said of a queue.")
@click.argument("queue")
@_reason
@where_options
def forget(queue: str, reason: str, where: Where) -> None:
    """Take back what was said of QUEUE: what the broker shows holds again."""
    said = QueueAnswer(queue, CandidateAnswer.FORGET, reason=reason)
    with_dead_letters(where, lambda dead_letters: answer(dead_letters, said))


async def answer(dead_letters: DeadLetters, said: QueueAnswer) -> None:
    """Pass it on, and say what holds now."""
    await dead_letters.answer_candidate(said)
    words = {
        CandidateAnswer.ADD: "is a dead-letter queue now",
        CandidateAnswer.IGNORE: "is ignored from now on",
        CandidateAnswer.FORGET: "is what the broker shows, again",
    }
    click.echo(safe(f"{said.queue} {words[said.answer]}."))


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
