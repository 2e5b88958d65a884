"""The commands `hopback dlq export` and `import`, which write messages to a file and publish them again."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import aclosing, contextmanager
from pathlib import Path
from shutil import copyfileobj
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import WholeNumber, limit_option
from hopback.cli.terminal import ask, details, on_terminal
from hopback.ops.cli.access import (
    OpsAccess,
    access_options,
    dead_letter_command,
    with_dead_letters,
)
from hopback.ops.cli.dlq import (
    explain_refusals,
    filter_option,
    lift_if_needed,
    look_options,
    queue_argument,
)
from hopback.ops.cli.dlq_print import form_option, output
from hopback.ops.cli.job_options import rate_option
from hopback.ops.contract.requests import Pace, Selection
from hopback.text import count_of
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator

    from hopback.ops.contract.interface import DeadLetters

# bytes per write, which keeps the number of calls low and limits the loss if one fails
_AT_ONCE = 1 << 20


@click.command(short_help="Export messages to a file. No message is removed.")
@queue_argument
@click.option(
    "--to",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="New file (.zst compresses). Default: stdout.",
)
@filter_option
@limit_option("Only the first N messages. Default: all.")
@look_options
@dead_letter_command
async def export(
    dead_letters: DeadLetters,
    queue: str,
    path: Path | None,
    terms: str,
    limit: int | None,
    lift: bool,
    force: bool,
) -> None:
    """Export the messages of QUEUE as lines of JSON, with exact bytes and types. No message is removed."""
    with explain_refusals(queue):
        if lift:
            await lift_if_needed(dead_letters, queue)
        selection = Selection(limit=limit, filter=terms)
        async with aclosing(dead_letters.export(queue, selection, force=force)) as lines:
            count = await (_to_stdout(lines) if path is None else _to_file(lines, path))
    to = "" if path is None else f" to {path}"
    click.echo(safe(f"Exported {count_of(count)}{to}."), err=True)


async def _to_stdout(lines: AsyncGenerator[bytes, None]) -> int:
    """Print the lines, which only contain ASCII without control characters. A closed pipe ends the
    export.
    """
    count = 0
    async for line in lines:
        text = safe(line.decode().rstrip("\n")) if on_terminal() else line
        click.echo(text, nl=on_terminal())
        count += 1
    return count


async def _to_file(lines: AsyncGenerator[bytes, None], path: Path) -> int:
    from hopback.ops.messages.archive import FileSink

    sink, waiting, count = FileSink(path), bytearray(), 0
    try:
        async for line in lines:
            waiting += line
            count += 1
            if len(waiting) >= _AT_ONCE:
                await sink.write(bytes(waiting))
                waiting.clear()
        await sink.write(bytes(waiting))
    except FileExistsError as error:
        raise CommandFailed(
            f"{path} exists, and an export does not overwrite files",
            do="Name another file with --to, or move the existing one.",
            code=Exit.CONFLICT,
        ) from error
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        await sink.close()
    return count


def _unwritable(path: Path, error: OSError) -> CommandFailed:
    return CommandFailed(
        f"{path} cannot be used: {error.strerror or error}", do="Name another file."
    )


@click.command(name="import", short_help="Publish exported messages again.")
@click.argument(
    "path", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path)
)
@click.option("--to", "queue", metavar="QUEUE", help="Target queue instead of the original ones.")
@rate_option
@click.option(
    "--skip",
    type=WholeNumber(min=0),
    default=0,
    metavar="N",
    help="Skip the first N lines.",
)
@click.option("--reason", default="", metavar="TEXT", help="Reason for the audit.")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@click.option("--dry-run", is_flag=True, help="Check the file, show its contents and stop.")
@access_options
@form_option
def import_(
    path: Path,
    queue: str | None,
    rate: float | None,
    skip: int,
    reason: str,
    yes: bool,
    dry_run: bool,
    form: str,
    access: OpsAccess,
) -> int:
    """Publish the messages of FILE, written by `export` or `discard`, into their original queues.

    The whole file is checked before the first message is sent. `-` is stdin. An error names the invalid
    line.
    """
    with _file(path) as file:
        found = asyncio.run(_contents(file, queue, skip))
        plan = {"file": str(path), "messages": found.total(), "queues": dict(found)}
        if dry_run:
            output(form, plan, lambda: _print_contents(path, found))
            return Exit.OK
        if form == "table":
            _print_contents(path, found, err=True)
        if not yes and found:
            ask(f"Import {count_of(found.total())}?", changes="this publishes messages")
        done = with_dead_letters(
            access,
            lambda dead_letters: dead_letters.import_lines(
                _lines(file, skip), queue=queue, pace=Pace(rate), reason=reason or "import"
            ),
        )
    result = {**plan, "published": done.published, "lines": done.lines, "problem": done.problem}
    output(form, result, lambda: click.echo(f"Imported {count_of(done.published)}."))
    if done.problem:
        raise CommandFailed(
            f"stopped after {count_of(done.published)}: {done.problem}",
            do=f"Correct that and continue with --skip {skip + done.lines}.",
            code=Exit.PARTIAL if done.published else Exit.FAILED,
        )
    return Exit.OK


@contextmanager
def _file(path: Path) -> Iterator[Path]:
    """Yield the file. Input from stdin is first copied to a temporary file, because it is read twice."""
    if str(path) != "-":
        yield path
        return
    with NamedTemporaryFile(suffix=".ndjson") as spooled:
        copyfileobj(sys.stdin.buffer, spooled)
        spooled.flush()
        yield Path(spooled.name)


def _print_contents(path: Path, found: Counter[str], *, err: bool = False) -> None:
    pairs = [("file", str(path)), ("messages", f"{found.total():,}")]
    pairs += [("into", f"{queue}: {count:,}") for queue, count in found.most_common()]
    details(pairs, err=err)


async def _contents(path: Path, queue: str | None, skip: int) -> Counter[str]:
    """Count the messages in a file by target queue. Raises BadLine if a line is invalid."""
    from hopback.ops.messages.archive import read_line

    found: Counter[str] = Counter()
    number = skip
    async for line in _lines(path, skip):
        number += 1
        if line.strip():
            archived = read_line(line, where=f"{path}, line {number},")
            found[queue or archived.queue] += 1
    return found


async def _lines(path: Path, skip: int) -> AsyncIterator[bytes]:
    from hopback.ops.messages.archive import read_lines

    number = 0
    try:
        async for line in read_lines(path):
            number += 1
            if number > skip:
                yield line
    except FileNotFoundError as error:
        raise CommandFailed(
            f"file {str(path)!r} does not exist",
            do="Name the file of an export.",
            code=Exit.NOT_FOUND,
        ) from error
    except OSError as error:
        raise _unwritable(path, error) from error
