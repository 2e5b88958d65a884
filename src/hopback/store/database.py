"""The database: SQLite in a file by default, PostgreSQL by URL."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from hopback.errors import HopbackError, StoreUnavailable
from hopback.extras import needs
from hopback.private_files import make_private

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

__all__ = ["DatabaseUrlError", "open_database", "reading", "store_errors", "writing"]

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}
_BUSY_MS = 10_000
_AGAIN_MS = 50
"""How long to wait for a process that opens the same new database at this moment."""


class DatabaseUrlError(HopbackError):
    """The database URL cannot be used."""

    remedy = "Give sqlite:///path/to/file.db or postgresql://user:password@host/database."


def open_database(url: str) -> AsyncEngine:
    """An engine for the URL; nothing is connected yet. Passwords never appear in errors."""
    address = _address(url)
    with needs(
        "store" if address.drivername == _DRIVERS["sqlite"] else "postgres", "this database"
    ):
        engine = create_async_engine(address, pool_pre_ping=True)
    if engine.dialect.name == "sqlite":
        _make_sqlite_safe(engine)
    return engine


@contextmanager
def store_errors() -> Iterator[None]:
    """Make a StoreUnavailable of what SQLAlchemy raises: the driver's words, without the statement."""
    try:
        yield
    except SQLAlchemyError as error:
        said = str(getattr(error, "orig", None) or type(error).__name__).splitlines()
        raise StoreUnavailable(
            f"the database cannot be used: {said[0] if said else type(error).__name__}"
        ) from error


@asynccontextmanager
async def writing(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A transaction; StoreUnavailable if the database does not answer, or refuses."""
    with store_errors():
        async with engine.begin() as connection:
            yield connection


@asynccontextmanager
async def reading(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection to read by; StoreUnavailable if the database does not answer, or refuses."""
    with store_errors():
        async with engine.connect() as connection:
            yield connection


def _address(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise DatabaseUrlError(
            "expected a database URL, got something else (not shown: it may hold a password)"
        ) from None
    driver = _DRIVERS.get(parsed.drivername.partition("+")[0])
    if driver is None:
        raise DatabaseUrlError(f"expected sqlite or postgresql, got {parsed.drivername!r}")
    return parsed.set(drivername=driver)


def _file_of(engine: AsyncEngine) -> Path | None:
    """The file of an SQLite database; None if it is in memory, or named by a URI of its own."""
    name = engine.url.database
    return None if not name or name.startswith((":memory:", "file:")) else Path(name)


def _write_ahead(cursor: Any) -> None:
    """Switch to the write-ahead log. SQLite does not wait for whoever does the same: try again."""
    for left in range(_BUSY_MS // _AGAIN_MS, -1, -1):
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if not left:
                raise
            await_only(asyncio.sleep(_AGAIN_MS / 1000))
        else:
            return


def _make_sqlite_safe(engine: AsyncEngine) -> None:
    """Private to its owner, written ahead, fully synced; a real BEGIN IMMEDIATE lets writers wait."""

    file = _file_of(engine)

    def on_do_connect(*_: object) -> None:
        # SQLite gives what it makes beside a database the rights of the database; what an older
        # process left there is tightened, too. What cannot be opened is for SQLite to say.
        if file is not None:
            with suppress(OSError):
                make_private(file)
                for beside in ("-wal", "-shm"):
                    if (left := Path(f"{file}{beside}")).exists():
                        make_private(left)

    def on_connect(raw: Any, _record: object) -> None:
        raw.isolation_level = None  # the driver must not begin transactions behind our back
        cursor = raw.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        _write_ahead(cursor)
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.close()

    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine.sync_engine, "do_connect", on_do_connect)
    event.listen(engine.sync_engine, "connect", on_connect)
    event.listen(engine.sync_engine, "begin", on_begin)
