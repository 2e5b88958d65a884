"""A system's database: SQLite by default, PostgreSQL by URL, tables made and brought up to date at first use.

A system starts though its database is away; what needs it finds out, and tries again later.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import inspect, text
from sqlalchemy.exc import SQLAlchemyError

from hopback import SystemClock
from hopback.store import migrate, open_database, transaction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from sqlalchemy import Connection, Executable, MetaData
    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback import Clock
    from hopback.store import Transaction

_LOCK = 0x73797374656D73
"""The advisory lock that lets one process at a time make tables on PostgreSQL."""


class Database:
    """The tables of one system, and Hopback's inbox and outbox beside them."""

    def __init__(self, url: str, tables: MetaData, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.engine: AsyncEngine = open_database(url)
        self._tables = tables
        self._making = asyncio.Lock()
        self._made = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A transaction that commits at the end of the block, and rolls back if the block fails."""
        async with self._making:
            if not self._made:
                await migrate(self.engine, self.clock)
                async with self.engine.begin() as connection:
                    await connection.run_sync(self._make)
                self._made = True
        async with transaction(self.engine, self.clock) as open_transaction:
            yield open_transaction

    async def rows(self, query: Executable) -> Sequence[Mapping[str, Any]]:
        """What a query finds, each row by the names of its columns."""
        async with self.transaction() as tx:
            return [dict(row) for row in (await tx.execute(query)).mappings()]

    async def row(self, query: Executable) -> Mapping[str, Any] | None:
        """The first row that a query finds, or None."""
        return next(iter(await self.rows(query)), None)

    async def check(self) -> str | None:
        """Return the reason why the database cannot be used now, or None."""
        try:
            async with self.engine.connect() as connection:
                await connection.execute(text("SELECT 1"))
        except (SQLAlchemyError, OSError) as error:
            return f"the database does not answer: {type(error).__name__}"
        return None

    @asynccontextmanager
    async def lifespan(self, _application: object = None) -> AsyncIterator[None]:
        """The life of an application that works with it: at its end the connections are closed."""
        try:
            yield
        finally:
            await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self.engine.dispose()

    def _make(self, connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        self._tables.create_all(connection)
        # Tables that an earlier version made get the columns that have come since; all may be
        # empty.
        found = inspect(connection)
        for table in self._tables.sorted_tables:
            there = {column["name"] for column in found.get_columns(table.name)}
            for column in table.columns:
                if column.name not in there:
                    kind = column.type.compile(connection.dialect)
                    connection.exec_driver_sql(
                        f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}"
                    )
