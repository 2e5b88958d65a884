"""The commands `hopback dlq candidates`, `add`, `ignore` and `forget`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hopback.cli.terminal import table
from hopback.ops.cli.access import dead_letter_command
from hopback.ops.cli.dlq_print import form_option, output
from hopback.ops.contract.candidates import CandidateAnswer, QueueAnswer
from hopback.text import count_of
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from hopback.ops.contract.interface import DeadLetters


@click.command(short_help="List queues that may contain dead letters.")
@dead_letter_command
@form_option
async def candidates(dead_letters: DeadLetters, form: str) -> None:
    """List queues with messages and without a consumer that may contain dead letters.

    `hopback dlq add QUEUE` declares that a queue contains dead letters, `hopback dlq ignore QUEUE` that it
    does not.
    """
    found = await dead_letters.candidates()

    def in_words() -> None:
        if not found.items:
            click.echo("No candidates.")
        else:
            rows = [
                (one.queue, f"{one.messages:,}", "by its name" if one.is_likely else "")
                for one in found.items
            ]
            table(("queue", "messages", "likely"), rows, right=("messages",))
            click.echo(
                f"{count_of(found.messages)} in {count_of(found.total, 'queue')} without a consumer may be"
                " dead letters. Answer with `hopback dlq add QUEUE` or `hopback dlq ignore QUEUE`."
            )
        for one in found.answers:
            words = {
                CandidateAnswer.ADD: "contains dead letters",
                CandidateAnswer.IGNORE: "is ignored",
            }
            author = f" (declared by {one.by})" if one.by else ""
            click.echo(safe(f"{one.queue} {words[one.answer]}{author}"))

    output(form, found if form == "json" else found.items, in_words)


_reason = click.option("--reason", default="", metavar="TEXT", help="Reason for the audit.")


@click.command(short_help="Declare that a queue contains dead letters.")
@click.argument("queue")
@click.option(
    "--origin", default="", metavar="QUEUE", help="The queue in which its messages failed."
)
@_reason
@dead_letter_command
async def add(dead_letters: DeadLetters, queue: str, origin: str, reason: str) -> None:
    """Declare that QUEUE contains dead letters, so that it is listed and can be browsed."""
    answer = QueueAnswer(queue, CandidateAnswer.ADD, origin, reason=reason)
    await dead_letters.answer_candidate(answer)
    click.echo(safe(f"{queue} is a dead-letter queue now."))


@click.command(short_help="Declare that a queue contains no dead letters.")
@click.argument("queue")
@_reason
@dead_letter_command
async def ignore(dead_letters: DeadLetters, queue: str, reason: str) -> None:
    """Declare that QUEUE contains no dead letters, so that it is not listed as a candidate."""
    answer = QueueAnswer(queue, CandidateAnswer.IGNORE, reason=reason)
    await dead_letters.answer_candidate(answer)
    click.echo(safe(f"{queue} is ignored from now on."))


@click.command(short_help="Withdraw the declaration about a queue.")
@click.argument("queue")
@_reason
@dead_letter_command
async def forget(dead_letters: DeadLetters, queue: str, reason: str) -> None:
    """Withdraw the declaration about QUEUE. The topology of the broker decides again."""
    answer = QueueAnswer(queue, CandidateAnswer.FORGET, reason=reason)
    await dead_letters.answer_candidate(answer)
    click.echo(safe(f"{queue} is classified by the broker's topology again."))
