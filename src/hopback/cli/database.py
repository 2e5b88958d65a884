"""The databases of a command: that of inbox and outbox, and the one where jobs and audit are kept."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.private_files import private_folder

if TYPE_CHECKING:
    from contextlib import AsyncExitStack
    from types import ModuleType

    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.clock import Clock
    from hopback.deadletters.journal import Journal

__all__ = [
    "IN_MEMORY",
    "database_failures",
    "database_option",
    "open_journal",
    "opened",
    "state_folder",
    "store_package",
    "unreachable",
]

database_option = click.option(
    "--database",
    envvar="HOPBACK_DATABASE",
    required=True,
    metavar="URL",
    help="sqlite:///file.db or postgresql://user:password@host/name; also HOPBACK_DATABASE.",
)


def store_package() -> ModuleType:
    """`hopback.store`, loaded when it is first asked for."""
    from hopback import store

    return store


def opened(url: str) -> AsyncEngine:
    """An engine; nothing is connected yet. A file that cannot be opened is told at once."""
    engine: AsyncEngine = store_package().open_database(url)
    if engine.dialect.name == "sqlite" and not _is_usable(Path(engine.url.database or ":memory:")):
        raise unreachable(OSError("unable to open database file"))
    return engine


def _is_usable(file: Path) -> bool:
    """Asked before the driver is: its thread would outlive a failure and speak to a closed loop."""
    if file.exists():
        return file.is_file() and os.access(file, os.R_OK | os.W_OK)
    return file.parent.is_dir() and os.access(file.parent, os.W_OK)


def database_failures() -> tuple[type[Exception], ...]:
    """What a database says when it cannot be used; SQLAlchemy is loaded when this is asked."""
    from sqlalchemy.exc import SQLAlchemyError

    return (SQLAlchemyError, OSError)


def unreachable(error: Exception) -> CommandFailed:
    """The driver's own words, without the statement; they never hold the password."""
    said = str(getattr(error, "orig", None) or error).splitlines()
    return CommandFailed(
        f"the database cannot be used: {said[0] if said else type(error).__name__}",
        do="Check address, credentials and that the database exists.",
        code=Exit.UNREACHABLE,
    )


IN_MEMORY = "memory"
"""The store that ends with the process: nothing can be resumed, nothing is audited."""


def state_folder() -> Path:
    """The folder for what a user's commands remember, as the platform has it."""
    home = Path.home()
    if sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        root = home / "Library" / "Application Support"
    else:
        root = Path(os.environ.get("XDG_STATE_HOME") or home / ".local" / "state")
    return root / "hopback"


async def open_journal(url: str | None, clock: Clock, stack: AsyncExitStack) -> Journal:
    """The journal at that URL, or in the user's own file; its tables are made if they are missing.

    Without the extra `store`, and where the user's own file cannot be made, it is kept in memory.
    """
    from hopback.deadletters.journal import MemoryJournal

    address = url or _own_file()
    if address is None or address == IN_MEMORY:
        return MemoryJournal()
    engine = opened(address)
    stack.push_async_callback(engine.dispose)
    try:
        await store_package().migrate(engine, clock)
    except database_failures() as error:
        raise unreachable(error) from error
    from hopback.deadletters.sql_journal import SqlJournal

    return SqlJournal(engine, clock)


def _own_file() -> str | None:
    """The URL of the user's own file, in a folder that nobody else reads; None if it cannot be."""
    if find_spec("sqlalchemy") is None or find_spec("aiosqlite") is None:
        return None
    folder = state_folder()
    try:
        private_folder(folder)
    except OSError:
        return None
    return f"sqlite:///{folder / 'jobs.db'}" if os.access(folder, os.W_OK) else None
