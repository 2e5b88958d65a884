"""The database: SQLite in a file by default, PostgreSQL by URL; its tables, and how they came to be.

Migrations are numbered, applied in order, each in one transaction, safe to repeat and to race.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    event,
    func,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from hopback.clock import SystemClock
from hopback.errors import HopbackError, StoreUnavailable
from hopback.extras import needs
from hopback.private_files import make_private

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from threading import Thread

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

    from hopback.clock import Clock


__all__ = [
    "LATEST",
    "SLOTS",
    "DatabaseUrlError",
    "alert_notices",
    "alerts",
    "api_keys",
    "audit",
    "audit_retention",
    "current_version",
    "documents",
    "ended_sessions",
    "inbox",
    "job_failures",
    "jobs",
    "leases",
    "metadata",
    "migrate",
    "oidc_sessions",
    "open_database",
    "outbox",
    "outbox_slots",
    "reading",
    "store_errors",
    "versions",
    "writing",
]


SLOTS = 64
"""Outbox messages are spread over so many slots by their key; a relay leases whole slots, so that
messages of one key are only ever published by one relay, in order."""

metadata: MetaData = MetaData()

_BIG_ID = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers only INTEGER keys by itself

versions: Table = Table(
    "hopback_versions",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("applied_at", Double, nullable=False),
)

inbox: Table = Table(
    "hopback_inbox",
    metadata,
    Column("consumer", Text, primary_key=True),
    Column("message_id", Text, primary_key=True),
    Column("processed_at", Double, nullable=False, index=True),
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
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("error", Text),
    Index("hopback_outbox_order", "slot", "id"),
)

outbox_slots: Table = Table(
    "hopback_outbox_slots",
    metadata,
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("leased_by", Text),
    Column("leased_until", Double, nullable=False, server_default="0"),
)

_ACTIVE = text("state IN ('running', 'paused')")

jobs: Table = Table(
    "hopback_jobs",
    metadata,
    Column("number", _BIG_ID, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    # The broker; it was called its place when the table was made.
    Column("place", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("key", Text),
    Column("document", Text, nullable=False),
    # What is asked of a running job, a ControlRequest.
    Column("wish", Text, nullable=False),
    Column("leased_by", Text),
    Column("leased_until", Double, nullable=False, server_default="0"),
    # When nothing more can come of it; by this its time to be kept is counted.
    Column("ended_at", Double),
    Index("hopback_jobs_key", "place", "key", unique=True),
    # The database itself sees to it that a queue has one active job, however many ask.
    Index(
        "hopback_jobs_active",
        "place",
        "queue",
        unique=True,
        sqlite_where=_ACTIVE,
        postgresql_where=_ACTIVE,
    ),
)

job_failures: Table = Table(
    "hopback_job_failures",
    metadata,
    Column("number", _BIG_ID, primary_key=True, autoincrement=True),
    Column("job", Text, nullable=False, index=True),
    Column("document", Text, nullable=False),
)

audit: Table = Table(
    "hopback_audit",
    metadata,
    Column("number", _BIG_ID, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("by", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("job", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("result", Text, nullable=False),
    Column("details", Text, nullable=False),
    # Empty in entries from before there were several: they belong to the first broker.
    Column("broker", Text, nullable=False, server_default=""),
    Index("hopback_audit_broker", "broker", "number"),
)

ended_sessions: Table = Table(
    "hopback_ended_sessions",
    metadata,
    Column("id", Text, primary_key=True),
    # When it would have ended by itself: afterwards nobody needs to remember it.
    Column("until", Double, nullable=False),
)

oidc_sessions: Table = Table(
    "hopback_oidc_sessions",
    metadata,
    Column("id", Text, primary_key=True),
    # Encrypted: a reader of the database learns no token.
    Column("document", Text, nullable=False),
    Column("until", Double, nullable=False),
    # Somebody is renewing it until then.
    Column("busy_until", Double, nullable=False, server_default="0"),
)

audit_retention: Table = Table(
    "hopback_audit_retention",
    metadata,
    Column("number", _BIG_ID, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    # Rows of the audit from before this moment may be deleted, and no others.
    Column("deleted_before", Double, nullable=False),
)

api_keys: Table = Table(
    "hopback_api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    # The key itself is nowhere: the document has its hash.
    Column("document", Text, nullable=False),
)

leases: Table = Table(
    "hopback_leases",
    metadata,
    # What only one process at a time may do.
    Column("name", Text, primary_key=True),
    Column("leased_by", Text, nullable=False),
    Column("leased_until", Double, nullable=False),
)

alerts: Table = Table(
    "hopback_alerts",
    metadata,
    Column("id", Text, primary_key=True),
    Column("document", Text, nullable=False),
)

alert_notices: Table = Table(
    "hopback_alert_notices",
    metadata,
    Column("number", _BIG_ID, primary_key=True, autoincrement=True),
    Column("target", Text, nullable=False),
    Column("document", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("due_at", Double, nullable=False),
    Column("error", Text),
    # When it was taken, or given up; until then it waits.
    Column("ended_at", Double),
    Index("hopback_alert_notices_waiting", "ended_at", "number"),
)


documents: Table = Table(
    "hopback_documents",
    metadata,
    # What is remembered of a broker, by kind and key: answers about queues, surveys, trends.
    Column("place", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("at", Double, nullable=False),
    Column("document", Text, nullable=False),
)


def _inbox_and_outbox(connection: Connection) -> None:
    """1: the inbox, the outbox and its slots."""
    tables = [inbox, outbox, outbox_slots]
    metadata.create_all(connection, tables=tables)
    connection.execute(insert(outbox_slots), [{"slot": slot} for slot in range(SLOTS)])


def _jobs_and_audit(connection: Connection) -> None:
    """2: jobs with their failures, and an audit that the database lets nobody change."""
    tables = [jobs, job_failures, audit]
    metadata.create_all(connection, tables=tables)
    for statement in _APPEND_ONLY[connection.dialect.name]:
        connection.exec_driver_sql(statement)


def _api_keys(connection: Connection) -> None:
    """3: the keys of the admin service."""
    metadata.create_all(connection, tables=[api_keys])


def _retention_and_sessions(connection: Connection) -> None:
    """4: old rows of the audit may go once it is written down how old; sessions that were ended."""
    metadata.create_all(connection, tables=[audit_retention, ended_sessions])
    # Version 2 makes the jobs as they are today, so a new database has the column already.
    known = {column["name"] for column in inspect(connection).get_columns(jobs.name)}
    if "ended_at" not in known:
        connection.exec_driver_sql("ALTER TABLE hopback_jobs ADD COLUMN ended_at DOUBLE PRECISION")
    for statement in _DELETE_BY_RETENTION[connection.dialect.name]:
        connection.exec_driver_sql(statement)


def _broker_of_entries(connection: Connection) -> None:
    """5: each entry of the audit says to which broker it belongs."""
    known = {column["name"] for column in inspect(connection).get_columns(audit.name)}
    if "broker" not in known:
        connection.exec_driver_sql(
            "ALTER TABLE hopback_audit ADD COLUMN broker TEXT NOT NULL DEFAULT ''"
        )
    for index in audit.indexes:
        index.create(connection, checkfirst=True)


def _alerts(connection: Connection) -> None:
    """6: alerts, the messages about them that wait, and who may send them."""
    metadata.create_all(connection, tables=[leases, alerts, alert_notices])


def _documents(connection: Connection) -> None:
    """7: what is remembered of queues: answers about them, surveys, trends."""
    metadata.create_all(connection, tables=[documents])


def _oidc_sessions(connection: Connection) -> None:
    """8: who signed in by a provider."""
    metadata.create_all(connection, tables=[oidc_sessions])


_APPEND_ONLY = {
    "sqlite": [
        f"CREATE TRIGGER hopback_audit_no_{verb.lower()} BEFORE {verb} ON hopback_audit"
        " BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END"
        for verb in ("UPDATE", "DELETE")
    ],
    "postgresql": [
        "CREATE OR REPLACE FUNCTION hopback_audit_append_only() RETURNS trigger AS $$"
        " BEGIN RAISE EXCEPTION 'the audit is append-only'; END $$ LANGUAGE plpgsql",
        "CREATE TRIGGER hopback_audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE"
        " ON hopback_audit FOR EACH STATEMENT EXECUTE FUNCTION hopback_audit_append_only()",
    ],
}

_DELETE_BY_RETENTION = {
    "sqlite": [
        "DROP TRIGGER hopback_audit_no_delete",
        "CREATE TRIGGER hopback_audit_no_delete BEFORE DELETE ON hopback_audit"
        " WHEN OLD.at >= COALESCE((SELECT MAX(deleted_before) FROM hopback_audit_retention), OLD.at)"
        " BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END",
        *(
            f"CREATE TRIGGER hopback_audit_retention_no_{verb.lower()}"
            f" BEFORE {verb} ON hopback_audit_retention"
            " BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END"
            for verb in ("UPDATE", "DELETE")
        ),
    ],
    "postgresql": [
        "DROP TRIGGER hopback_audit_append_only ON hopback_audit",
        "CREATE TRIGGER hopback_audit_append_only BEFORE UPDATE OR TRUNCATE"
        " ON hopback_audit FOR EACH STATEMENT EXECUTE FUNCTION hopback_audit_append_only()",
        "CREATE OR REPLACE FUNCTION hopback_audit_retained() RETURNS trigger AS $$ BEGIN"
        " IF OLD.at < (SELECT MAX(deleted_before) FROM hopback_audit_retention) THEN RETURN OLD; END IF;"
        " RAISE EXCEPTION 'the audit is append-only'; END $$ LANGUAGE plpgsql",
        "CREATE TRIGGER hopback_audit_retained BEFORE DELETE"
        " ON hopback_audit FOR EACH ROW EXECUTE FUNCTION hopback_audit_retained()",
        "CREATE TRIGGER hopback_audit_retention_append_only BEFORE UPDATE OR DELETE OR TRUNCATE"
        " ON hopback_audit_retention FOR EACH STATEMENT"
        " EXECUTE FUNCTION hopback_audit_append_only()",
    ],
}

_MIGRATIONS: tuple[Callable[[Connection], None], ...] = (
    _inbox_and_outbox,
    _jobs_and_audit,
    _api_keys,
    _retention_and_sessions,
    _broker_of_entries,
    _alerts,
    _documents,
    _oidc_sessions,
)

LATEST = len(_MIGRATIONS)
"""The version that this release of Hopback works with."""

_LOCK = 0x686F706261636B
"""The advisory lock that makes two migrating processes wait for each other on PostgreSQL."""


async def current_version(engine: AsyncEngine) -> int:
    """The version of the database; 0 where nothing was ever applied."""
    async with engine.connect() as connection:
        return await connection.run_sync(_version)


async def migrate(engine: AsyncEngine, clock: Clock | None = None) -> list[int]:
    """Apply what is missing and tell which versions that were; an up-to-date database gives none."""
    async with engine.begin() as connection:
        return await connection.run_sync(_apply, (clock or SystemClock()).now())


def _apply(connection: Connection, now: float) -> list[int]:
    if connection.dialect.name == "postgresql":
        # The second to come waits; SQLite has one writer at a time anyway.
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    versions.create(connection, checkfirst=True)
    applied = []
    for version in range(_version(connection) + 1, LATEST + 1):
        _MIGRATIONS[version - 1](connection)
        connection.execute(insert(versions).values(version=version, applied_at=now))
        applied.append(version)
    return applied


def _version(connection: Connection) -> int:
    if not connection.dialect.has_table(connection, versions.name):
        return 0
    found: int | None = connection.execute(select(func.max(versions.c.version))).scalar()
    return found or 0


_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}
_BUSY_MS = 10_000
"""How long a writer of SQLite waits for another: far longer than any transaction of ours takes."""
_AGAIN_MS = 50
"""How long to wait for a process that opens the same new database at this moment."""
_THREAD_ENDS_S = 5.0
"""A thread of SQLite that was told to stop has at most one statement left, which takes milliseconds."""


class DatabaseUrlError(HopbackError):
    """The database URL cannot be used."""

    remedy = "Give sqlite:///path/to/file.db or postgresql://user:password@host/database."


def open_database(url: str) -> AsyncEngine:
    """An engine for the URL; nothing is connected yet. Passwords never appear in errors."""
    try:
        parsed = make_url(url)
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


def _write_ahead(cursor: Any) -> None:
    """Switch to the write-ahead log. SQLite does not wait for another that does the same: try again."""
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

    # A database in memory has no file; one named by a URI of its own is its owner's business.
    name = engine.url.database
    file = None if not name or name.startswith((":memory:", "file:")) else Path(name)

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
        try:
            raw.isolation_level = None  # the driver must not begin transactions behind our back
            cursor = raw.cursor()
            cursor.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
            _write_ahead(cursor)
            cursor.execute("PRAGMA synchronous=FULL")
            cursor.close()
        except BaseException:
            raw.terminate()  # the pool does not know this connection yet, nobody else would close it
            raise

    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine.sync_engine, "do_connect", on_do_connect)
    event.listen(engine.sync_engine, "connect", on_connect)
    event.listen(engine.sync_engine, "begin", on_begin)
