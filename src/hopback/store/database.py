"""The database for SQLAlchemy: SQLite in a file, or PostgreSQL.

`sql.versions` creates the tables. A test compares them with the descriptions in this module.
"""

from __future__ import annotations

import asyncio
import select
import sqlite3
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from time import monotonic
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
from sqlalchemy.exc import (
    ArgumentError,
    DisconnectionError,
    IntegrityError,
    SQLAlchemyError,
)
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
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
    from collections.abc import Callable, Iterator
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
    """Return the schema version of the database, 0 without Hopback's tables."""
    async with engine.connect() as connection:
        return await connection.run_sync(
            lambda plain: version_of(_executing(plain), plain.dialect.name)
        )


async def migrate(
    engine: AsyncEngine, clock: Clock | None = None, *, also: MetaData | None = None
) -> list[int]:
    """Apply the missing migrations and return their versions.

    `also` has tables of the application. Missing ones are created in the same transaction, so that only one
    of several starting processes creates them.
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
"""Seconds to wait for a thread of SQLite that is stopping. Its last statement takes milliseconds. After the
limit the thread is left running."""


_CONNECTIONS = 15
"""Connections of one process to PostgreSQL, which allows 100 by default. Others wait."""
_IDLE_S = 60.0
"""Seconds. A connection that was unused for longer is replaced. A firewall may have dropped it silently."""


def _check_connection(adapted: Any, record: Any, _proxy: object) -> None:
    """Refuse a connection of the pool that the server has closed. The pool then opens another one.

    A server that closes a connection makes its socket readable. This check takes no round trip, as a ping
    before each use would.
    """
    raw = adapted.driver_connection
    now = monotonic()
    used = record.info.get("hopback_used")
    record.info["hopback_used"] = now
    if used is not None and (raw.closed or now - used > _IDLE_S or _is_readable(raw.pgconn.socket)):
        raise DisconnectionError("the connection is closed or was unused for a long time")


def _is_readable(descriptor: int) -> bool:
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


class DatabaseUrlError(HopbackError):
    """The database URL is wrong."""

    remedy = "Give sqlite:///path/to/file.db or postgresql://user:password@host/database."


def open_database(url: str) -> AsyncEngine:
    """Create an engine without connecting. Errors never contain the password."""
    file = sqlite_file(url)
    try:
        parsed = make_url(url) if file is None else URL.create("sqlite", database=str(file))
    except ArgumentError:
        raise DatabaseUrlError(
            "expected a database URL, got another text (not shown: it may contain a password)"
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
            # Connections beyond the size of the pool would be opened and closed again for each use.
            engine = create_async_engine(
                address, pool_size=_CONNECTIONS, max_overflow=0, pool_use_lifo=True
            )
            event.listen(engine.sync_engine, "checkout", _check_connection)
    return engine


class _SQLiteConnector:
    """Opens connections of aiosqlite so that each is closed and its thread ends.

    If its user is cancelled, SQLAlchemy closes a connection in a separate task, and stops it again if the
    user is cancelled again. The thread ends at the first stop, so a task that waits for the second stop
    never ends. Therefore a connection is stopped only once.

    A user who is cancelled while the thread connects never gets the connection, and aiosqlite cannot close
    it. Therefore connecting, which takes milliseconds, is completed.

    A thread that SQLAlchemy stops without waiting reports its end to a closed event loop and fails with a
    traceback. Therefore disposing of the engine waits for the threads.
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
        """Open a connection for SQLAlchemy."""
        made = self._kind(lambda: sqlite3.connect(database, **options), iter_chunk_size=64)
        # The process may exit without waiting for the thread, as with SQLAlchemy's own connections.
        _thread_of(made).daemon = True
        self._made.add(made)
        opening = asyncio.ensure_future(made)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            closing = asyncio.create_task(_close_unused(opening))
            self._closing.add(closing)  # the event loop keeps only weak references
            closing.add_done_callback(self._closing.discard)
            await asyncio.shield(closing)
            raise

    def wait_for_threads(self, _engine: object) -> None:
        """Wait for the threads of stopped connections."""
        for made in list(self._made):
            if made.is_stopping:
                _thread_of(made).join(_THREAD_ENDS_S)


def _thread_of(connection: Any) -> Thread:
    """Return the thread of a connection. Before aiosqlite 0.22 the connection was the thread."""
    thread: Thread = getattr(connection, "_thread", connection)
    return thread


async def _close_unused(opening: asyncio.Future[Any]) -> None:
    with suppress(sqlite3.Error):  # the connection was not opened
        await (await opening).close()


@contextmanager
def store_errors() -> Iterator[None]:
    """Raise SQLAlchemy's errors as StoreUnavailable, with the driver's text and without the statement."""
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


class EngineDatabase:
    """A database by SQLAlchemy, for statements in SQL."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def write(self, work: Callable[[Execute], T], /) -> T:
        """Do the work in one transaction, which is rolled back if the work raises."""
        with store_errors():
            async with self._engine.begin() as connection:
                return await connection.run_sync(lambda plain: work(_executing(plain)))

    async def read(self, work: Callable[[Execute], T], /) -> T:
        """Do work that only reads."""
        with store_errors():
            async with self._engine.connect() as connection:
                return await connection.run_sync(lambda plain: work(_executing(plain)))


_statement = lru_cache(maxsize=256)(text)  # parsed statements. Hopback has fewer than 100.


def _executing(connection: Connection) -> Execute:
    def execute(statement: str, values: Values = NOTHING, /) -> list[Row]:
        given = values if isinstance(values, list) else dict(values)
        found = connection.execute(_statement(statement), given)
        return [tuple(row) for row in found] if found.returns_rows else []

    return execute


def _make_sqlite_safe(engine: AsyncEngine) -> None:
    """Configure connections: private file, write-ahead log, full sync, and writers that wait."""

    # A database in memory has no file. The user is responsible for a file that is named by a URI.
    name = engine.url.database
    file = None if not name or name.startswith((":memory:", "file:")) else Path(name)

    def on_do_connect(*_: object) -> None:
        if file is not None:
            create_database_file(file)

    def on_connect(raw: Any, _record: object) -> None:
        try:
            raw.isolation_level = None  # the driver begins no transactions
            cursor = raw.cursor()
            set_up(cursor.execute, lambda seconds: await_only(asyncio.sleep(seconds)))
            cursor.close()
            if file is not None:
                make_database_private(file)
        except BaseException:
            raw.terminate()  # the pool does not know this connection yet and would not close it
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
