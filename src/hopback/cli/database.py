"""The databases of a command: that of inbox and outbox, and the one where jobs and audit are kept."""

from __future__ import annotations

import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.errors import StoreUnavailable
from hopback.private_files import private_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.clock import Clock
    from hopback.deadletters.alert_book import AlertBook
    from hopback.deadletters.journal import Journal

__all__ = [
    "IN_MEMORY",
    "alert_book",
    "database",
    "database_errors",
    "database_option",
    "journal",
    "late_journal",
    "sql_journal",
    "state_folder",
    "unreachable",
]

IN_MEMORY = "memory"
"""The store that ends with the process: nothing can be resumed, nothing is audited."""

database_option = click.option(
    "--database",
    "url",
    envvar="HOPBACK_DATABASE",
    required=True,
    metavar="URL",
    help="sqlite:///file.db or postgresql://user:password@host/name; also HOPBACK_DATABASE.",
)


@asynccontextmanager
async def database(url: str) -> AsyncIterator[AsyncEngine]:
    """An engine, closed at the end; nothing is connected yet. What SQL refuses is a CommandFailed."""
    from hopback.store import open_database

    engine = open_database(url)
    if engine.dialect.name == "sqlite" and not _is_usable(Path(engine.url.database or ":memory:")):
        raise unreachable(OSError("unable to open database file"))
    try:
        with database_errors():
            yield engine
    finally:
        await engine.dispose()


def _is_usable(file: Path) -> bool:
    """Asked before the driver is: its thread would outlive a failure and speak to a closed loop."""
    if file.exists():
        return file.is_file() and os.access(file, os.R_OK | os.W_OK)
    return file.parent.is_dir() and os.access(file.parent, os.W_OK)


@contextmanager
def database_errors(*connecting: type[Exception]) -> Iterator[None]:
    """Make a CommandFailed of what the database refuses, and while one connects of what sockets do."""
    from hopback.store.database import store_errors

    failures: tuple[type[Exception], ...] = (StoreUnavailable, *connecting)
    try:
        with store_errors():
            yield
    except failures as error:
        raise unreachable(error) from error


def unreachable(error: Exception) -> CommandFailed:
    """What the database, or the way to it, said; never the statement, nor the password."""
    said = (str(error).splitlines() or [type(error).__name__])[0]
    return CommandFailed(
        said if isinstance(error, StoreUnavailable) else f"the database cannot be used: {said}",
        do="Check address, credentials and that the database exists.",
        code=Exit.UNREACHABLE,
    )


@asynccontextmanager
async def journal(url: str | None, clock: Clock, *, lease: float = 30.0) -> AsyncIterator[Journal]:
    """The journal at that URL, or in the user's own file; its tables are made if they are missing.

    Without the extra `store`, and where the user's own file cannot be made, it is kept in memory.
    """
    from hopback.deadletters.journal import MemoryJournal

    address = url or _own_file()
    if address is None or address == IN_MEMORY:
        yield MemoryJournal()
        return
    async with sql_journal(address, clock, lease=lease) as found:
        yield found


@asynccontextmanager
async def sql_journal(address: str, clock: Clock, *, lease: float = 30.0) -> AsyncIterator[Journal]:
    """The journal in that database."""
    from hopback.store import migrate

    async with database(address) as engine:
        from hopback.deadletters.journal_sql import SqlJournal

        with database_errors(OSError):
            await migrate(engine, clock)
        yield SqlJournal(engine, clock, lease=lease)


def alert_book(kept: Journal) -> AlertBook | None:
    """Alerts are kept where jobs and audit are, if that is a database."""
    engine = getattr(kept, "engine", None)
    if engine is None:
        return None
    from hopback.store.alerts import AlertTable

    return AlertTable(engine)


@asynccontextmanager
async def late_journal(url: str | None, clock: Clock) -> AsyncIterator[Journal]:
    """The same journal as `journal` gives, opened when it is needed: for what looks once and ends."""
    from hopback.deadletters.journal import MemoryJournal

    address = url or _own_file()
    if address is None or address == IN_MEMORY:
        yield MemoryJournal()
        return
    from hopback.cli.late_journal import LateJournal, sqlite_file

    async with AsyncExitStack() as stack:
        file = sqlite_file(address)
        late = LateJournal(file, lambda: sql_journal(address, clock), stack, clock)
        yield cast("Journal", late)


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
