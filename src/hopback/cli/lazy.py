"""Command groups that load a command only when it is called.

The table holds each command's place and its line of help, so that `--help` imports none of them;
a test compares the lines with the commands' own.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LazyCommand", "LazyGroup"]


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a command lives (`module:attribute`) and what help says of it."""

    place: str
    help: str

    def load(self) -> click.Command:
        """Import it now."""
        module, attribute = self.place.split(":")
        return cast("click.Command", getattr(import_module(module), attribute))


class LazyGroup(click.Group):
    """A group whose commands are given as a table of `LazyCommand`."""

    def __init__(self, *, table: Mapping[str, LazyCommand], **attributes: object) -> None:
        super().__init__(**attributes)  # type: ignore[arg-type]
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the table's order: it is the order in which one learns them."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load the command that is called."""
        found = self.table.get(cmd_name)
        return None if found is None else found.load()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Help from the table, so that nothing is imported for it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in self.table.items()])
