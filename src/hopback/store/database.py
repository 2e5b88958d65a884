"""The database for SQLAlchemy: SQLite in a file, or PostgreSQL.

`sql.versions` creates the tables. A test compares them with the descriptions in this module.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    event,
    text,
)
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from hopback.clock import Clock, SystemClock
from hopback.errors import HopbackError, StoreDamaged, StoreUnavailable
from hopback.extras import needs
from hopback.sql.database import NOTHING, Execute, Row, RowRefused, Values, is_damage
from hopback.sql.sqlite import (
    create_database_file,
    damage_text,
    make_database_private,
    set_up,
    sqlite_file,
)
from hopback.sql.versions import apply_missing, version_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from threading import Thread


T = TypeVar("T")

metadata: MetaData = MetaData()

_BIG_ID = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers only INTEGER keys by itself

inbox: Table = Table(
    "hopback_inbox",
    metadata,
    Column("consumer", Text, primary_key=True),
    Column("message_id", Text, primary_key=True),
    Column("processed_at", Double, nullable=False),
    Index("hopback_inbox_processed_at", "processed_at"),
)

outbox: Table = Table(
    "hopback_outbox",
    metadata,
    Column("id", _BIG_ID, primary_key=True, autoincrement=True),
    Column("slot", Integer, nullable=False),
    Column("key", Text),
    Column("message_id", Text, nullable=False),
    Column("exchange", Text, nullable=False),
    Column("routing_key", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("properties", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("error", Text),
    Index("hopback_outbox_order", "slot", "id"),
)

outbox_slots: Table = Table(
    "hopback_outbox_slots",
    metadata,
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("leased_by", Text),
    Column("leased_until", Double, nullable=False, server_default=text("0")),
)


async def current_version(engine: AsyncEngine) -> int:
    """The version of the database; 0 where nothing was ever applied."""
    async with engine.connect() as connection:
        return await connection.run_sync(
            lambda plain: version_of(_executing(plain), plain.dialect.name)
        )


async def migrate(
    engine: AsyncEngine, clock: Clock | None = None, *, also: MetaData | None = None
) -> list[int]:
    """Apply what is missing and tell which versions that were; an up-to-date database gives none.

    `also` are tables of yours: those that are missing are created in the same transaction, so that of
    several processes that begin at once only one does it.
    """
    now = (clock or SystemClock()).now()

    def apply(connection: Connection) -> list[int]:
        applied = apply_missing(_executing(connection), connection.dialect.name, now)
        if also is not None:
            also.create_all(connection)
        return applied

    async with engine.begin() as connection:
        return await connection.run_sync(apply)


_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}
_THREAD_ENDS_S = 5.0
"""A thread of SQLite that was told to stop has at most one statement left, which takes milliseconds."""


class DatabaseUrlError(HopbackError):
    """The database URL cannot be used."""

    remedy = "Give sqlite:///path/to/file.db or postgresql://user:password@host/database."


def open_database(url: str) -> AsyncEngine:
    """An engine for the URL; nothing is connected yet. Passwords never appear in errors."""
    file = sqlite_file(url)  # as every other way to the same file reads it
    try:
        parsed = make_url(url) if file is None else URL.create("sqlite", database=str(file))
    except ArgumentError:
        raise DatabaseUrlError(
            "expected a database URL, got something else (not shown: it may hold a password)"
        ) from None
    driver = _DRIVERS.get(parsed.drivername.partition("+")[0])
    if driver is None:
        raise DatabaseUrlError(f"expected sqlite or postgresql, got {parsed.drivername!r}")
    address = parsed.set(drivername=driver)
    with needs(
        "store" if address.drivername == _DRIVERS["sqlite"] else "postgres", "this database"
    ):
        if address.drivername == _DRIVERS["sqlite"]:
            connector = _SQLiteConnector()
            opened_by = {"async_creator_fn": connector.connect}
            engine = create_async_engine(address, pool_pre_ping=True, connect_args=opened_by)
            event.listen(engine.sync_engine, "engine_disposed", connector.wait_for_threads)
            _make_sqlite_safe(engine)
        else:
            engine = create_async_engine(address, pool_pre_ping=True)
    return engine


class _SQLiteConnector:
    """What makes aiosqlite's connections, so that each of them is closed and its thread ends.

    SQLAlchemy closes a connection whose user was cancelled in a task of its own, and stops it beside that
    if the user is cancelled again. The thread ends at the first stop; a task that waits for the second
    never ends, and neither does the process. So a connection is stopped once.

    A user who is cancelled while the thread connects never receives the connection, and aiosqlite knows of
    none that it could close. So connecting, which takes milliseconds, is let come to its end.

    Nobody waits for a thread that SQLAlchemy stops in haste, and one that has to tell a closed event loop
    that it ended fails with a traceback. So the end of the engine waits for it.
    """

    def __init__(self) -> None:
        from aiosqlite import Connection as Plain

        class StoppedOnce(Plain):
            is_stopping = False

            def stop(self) -> asyncio.Future[None] | None:
                if self.is_stopping:
                    return None
                self.is_stopping = True
                return super().stop()

        self._kind = StoppedOnce
        self._made: WeakSet[Any] = WeakSet()
        self._closing: set[asyncio.Task[None]] = set()

    async def connect(self, database: str, **options: Any) -> object:
        """A connection as SQLAlchemy wants it."""
        made = self._kind(lambda: sqlite3.connect(database, **options), iter_chunk_size=64)
        # A process may end without waiting for it, as with those that SQLAlchemy makes itself.
        _thread_of(made).daemon = True
        self._made.add(made)
        opening = asyncio.ensure_future(made)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            closing = asyncio.create_task(_close_unused(opening))
            self._closing.add(closing)  # a loop holds its tasks only weakly
            closing.add_done_callback(self._closing.discard)
            await asyncio.shield(closing)
            raise

    def wait_for_threads(self, _engine: object) -> None:
        """Let the threads that were told to stop come to their end."""
        for made in list(self._made):
            if made.is_stopping:
                _thread_of(made).join(_THREAD_ENDS_S)


def _thread_of(connection: Any) -> Thread:
    """The thread of an aiosqlite connection; before its version 0.22 the connection was the thread."""
    thread: Thread = getattr(connection, "_thread", connection)
    return thread


async def _close_unused(opening: asyncio.Future[Any]) -> None:
    with suppress(sqlite3.Error):  # it could not be opened: then there is nothing to close
        await (await opening).close()


@contextmanager
def store_errors() -> Iterator[None]:
    """Make a StoreUnavailable of what SQLAlchemy raises: the driver's words, without the statement."""
    try:
        yield
    except SQLAlchemyError as error:
        original = getattr(error, "orig", None)
        said = str(original or type(error).__name__).splitlines()
        if is_damage(original):
            raise StoreDamaged(f"the database is damaged: {said[0]}") from error
        kind = RowRefused if isinstance(error, IntegrityError) else StoreUnavailable
        raise kind(
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


class EngineDatabase:
    """A database that SQLAlchemy speaks to, for statements in SQL."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    async def write(self, work: Callable[[Execute], T], /) -> T:
        """Do the work in one transaction: all of it, or nothing if it raises."""
        async with writing(self.engine) as connection:
            return await connection.run_sync(lambda plain: work(_executing(plain)))

    async def read(self, work: Callable[[Execute], T], /) -> T:
        """Do work that changes nothing."""
        async with reading(self.engine) as connection:
            return await connection.run_sync(lambda plain: work(_executing(plain)))


_statement = lru_cache(maxsize=256)(text)  # there are some dozens of them


def _executing(connection: Connection) -> Execute:
    def execute(statement: str, values: Values = NOTHING, /) -> list[Row]:
        given = values if isinstance(values, list) else dict(values)
        found = connection.execute(_statement(statement), given)
        return [tuple(row) for row in found] if found.returns_rows else []

    return execute


def _make_sqlite_safe(engine: AsyncEngine) -> None:
    """Private to its owner, written ahead, fully synced; a real BEGIN IMMEDIATE lets writers wait."""

    # A database in memory has no file; one named by a URI of its own is its owner's business.
    name = engine.url.database
    file = None if not name or name.startswith((":memory:", "file:")) else Path(name)

    def on_do_connect(*_: object) -> None:
        if file is not None:
            create_database_file(file)

    def on_connect(raw: Any, _record: object) -> None:
        try:
            raw.isolation_level = None  # the driver must not begin transactions behind our back
            cursor = raw.cursor()
            set_up(cursor.execute, lambda seconds: await_only(asyncio.sleep(seconds)))
            cursor.close()
            if file is not None:
                make_database_private(file)
        except BaseException:
            raw.terminate()  # the pool does not know this connection yet, nobody else would close it
            raise

    def on_error(context: ExceptionContext) -> None:
        if file is not None and is_damage(context.original_exception):
            raise StoreDamaged(damage_text(file, context.original_exception))

    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine.sync_engine, "do_connect", on_do_connect)
    event.listen(engine.sync_engine, "connect", on_connect)
    event.listen(engine.sync_engine, "begin", on_begin)
    event.listen(engine.sync_engine, "handle_error", on_error)
