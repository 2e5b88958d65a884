"""Questions before an act. They go to stderr; where nobody can answer, an option has to."""

from __future__ import annotations

import sys

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.printing import safe

__all__ = ["ask", "ask_for_name", "ask_for_reason"]


def ask(question: str, *, changes: str = "this changes the broker") -> None:
    """Ask on a terminal; anywhere else nobody could answer."""
    _somebody_there(changes)
    if not click.confirm(safe(question), err=True):
        raise _cancelled()


def ask_for_name(question: str, name: str) -> None:
    """Have a name typed, so that nobody says yes by habit."""
    _somebody_there("this removes messages")
    if click.prompt(safe(question), err=True, default="", show_default=False).strip() != name:
        raise _cancelled()


def ask_for_reason(given: str) -> str:
    """Why it is done: as an option, or typed."""
    if given.strip():
        return given
    if not sys.stdin.isatty():
        raise CommandFailed(
            "expected a reason", do="Say --reason 'why'; it is kept in the audit.", code=Exit.USAGE
        )
    return str(click.prompt("Reason", err=True))


def _somebody_there(changes: str) -> None:
    if not sys.stdin.isatty():
        raise CommandFailed(
            f"{changes} and nobody is there to be asked",
            do="Say --yes if it is meant, or --dry-run to see the plan.",
            code=Exit.USAGE,
        )


def _cancelled() -> CommandFailed:
    return CommandFailed(
        "cancelled; nothing was changed", do="Run it again to apply.", code=Exit.CANCELLED
    )
