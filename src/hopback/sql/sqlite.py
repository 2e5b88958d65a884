"""SQLite databases: in a file (`SqliteDatabase`) and in memory (`MemoryDatabase`).

They use Python's own module, because a short command would take longer to load SQLAlchemy than for all its
other work.
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
"""Seconds that a writer waits for another one. Hopback's transactions take milliseconds. Beyond the limit
the writer fails with "database is locked"."""
_AGAIN_S = 0.05
"""Seconds between two attempts to get the lock: short beside the time that a person notices."""


def sqlite_file(url: str) -> Path | None:
    """Return the file that a database URL names, None for other databases and for one in memory."""
    found = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)", url, re.DOTALL)
    name = "" if found is None else unquote(found[1])
    return Path(name) if name and not name.startswith((":memory:", "file:")) else None


def sqlite_url(file: Path) -> str:
    """Return the database URL of a file."""
    return f"sqlite:///{quote(str(file))}"


def create_database_file(file: Path) -> None:
    """Create a missing database file so that only its owner may read it, before SQLite opens it.

    Existing files are not opened, here and elsewhere: SQLite holds POSIX locks on them, and closing any
    descriptor of a file drops all locks that the process holds on it. The next process to close the
    database would then delete the write-ahead log that this process goes on writing.
    """
    # The lock keeps a second thread from connecting before this one has closed the new file.
    with _CREATING, suppress(OSError):  # SQLite reports the reason when it opens the file
        create_private(file)


def make_database_private(file: Path) -> None:
    """Remove the rights of other users from a database that SQLite accepted, and from its log."""
    for suffix in ("", "-wal", "-shm"):
        with suppress(OSError):
            make_private(Path(f"{file}{suffix}"))


def set_up(execute: Callable[[str], object], wait: Callable[[float], object]) -> None:
    """Configure a connection: write-ahead log, full sync, and writers that wait for each other."""
    execute("PRAGMA busy_timeout=0")  # SQLite itself does not wait while the journal mode changes
    _when_free(lambda: execute("PRAGMA journal_mode=WAL"), wait)
    execute(f"PRAGMA busy_timeout={_BUSY_S * 1000:.0f}")
    execute("PRAGMA synchronous=FULL")


def _when_free(work: Callable[[], T], wait: Callable[[float], object]) -> T:
    """Do the work, and repeat it for up to `_BUSY_S` while another connection has the lock."""
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
    """A database file. The first use opens it and applies missing migrations.

    Reading does not create a missing file. One thread owns the connection and does one transaction at a
    time. A cancelled caller gets no result, but its transaction still completes.
    """

    def __init__(self, file: Path, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "hopback-sqlite")
        self._connection: sqlite3.Connection | None = None
        self._closing = threading.Event()

    async def write(self, work: Callable[[Execute], T], /) -> T:
        """Do the work in one transaction, which is rolled back if the work raises."""
        return await self._in_thread(lambda: self._transact(self._open(), work))

    async def read(self, work: Callable[[Execute], T], /) -> T:
        """Do work that only reads."""
        return await self._in_thread(lambda: self._read(work))

    async def close(self) -> None:
        """Close the file after the current transaction. A transaction that waits for the lock fails."""
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
        return work(_executing(self._open()))

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            create_database_file(self._file)
            # With isolation_level None, Python's module begins no transactions.
            connection = sqlite3.connect(self._file, isolation_level=None)
            try:
                set_up(connection.execute, self._wait)
                make_database_private(self._file)
                # A writer waits in _when_free, which `close` can interrupt.
                connection.execute("PRAGMA busy_timeout=0")
                if version_of(_executing(connection), "sqlite") != LATEST:
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
    """A database in the memory of this process, for stores that need not outlive it."""

    def __init__(self) -> None:
        self._connection: sqlite3.Connection | None = None

    async def write(self, work: Callable[[Execute], T], /) -> T:
        """Do the work in one transaction, which is rolled back if the work raises."""
        with _store_errors():
            connection = self._open()
            connection.execute("BEGIN")
            return _commit(connection, work)

    async def read(self, work: Callable[[Execute], T], /) -> T:
        """Do work that only reads."""
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
    """Do the work in the open transaction, and commit it or roll it back."""
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
    """Name the corrupt file and SQLite's reason."""
    code = getattr(error, "sqlite_errorcode", None)
    doubt = ", or the file is not a database" if code == sqlite3.SQLITE_NOTADB else ""
    return f"the database {file} is damaged{doubt}: {error}"


@contextmanager
def _store_errors(file: Path = Path(":memory:")) -> Iterator[None]:
    """Raise SQLite's errors as StoreUnavailable."""
    try:
        yield
    except sqlite3.Error as error:
        if is_damage(error):
            raise StoreDamaged(damage_text(file, error)) from error
        kind = RowRefused if isinstance(error, sqlite3.IntegrityError) else StoreUnavailable
        raise kind(f"the database cannot be used: {error}") from error
