"""Migrations of the tables, on SQLite and on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import inspect, text

from hopback.clock import ManualClock, SystemClock
from hopback.errors import StoreTooNew
from hopback.ops.contract.requests import NEWEST
from hopback.ops.contract.values import AuditEntry, Moment
from hopback.ops.jobs.journal import Journal
from hopback.sql.sqlite import SqliteDatabase
from hopback.sql.versions import LATEST, MIGRATIONS, SchemaChange, apply_missing
from hopback.store import current_version, database, migrate, open_database
from tests.integration.database import database_url, engine

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.sql.database import Execute
    from tests.harness.shared import SharedPostgres

__all__ = ["database_url", "engine"]

_NEXT = SchemaChange(
    ("ALTER TABLE hopback_audit ADD COLUMN host TEXT DEFAULT 'unknown' NOT NULL",),
    sqlite=("UPDATE hopback_versions SET applied_at = applied_at",),
    postgresql=("COMMENT ON COLUMN hopback_audit.host IS 'Host of the process'",),
)
"""A later migration with statements for both databases and for one of them."""


async def _migrate_further(engine: AsyncEngine) -> list[int]:
    def apply(execute: Execute) -> list[int]:
        return apply_missing(execute, engine.dialect.name, 2000.0, (*MIGRATIONS, _NEXT))

    return await database.EngineDatabase(engine).write(apply)


async def test_later_migration_keeps_the_rows_and_is_applied_once(engine: AsyncEngine) -> None:
    journal = Journal(database.EngineDatabase(engine), ManualClock(1000.0))
    await journal.write_entry(AuditEntry(Moment(1.0), "Ann", "job.start"))
    assert await _migrate_further(engine) == [LATEST + 1]
    assert await _migrate_further(engine) == []
    assert await current_version(engine) == LATEST + 1
    await journal.write_entry(AuditEntry(Moment(2.0), "Bob", "job.start"))
    assert [entry.by for entry in await journal.read_entries(NEWEST)] == ["Bob", "Ann"]
    async with engine.connect() as connection:
        hosts = (await connection.execute(text("SELECT host FROM hopback_audit"))).scalars().all()
    assert hosts == ["unknown", "unknown"]


async def test_database_of_a_newer_version_is_refused(engine: AsyncEngine) -> None:
    await _migrate_further(engine)
    with pytest.raises(StoreTooNew, match=f"at version {LATEST + 1}, expected at most {LATEST}"):
        await migrate(engine, SystemClock())
    assert await current_version(engine) == LATEST + 1


async def test_command_refuses_a_file_of_a_newer_version(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    newer = open_database(f"sqlite:///{file}")
    await migrate(newer, SystemClock())
    await _migrate_further(newer)
    await newer.dispose()
    opened = SqliteDatabase(file, SystemClock())
    with pytest.raises(StoreTooNew):
        await Journal(opened, SystemClock()).read_entries(NEWEST)
    await opened.close()


async def test_migration_creates_the_tables_that_sqlalchemy_describes(
    engine: AsyncEngine, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    if engine.dialect.name == "postgresql":
        server: SharedPostgres = request.getfixturevalue("postgres")
        other = server.create_database()
    described = open_database(other)
    async with described.begin() as connection:
        await connection.run_sync(database.metadata.create_all)
        expected = await connection.run_sync(_describe_tables)
    await described.dispose()
    async with engine.connect() as connection:
        assert await connection.run_sync(_describe_tables) == expected


def _describe_tables(connection: Connection) -> dict[str, object]:
    found = inspect(connection)
    # SQLite keeps the type names of the statement.
    types = {"REAL": "DOUBLE", "DOUBLE PRECISION": "DOUBLE", "DOUBLE_PRECISION": "DOUBLE"}
    return {
        name: (
            [
                (one["name"], types.get(str(one["type"]), str(one["type"])), one["nullable"])
                for one in found.get_columns(name)
            ],
            [one["default"] for one in found.get_columns(name)],
            found.get_pk_constraint(name)["constrained_columns"],
            sorted((str(one["name"]), one["column_names"]) for one in found.get_indexes(name)),
        )
        for name in database.metadata.tables
    }
