"""The database: SQLite in a file by default, PostgreSQL by URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from hopback.errors import HopbackError

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["DatabaseUrlError", "open_database"]

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}
_BUSY_MS = 10_000


class DatabaseUrlError(HopbackError):
    """The database URL cannot be used."""

    remedy = "Give sqlite:///path/to/file.db or postgresql://user:password@host/database."


def open_database(url: str) -> AsyncEngine:
    """An engine for the URL; nothing is connected yet. Passwords never appear in errors."""
    engine = create_async_engine(_address(url), pool_pre_ping=True)
    if engine.dialect.name == "sqlite":
        _make_sqlite_safe(engine)
    return engine


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


def _make_sqlite_safe(engine: AsyncEngine) -> None:
    """Write-ahead log, full sync, and a real BEGIN IMMEDIATE: two writers wait, none is refused."""

    def on_connect(raw: Any, _record: object) -> None:
        raw.isolation_level = None  # the driver must not begin transactions behind our back
        cursor = raw.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        cursor.close()

    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine.sync_engine, "connect", on_connect)
    event.listen(engine.sync_engine, "begin", on_begin)
