"""The output and the prompts of commands.

Data is printed to stdout, as tables if it is a terminal. Names come from files and brokers and may
contain terminal escape sequences, so all text is passed through `safe` (for names within a line) or
`safe_lines` (for text with several lines). JSON contains all characters in escaped form. Prompts
are printed to stderr. If there is no terminal, an option must provide the answer.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from textwrap import fill
from typing import TYPE_CHECKING

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.text import escape_unsafe, safe_lines
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


_READABLE_COLUMNS = 96  # fits on a terminal with 100 columns
_NARROWEST_TEXT = 14  # columns; enough for two words per line
_BETWEEN_COLUMNS = 3  # columns; the same as in drawn tables
_STYLES = {"error": "bold red", "warning": "yellow", "info": "blue"}


_MOMENT = re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z")


def clock_text(text: str, *, day: bool = True) -> str:
    """Make timestamps in a text readable. The result contains the time zone."""
    return _MOMENT.sub(r"\1 \2 UTC" if day else r"\2 UTC", text)


def json_text(data: object) -> str:
    """Format data as indented JSON. Control characters are escaped."""
    text = json.dumps(data, ensure_ascii=False, indent=2)
    return "\n".join(map(escape_unsafe, text.split("\n")))


def json_line(data: object) -> str:
    """Format data as JSON on one line, without a newline at the end. Control characters are
    escaped.
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return escape_unsafe(text)


def document(text: str) -> None:
    """Print a document. On a terminal, unsafe characters are escaped. In a file or a pipe, the
    document is unchanged.
    """
    shown = safe_lines(text) if on_terminal() else text
    click.echo(shown, nl=not shown.endswith("\n"))


def on_terminal(*, err: bool = False) -> bool:
    """Return True if stdout (or stderr) is a terminal."""
    return (sys.stderr if err else sys.stdout).isatty()


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    keep: Collection[str] = (),
    err: bool = False,
) -> None:
    """Print a table. On a terminal it is drawn with colours, otherwise it has aligned plain
    columns.

    Columns in `right` contain numbers and are right-aligned. The first column and those in `keep`
    contain names that users need for other commands, so they are not folded. If the terminal is too
    narrow, each row is printed as a list. `err` prints to stderr.
    """
    if not on_terminal(err=err):
        lines = [[name.upper() for name in columns]]
        lines += [[safe(cell) for cell in row] for row in rows]
        widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
        for line in lines:
            padded = (
                cell.rjust(width) if name in right else cell.ljust(width)
                for name, cell, width in zip(columns, line, widths, strict=True)
            )
            click.echo("  ".join(padded).rstrip(), err=err)
        return
    shown = [[safe_lines(cell) for cell in row] for row in rows]
    whole = {columns[0], *keep, *right} if columns else set()
    # Compute the minimum width. Names are not folded, and texts are folded to a few words.
    most = ((name, _longest(shown, place)) for place, name in enumerate(columns))
    least = (
        max(len(name), longest if name in whole else min(longest, _NARROWEST_TEXT))
        for name, longest in most
    )
    if sum(least) + _BETWEEN_COLUMNS * len(columns) <= shutil.get_terminal_size().columns:
        _draw(columns, shown, right, whole, err)
    else:
        _list(columns, shown, err)


def gap(*, err: bool = False) -> None:
    """Print a blank line between a text and a table. Drawn tables already contain one."""
    if not on_terminal(err=err):
        click.echo(err=err)


def details(pairs: Iterable[tuple[str, str]], *, err: bool = False) -> None:
    """Print pairs of names and values, one below the other. Further lines of a value are indented."""
    shown = [(name, safe_lines(value).split("\n")) for name, value in pairs]
    width = max((len(name) for name, _ in shown), default=0)
    for name, (first, *rest) in shown:
        click.echo(f"{name.ljust(width)}  {first}".rstrip(), err=err)
        for line in rest:
            click.echo(f"{' ' * width}  {line}".rstrip(), err=err)


def _longest(rows: list[list[str]], place: int) -> int:
    return max((len(line) for row in rows for line in row[place].split("\n")), default=0)


def _draw(
    columns: Sequence[str],
    rows: list[list[str]],
    right: Collection[str],
    whole: Collection[str],
    err: bool,
) -> None:
    """Draw a table with rich. This is the only function that imports it."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # If NO_COLOR is empty, it counts as unset, see https://no-color.org.
    console = Console(no_color=bool(os.environ.get("NO_COLOR")), stderr=err)
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(columns):
        # Cells are never truncated, because users need to copy complete names.
        drawn.add_column(
            name,
            justify="right" if name in right else "left",
            overflow="fold",
            no_wrap=name in whole,
            min_width=_longest(rows, place) if name in whole else None,
        )
    for row in rows:
        # Only style the column of severities, in case that a queue is called like one.
        styles = (_STYLES if name == "severity" else {} for name in columns)
        cells = zip(row, styles, strict=True)
        drawn.add_row(*(Text(cell, style=known.get(cell, "")) for cell, known in cells))
    console.print(drawn)


def _list(columns: Sequence[str], rows: list[list[str]], err: bool) -> None:
    """Print each row as a list of its cells. They are indented and folded between words."""
    width = max(map(len, columns[1:]), default=0)
    room = max(shutil.get_terminal_size().columns - 1, width + _NARROWEST_TEXT)
    for row in rows:
        click.secho(row[0], bold=True, err=err)
        for name, cell in zip(columns[1:], row[1:], strict=True):
            if cell:
                first, rest = f"  {name.ljust(width)}  ", " " * (width + 4)
                message = fill(
                    cell,
                    room,
                    initial_indent=first,
                    subsequent_indent=rest,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
                click.echo(message, err=err)
    click.echo(err=err)


def wrap_text(text: str, margin: str = "") -> str:
    """Wrap text to a readable width. Words are not broken, so that names can be searched."""
    return fill(
        safe(text),
        _READABLE_COLUMNS,
        initial_indent=margin,
        subsequent_indent=margin or "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def ask(question: str, *, changes: str = "this changes the broker") -> None:
    """Ask for confirmation. Fails if there is no terminal."""
    _require_terminal(changes)
    if not click.confirm(safe(question), err=True):
        raise _cancellation()


def ask_for_name(question: str, name: str) -> None:
    """Ask the user to type a name, so that the action is not confirmed by mistake."""
    _require_terminal("this removes messages")
    if click.prompt(safe(question), err=True, default="", show_default=False).strip() != name:
        raise _cancellation()


def ask_for_reason(given: str) -> str:
    """Return the reason from the option. If it is empty, ask for it."""
    if given.strip():
        return given
    if not sys.stdin.isatty():
        raise CommandFailed(
            "expected a reason", do="Add --reason 'why'. The audit records it.", code=Exit.USAGE
        )
    return str(click.prompt("Reason", err=True))


def _require_terminal(changes: str) -> None:
    if not sys.stdin.isatty():
        raise CommandFailed(
            f"{changes}, and there is no terminal for the confirmation",
            do="Add --yes to confirm, or --dry-run to see the plan.",
            code=Exit.USAGE,
        )


def _cancellation() -> CommandFailed:
    return CommandFailed(
        "cancelled without changes", do="Run it again to apply.", code=Exit.CANCELLED
    )
