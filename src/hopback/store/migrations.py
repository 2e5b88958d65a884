"""Migrations: numbered, applied in order, each in one transaction, safe to repeat and to race."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import func, insert, inspect, select, text

from hopback.store import schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.clock import Clock

__all__ = ["LATEST", "current_version", "migrate"]


def _inbox_and_outbox(connection: Connection) -> None:
    """1: the inbox, the outbox and its slots."""
    tables = [schema.inbox, schema.outbox, schema.outbox_slots]
    schema.metadata.create_all(connection, tables=tables)
    connection.execute(
        insert(schema.outbox_slots), [{"slot": slot} for slot in range(schema.SLOTS)]
    )


def _jobs_and_audit(connection: Connection) -> None:
    """2: jobs with their failures, and an audit that the database lets nobody change."""
    tables = [schema.jobs, schema.job_failures, schema.audit]
    schema.metadata.create_all(connection, tables=tables)
    for statement in _APPEND_ONLY[connection.dialect.name]:
        connection.exec_driver_sql(statement)


def _api_keys(connection: Connection) -> None:
    """3: the keys of the admin service."""
    schema.metadata.create_all(connection, tables=[schema.api_keys])


def _retention_and_sessions(connection: Connection) -> None:
    """4: old rows of the audit may go once it is written down how old; sessions that were ended."""
    schema.metadata.create_all(connection, tables=[schema.audit_retention, schema.ended_sessions])
    # Version 2 makes the jobs as they are today, so a new database has the column already.
    known = {column["name"] for column in inspect(connection).get_columns(schema.jobs.name)}
    if "ended_at" not in known:
        connection.exec_driver_sql("ALTER TABLE hopback_jobs ADD COLUMN ended_at DOUBLE PRECISION")
    for statement in _DELETE_BY_RETENTION[connection.dialect.name]:
        connection.exec_driver_sql(statement)


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
)

LATEST = len(_MIGRATIONS)
"""The version that this release of Hopback works with."""

_LOCK = 0x686F706261636B
"""The advisory lock that makes two migrating processes wait for each other on PostgreSQL."""


async def current_version(engine: AsyncEngine) -> int:
    """The version of the database; 0 where nothing was ever applied."""
    async with engine.connect() as connection:
        return await connection.run_sync(_version)


async def migrate(engine: AsyncEngine, clock: Clock) -> list[int]:
    """Apply what is missing and tell which versions that were; an up-to-date database gives none."""
    async with engine.begin() as connection:
        return await connection.run_sync(_apply, clock.now())


def _apply(connection: Connection, now: float) -> list[int]:
    _lock(connection)
    schema.versions.create(connection, checkfirst=True)
    applied = []
    for version in range(_version(connection) + 1, LATEST + 1):
        _MIGRATIONS[version - 1](connection)
        connection.execute(insert(schema.versions).values(version=version, applied_at=now))
        applied.append(version)
    return applied


def _lock(connection: Connection) -> None:
    """Whoever comes second waits; SQLite has one writer at a time anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


def _version(connection: Connection) -> int:
    if not connection.dialect.has_table(connection, schema.versions.name):
        return 0
    found: int | None = connection.execute(select(func.max(schema.versions.c.version))).scalar()
    return found or 0
