"""`hopback dlq candidates`, `add`, `ignore` and `forget`: which queues hold dead letters, as people say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hopback.cli.dlq_print import count_of, form_option, output
from hopback.cli.terminal import safe, table
from hopback.cli.where import where_options, with_dead_letters
from hopback.deadletters.candidates import CandidateAnswer, QueueAnswer

if TYPE_CHECKING:
    from hopback.cli.where import Where
    from hopback.deadletters.candidates import CandidateList
    from hopback.deadletters.interface import DeadLetters

__all__ = ["add", "answer", "candidates", "forget", "ignore", "list_candidates"]


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
    output(form, found if form == "json" else found.items, lambda: _print(found))


def _print(found: CandidateList) -> None:
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
        words = {CandidateAnswer.ADD: "holds dead letters", CandidateAnswer.IGNORE: "is ignored"}
        click.echo(safe(f"{said.queue} {words[said.answer]}, said {said.by or 'somebody'}"))


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
