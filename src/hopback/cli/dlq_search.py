"""`hopback dlq search`: find messages by what they hold, through whole queues."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from hopback.cli.dlq import refusals_explained
from hopback.cli.dlq_print import count_of, form_option, output, told_search
from hopback.cli.exits import Exit
from hopback.cli.terminal import safe, table
from hopback.cli.where import complete_queue, where_options, with_dead_letters
from hopback.deadletters.search import SearchRequest

if TYPE_CHECKING:
    from hopback.cli.where import Where
    from hopback.deadletters.interface import DeadLetters
    from hopback.deadletters.search import SearchHit, SearchProgress

__all__ = ["search", "search_messages"]


@click.command(short_help="Find messages by what they hold, in one queue or in all.")
@click.argument("terms", nargs=-1, required=True, metavar="WORD...")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    shell_complete=complete_queue,
    help="Only in this queue; may be repeated. By default in all that can be looked into without harm.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    metavar="N",
    help="Show so many; all that match are counted.",
)
@click.option("--force", "forced", is_flag=True, help="Look even if that could lose messages.")
@where_options
@form_option
def search(
    terms: tuple[str, ...],
    queues: tuple[str, ...],
    limit: int,
    forced: bool,
    form: str,
    where: Where,
) -> int:
    """Find the messages that have every WORD, in body, headers or key; a WORD may be a filter term, too.

    Whole queues are read, also packed bodies (gzip, zstd); nothing is changed, and all is given back in
    order. Ctrl-C cancels. Leaves with 5 if nothing matches.
    """
    # What a shell has unquoted is one text: it is quoted again unless it is a term.
    text = " ".join(f'"{term}"' if " " in term and ":" not in term else term for term in terms)
    request = SearchRequest(text, queues, limit, forced)
    found = with_dead_letters(
        where, lambda dead_letters: search_messages(dead_letters, request, form)
    )
    return Exit.OK if found else Exit.NOT_FOUND


async def search_messages(dead_letters: DeadLetters, request: SearchRequest, form: str) -> int:
    """Print what is found as it is found, and at the end how much was looked at; how many match."""
    hits: list[SearchHit] = []
    last: SearchProgress | None = None
    with refusals_explained(request.queues[0] if request.queues else "QUEUE"):
        async with aclosing(told_search(dead_letters.search(request))) as progress:
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
                (one.queue, one.id, one.error, hit.excerpt or one.error_message)
                for hit in hits
                for one in (hit.dead_letter,)
            ]
            table(("queue", "id", "error", "text"), rows)
        shown = "" if len(hits) == last.matching else f" (the first {len(hits):,} are shown)"
        click.echo(f"{last.matching:,} of {count_of(last.seen)} match{shown}.")
        if last.not_looked_into:
            click.echo(f"{count_of(last.not_looked_into)} too large to be searched to the end.")
        for one in last.skipped:
            click.echo(safe(f"Not searched: {one.queue}: {one.reason}"))
        if hits:
            first = hits[0].dead_letter
            click.echo(safe(f"`hopback dlq get {first.queue} {first.id}` shows one of them."))
    return 0 if last is None else last.matching
