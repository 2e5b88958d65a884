"""SQLite in a file: how every connection to it is set up, and a database that needs nothing else.

`SqliteDatabase` needs no extra and loads none: a command that looks once and ends would take longer to load
SQLAlchemy than for everything else.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from hopback.errors import StoreUnavailable
from hopback.private_files import make_private
from hopback.sql.database import NOTHING, RowRefused
from hopback.sql.versions import LATEST, apply_missing, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hopback.clock import Clock
    from hopback.sql.database import Execute, Row, Values

__all__ = ["SqliteDatabase", "make_database_private", "set_up", "sqlite_file"]

T = TypeVar("T")

_BUSY_MS = 10_000
"""How long a writer of SQLite waits for another: far longer than any transaction of ours takes."""
_AGAIN_S = 0.05
"""How long to wait for a process that opens the same new database at this moment."""


def sqlite_file(url: str) -> Path | None:
    """The file that a database URL names; None for another database, and one that is in memory."""
    parts = urlsplit(url)
    plain = parts.scheme.partition("+")[0] == "sqlite" and not (parts.netloc or parts.query)
    name = unquote(parts.path).removeprefix("/")
    return Path(name) if plain and name and name != ":memory:" else None


def make_database_private(file: Path) -> None:
    """Let nobody but its owner read the file, which is made if it is not there.

    SQLite gives what it makes beside a database the rights of the database; what an older process left
    there is tightened, too. What cannot be opened is for SQLite to say.
    """
    with suppress(OSError):
        make_private(file)
        for beside in ("-wal", "-shm"):
            if (left := Path(f"{file}{beside}")).exists():
                make_private(left)


def set_up(execute: Callable[[str], object], wait: Callable[[float], object]) -> None:
    """Written ahead and fully synced, and writers wait for each other; `execute` is a connection's."""
    execute(f"PRAGMA busy_timeout={_BUSY_MS}")
    for left in range(int(_BUSY_MS / 1000 / _AGAIN_S), -1, -1):
        try:
            execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:  # SQLite does not wait for another that does the same
            if not left:
                raise
            wait(_AGAIN_S)
        else:
            break
    execute("PRAGMA synchronous=FULL")


class SqliteDatabase:
    """A file that is opened, and its tables made, by the first work that needs it.

    One thread has the connection, and does one piece of work after another. Who is cancelled while his work
    is done does not learn of it, but it is done as a whole.
    """

    def __init__(self, file: Path, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "hopback-sqlite")
        self._connection: sqlite3.Connection | None = None

    async def write(self, work: Callable[[Execute], T], /) -> T:
        """Do the work in one transaction: all of it, or nothing if it raises."""
        return await self._in_thread(lambda: _transact(self._opened(), work))

    async def read(self, work: Callable[[Execute], T], /) -> T:
        """Do work that changes nothing."""
        return await self._in_thread(lambda: work(_executing(self._opened())))

    async def close(self) -> None:
        """Close the file, when the work in hand is done."""
        try:
            await self._in_thread(self._close)
        finally:
            self._thread.shutdown(wait=False)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        with _store_errors():
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    # --- in the thread

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            make_database_private(self._file)
            # Transactions are ours: the module must not begin one behind our back.
            connection = sqlite3.connect(self._file, isolation_level=None)
            try:
                set_up(connection.execute, time.sleep)
                if version_of(_executing(connection), "sqlite") < LATEST:
                    now = self._clock.now()
                    _transact(connection, lambda one: apply_missing(one, "sqlite", now))
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _transact(connection: sqlite3.Connection, work: Callable[[Execute], T]) -> T:
    connection.execute("BEGIN IMMEDIATE")  # a writer waits for another here, and nowhere else
    try:
        found = work(_executing(connection))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return found


def _executing(connection: sqlite3.Connection) -> Execute:
    def execute(statement: str, values: Values = NOTHING, /) -> list[Row]:
        if isinstance(values, list):
            return connection.executemany(statement, values).fetchall()
        return connection.execute(statement, dict(values)).fetchall()

    return execute


@contextmanager
def _store_errors() -> Iterator[None]:
    """Make a StoreUnavailable of what SQLite says."""
    try:
        yield
    except sqlite3.Error as error:
        kind = RowRefused if isinstance(error, sqlite3.IntegrityError) else StoreUnavailable
        raise kind(f"the database cannot be used: {error}") from error
