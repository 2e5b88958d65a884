"""SQLite databases in a file or in memory.

This module uses `sqlite3`, because importing SQLAlchemy would slow down short commands.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote

from hopback.errors import StoreDamaged, StoreUnavailable
from hopback.private_files import create_private, make_private
from hopback.sql.database import NOTHING, Execute, Row, RowRefused, Values, is_damage
from hopback.sql.versions import LATEST, apply_missing, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hopback.clock import Clock

T = TypeVar("T")

_CREATING = threading.Lock()
_BUSY_S = 10.0
"""How long a writer waits for the lock, in seconds. After that it fails with "database is locked"."""
_AGAIN_S = 0.05
"""Seconds between attempts to get the lock."""


def sqlite_file(url: str) -> Path | None:
    """Return the file of an SQLite URL. Returns None for other databases and in-memory databases."""
    found = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)", url, re.DOTALL)
    name = "" if found is None else unquote(found[1])
    return Path(name) if name and not name.startswith((":memory:", "file:")) else None


def sqlite_url(file: Path) -> str:
    """Return the URL of a database file."""
    return f"sqlite:///{quote(str(file))}"


def create_database_file(file: Path) -> None:
    """Create a database file with mode 0600 if it does not exist.

    Existing files are not opened, because closing a file would release all POSIX locks of this
    process. Another process could then delete the write-ahead log while it is in use.
    """
    # The lock prevents another thread from connecting before the file is closed.
    with _CREATING, suppress(OSError):  # SQLite reports the error when it opens the file
        create_private(file)


def make_database_private(file: Path) -> None:
    """Remove permissions of other users from a database and its log."""
    for suffix in ("", "-wal", "-shm"):
        with suppress(OSError):
            make_private(Path(f"{file}{suffix}"))


def set_up(execute: Callable[[str], object], wait: Callable[[float], object]) -> None:
    """Configure a connection to use a write-ahead log, full sync and a busy timeout."""
    execute("PRAGMA busy_timeout=0")  # SQLite ignores the timeout when changing the journal mode
    _when_free(lambda: execute("PRAGMA journal_mode=WAL"), wait)
    execute(f"PRAGMA busy_timeout={_BUSY_S * 1000:.0f}")
    execute("PRAGMA synchronous=FULL")


def _when_free(work: Callable[[], T], wait: Callable[[float], object]) -> T:
    """Call `work`, and retry for up to `_BUSY_S` while the database is locked."""
    until = time.monotonic() + _BUSY_S
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not is_busy or time.monotonic() > until:
                raise
            wait(_AGAIN_S)


class SqliteDatabase:
    """An SQLite database file. It is opened and migrated on first use.

    Reading does not create the file. The connection is used by a single thread, one transaction at
    a time. If a caller is cancelled, its transaction still completes.
    """

    def __init__(self, file: Path, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "hopback-sqlite")
        self._connection: sqlite3.Connection | None = None
        self._closing = threading.Event()

    async def write(self, work: Callable[[Execute], T], /) -> T:
        """Call `work` in a transaction. The transaction is rolled back if it raises an exception."""
        return await self._in_thread(lambda: self._transact(self._open(), work))

    async def read(self, work: Callable[[Execute], T], /) -> T:
        """Call `work` for reading."""
        return await self._in_thread(lambda: self._read(work))

    async def close(self) -> None:
        """Close the database after the current transaction."""
        if not self._closing.is_set():
            self._closing.set()
            ending = asyncio.get_running_loop().run_in_executor(self._thread, self._close)
            self._thread.shutdown(wait=False)
            await asyncio.shield(ending)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._closing.is_set():
            raise StoreUnavailable(f"the database cannot be used: {self._file} was closed")
        with _store_errors(self._file):
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _read(self, work: Callable[[Execute], T]) -> T:
        if self._connection is None and not self._file.exists() and self._file.parent.is_dir():
            with closing(_open_memory(self._clock.now())) as empty:
                return work(_executing(empty))
        connection = self._open()
        return _when_free(lambda: work(_executing(connection)), self._wait)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            create_database_file(self._file)
            # Disable implicit transactions.
            connection = sqlite3.connect(self._file, isolation_level=None)
            try:
                set_up(connection.execute, self._wait)
                make_database_private(self._file)
                # `_when_free` waits instead, so that `close` can interrupt it.
                connection.execute("PRAGMA busy_timeout=0")
                # Even reading fails for a moment while another process opens or closes the database.
                execute = _executing(connection)
                if _when_free(lambda: version_of(execute, "sqlite"), self._wait) != LATEST:
                    now = self._clock.now()
                    self._transact(connection, lambda run: apply_missing(run, "sqlite", now))
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _transact(self, connection: sqlite3.Connection, work: Callable[[Execute], T]) -> T:
        _when_free(lambda: connection.execute("BEGIN IMMEDIATE"), self._wait)
        return _commit(connection, work)

    def _wait(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise sqlite3.InterfaceError(f"{self._file} was closed")

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class MemoryDatabase:
    """An in-memory database."""

    def __init__(self) -> None:
        self._connection: sqlite3.Connection | None = None

    async def write(self, work: Callable[[Execute], T], /) -> T:
        """Call `work` in a transaction. The transaction is rolled back if it raises an exception."""
        with _store_errors():
            connection = self._open()
            connection.execute("BEGIN")
            return _commit(connection, work)

    async def read(self, work: Callable[[Execute], T], /) -> T:
        """Call `work` for reading."""
        with _store_errors():
            return work(_executing(self._open()))

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = _open_memory(0.0)
            weakref.finalize(self, self._connection.close)
        return self._connection


def _open_memory(now: float) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    apply_missing(_executing(connection), "sqlite", now)
    return connection


def _commit(connection: sqlite3.Connection, work: Callable[[Execute], T]) -> T:
    """Call `work`, and commit or roll back the transaction."""
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


def damage_text(file: Path, error: BaseException) -> str:
    """Return the error message for a corrupt database."""
    code = getattr(error, "sqlite_errorcode", None)
    doubt = ", or the file is not a database" if code == sqlite3.SQLITE_NOTADB else ""
    return f"the database {file} is damaged{doubt}: {error}"


@contextmanager
def _store_errors(file: Path = Path(":memory:")) -> Iterator[None]:
    """Convert SQLite errors to StoreUnavailable."""
    try:
        yield
    except sqlite3.Error as error:
        if is_damage(error):
            raise StoreDamaged(damage_text(file, error)) from error
        kind = RowRefused if isinstance(error, sqlite3.IntegrityError) else StoreUnavailable
        raise kind(f"the database cannot be used: {error}") from error
