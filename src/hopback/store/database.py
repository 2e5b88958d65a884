"""SQLAlchemy engines and tables for SQLite and PostgreSQL.

The tables are created by `sql.versions`. A test checks that they match the definitions in this
module.
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

_BIG_ID = BigInteger().with_variant(Integer, "sqlite")  # SQLite only generates ids for INTEGER keys

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
    """Return the schema version of the database, or 0 if there is no schema."""
    async with engine.connect() as connection:
        return await connection.run_sync(
            lambda plain: version_of(_executing(plain), plain.dialect.name)
        )


async def migrate(
    engine: AsyncEngine, clock: Clock | None = None, *, also: MetaData | None = None
) -> list[int]:
    """Apply missing migrations and return their versions.

    Args:
        engine: The database.
        clock: The clock to use. Defaults to the system clock.
        also: Tables of the application. Missing tables are created in the same transaction, so that
            processes started at the same time do not conflict.
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
"""Seconds to wait for an SQLite thread to stop. After that it is left running."""


_CONNECTIONS = 15
"""Maximum number of connections of a process to PostgreSQL. The default limit of the server is 100.
"""
_IDLE_S = 60.0
"""Seconds after which an unused connection is replaced, in case a firewall has dropped it."""


def _check_connection(adapted: Any, record: Any, _proxy: object) -> None:
    """Make the pool replace a connection that the server has closed.

    When a server closes a connection, its socket becomes readable. Checking this is faster than a
    ping, which needs a round trip.
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
    """Raised when the database URL is invalid."""

    remedy = "Give sqlite:///path/to/file.db or postgresql://user:password@host/database."


def open_database(url: str) -> AsyncEngine:
    """Create an engine. This does not connect to the database. Errors do not contain the password."""
    file = sqlite_file(url)
    try:
        parsed = make_url(url) if file is None else URL.create("sqlite", database=str(file))
    except ArgumentError:
        raise DatabaseUrlError(
            "database URL: expected sqlite:///… or postgresql://…, got another text"
            " (not shown: it may contain a password)"
        ) from None
    driver = _DRIVERS.get(parsed.drivername.partition("+")[0])
    if driver is None:
        raise DatabaseUrlError(
            f"database URL: expected sqlite or postgresql, got {parsed.drivername!r}"
        )
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
            # Disable overflow connections, because they would be opened and closed for each use.
            engine = create_async_engine(
                address, pool_size=_CONNECTIONS, max_overflow=0, pool_use_lifo=True
            )
            event.listen(engine.sync_engine, "checkout", _check_connection)
    return engine


class _SQLiteConnector:
    """Opens aiosqlite connections and makes sure that their threads end.

    This works around four problems:

    - SQLAlchemy may stop a connection twice if a task is cancelled twice. The thread ends after the
      first stop, and waiting for the second one would block forever. A connection is therefore only
      stopped once.
    - If a task is cancelled while connecting, aiosqlite cannot close the connection. Connecting is
      therefore always completed.
    - A thread that is stopped without waiting fails with a traceback if the event loop is already
      closed. Disposing the engine therefore waits for the threads.
    - SQLAlchemy closes the connection of a cancelled task without a rollback. SQLite keeps its lock
      until the garbage collector has deleted the last cursor, and other writers fail. A connection
      is therefore rolled back before it is closed.
    """

    def __init__(self) -> None:
        from aiosqlite import Connection as Plain

        class StoppedOnce(Plain):
            is_stopping = False

            def stop(self) -> asyncio.Future[None] | None:
                if self.is_stopping:
                    return None
                self.is_stopping = True
                self._roll_back_first()
                return super().stop()

            async def close(self) -> None:
                self._roll_back_first()
                await super().close()

            def _roll_back_first(self) -> None:
                """Add a rollback to the work of the thread, before it closes the connection."""
                opened = self._connection
                if opened is not None:
                    self._tx.put_nowait((None, opened.rollback))

        self._kind = StoppedOnce
        self._made: WeakSet[Any] = WeakSet()
        self._closing: set[asyncio.Task[None]] = set()

    async def connect(self, database: str, **options: Any) -> object:
        """Open a connection for SQLAlchemy."""
        made = self._kind(lambda: sqlite3.connect(database, **options), iter_chunk_size=64)
        # Use a daemon thread, like SQLAlchemy does, so that the process can exit.
        _thread_of(made).daemon = True
        self._made.add(made)
        opening = asyncio.ensure_future(made)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            closing = asyncio.create_task(_close_unused(opening))
            self._closing.add(closing)  # the event loop only keeps weak references
            closing.add_done_callback(self._closing.discard)
            await asyncio.shield(closing)
            raise

    def wait_for_threads(self, _engine: object) -> None:
        """Wait until the threads of stopped connections have ended."""
        for made in list(self._made):
            if made.is_stopping:
                _thread_of(made).join(_THREAD_ENDS_S)


def _thread_of(connection: Any) -> Thread:
    """Return the thread of a connection. Before aiosqlite 0.22, the connection itself was the
    thread.
    """
    thread: Thread = getattr(connection, "_thread", connection)
    return thread


async def _close_unused(opening: asyncio.Future[Any]) -> None:
    with suppress(sqlite3.Error):  # the connection was never opened
        await (await opening).close()


@contextmanager
def store_errors() -> Iterator[None]:
    """Convert SQLAlchemy errors to StoreUnavailable. The SQL statement is omitted."""
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
    """Runs SQL statements with SQLAlchemy."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def write(self, work: Callable[[Execute], T], /) -> T:
        """Call `work` in a transaction. The transaction is rolled back if it raises an exception."""
        with store_errors():
            async with self._engine.begin() as connection:
                return await connection.run_sync(lambda plain: work(_executing(plain)))

    async def read(self, work: Callable[[Execute], T], /) -> T:
        """Call `work` for reading. Changes are rolled back."""
        with store_errors():
            async with self._engine.connect() as connection:
                return await connection.run_sync(lambda plain: work(_executing(plain)))


_statement = lru_cache(maxsize=256)(text)  # parsed statements (Hopback uses fewer than 100)


def _executing(connection: Connection) -> Execute:
    def execute(statement: str, values: Values = NOTHING, /) -> list[Row]:
        given = values if isinstance(values, list) else dict(values)
        found = connection.execute(_statement(statement), given)
        return [tuple(row) for row in found] if found.returns_rows else []

    return execute


def _make_sqlite_safe(engine: AsyncEngine) -> None:
    """Make the database file private, and configure the connections of the engine."""

    # In-memory databases do not have a file. With a URI, the user is responsible for the file.
    name = engine.url.database
    file = None if not name or name.startswith((":memory:", "file:")) else Path(name)

    def on_do_connect(*_: object) -> None:
        if file is not None:
            create_database_file(file)

    def on_connect(raw: Any, _record: object) -> None:
        try:
            raw.isolation_level = None  # disable implicit transactions of the driver
            cursor = raw.cursor()
            set_up(cursor.execute, lambda seconds: await_only(asyncio.sleep(seconds)))
            cursor.close()
            if file is not None:
                make_database_private(file)
        except BaseException:
            raw.terminate()  # the pool does not know this connection yet
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
