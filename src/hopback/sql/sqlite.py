"""SQLite in a file: how every connection to it is set up, and a database that needs nothing else.

`SqliteDatabase` needs no extra and loads none: a command that looks once and ends would take longer to load
SQLAlchemy than for everything else.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
import time
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
"""How long a writer of SQLite waits for another: far longer than any transaction of ours takes."""
_AGAIN_S = 0.05
"""How long to wait before SQLite is asked once more whether it is free."""


def sqlite_file(url: str) -> Path | None:
    """The file that a database URL names; None for another database, and one that is in memory."""
    found = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)", url, re.DOTALL)
    name = "" if found is None else unquote(found[1])
    return Path(name) if name and not name.startswith((":memory:", "file:")) else None


def sqlite_url(file: Path) -> str:
    """The URL that names this file."""
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
    """Written ahead and fully synced, and writers wait for each other; `execute` is a connection's."""
    execute("PRAGMA busy_timeout=0")  # whoever opens the file at this moment is waited for here
    _when_free(lambda: execute("PRAGMA journal_mode=WAL"), wait)
    execute(f"PRAGMA busy_timeout={_BUSY_S * 1000:.0f}")
    execute("PRAGMA synchronous=FULL")


def _when_free(work: Callable[[], T], wait: Callable[[float], object]) -> T:
    """Do it, again and again for as long as another holds the file and it is not too long."""
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
    """A file that is opened, and its tables made, by the first work that needs it.

    To read what is not there does not make it. One thread has the connection, and does one piece of work
    after another. Who is cancelled while his work is done does not learn of it, but it is done as a whole.
    """

    def __init__(self, file: Path, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "hopback-sqlite")
        self._connection: sqlite3.Connection | None = None
        self._closing = threading.Event()

    async def write(self, work: Callable[[Execute], T], /) -> T:
        """Do the work in one transaction: all of it, or nothing if it raises."""
        return await self._in_thread(lambda: self._transact(self._opened(), work))

    async def read(self, work: Callable[[Execute], T], /) -> T:
        """Do work that changes nothing."""
        return await self._in_thread(lambda: self._read(work))

    async def close(self) -> None:
        """Close the file when the work in hand is done; who waits for another's lock gives up."""
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
            with closing(sqlite3.connect(":memory:", isolation_level=None)) as empty:
                self._migrate(empty)
                return work(_executing(empty))
        return work(_executing(self._opened()))

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            create_database_file(self._file)
            # Transactions are ours: the module must not begin one behind our back.
            connection = sqlite3.connect(self._file, isolation_level=None)
            try:
                set_up(connection.execute, self._wait)
                make_database_private(self._file)
                # A writer waits where it begins, and there so that it can be told to stop.
                connection.execute("PRAGMA busy_timeout=0")
                self._migrate(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        if version_of(_executing(connection), "sqlite") != LATEST:
            now = self._clock.now()
            self._transact(connection, lambda execute: apply_missing(execute, "sqlite", now))

    def _transact(self, connection: sqlite3.Connection, work: Callable[[Execute], T]) -> T:
        _when_free(lambda: connection.execute("BEGIN IMMEDIATE"), self._wait)
        try:
            found = work(_executing(connection))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return found

    def _wait(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise sqlite3.InterfaceError(f"{self._file} was closed")

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


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
def _store_errors(file: Path) -> Iterator[None]:
    """Raise SQLite's errors as StoreUnavailable."""
    try:
        yield
    except sqlite3.Error as error:
        if is_damage(error):
            raise StoreDamaged(damage_text(file, error)) from error
        kind = RowRefused if isinstance(error, sqlite3.IntegrityError) else StoreUnavailable
        raise kind(f"the database cannot be used: {error}") from error
