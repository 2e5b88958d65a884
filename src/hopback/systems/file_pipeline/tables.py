"""The tables of the file pipeline. Hopback's inbox and outbox are separate tables."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    DDL,
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    event,
)

METADATA = MetaData()
_NUMBER = BigInteger().with_variant(Integer, "sqlite")
_JSON = JSON(none_as_null=True)

uploads: Table = Table(
    "file_pipeline_uploads",
    METADATA,
    Column("file_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("declared_type", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("run", Integer, nullable=False),
    Column("received_at", Double, nullable=False, index=True),
)
"""The files that the gateway has received."""

files: Table = Table(
    "file_pipeline_files",
    METADATA,
    Column("file_id", Text, primary_key=True),
    Column("run", Integer, nullable=False),
    Column("status", Text, nullable=False),
    Column("name", Text),
    Column("declared_type", Text),
    Column("content_type", Text),
    Column("size", BigInteger),
    Column("sha256", Text),
    Column("thumbnail", _JSON),
    Column("metadata", _JSON),
    Column("rejection", _JSON),
    Column("failure", _JSON),
    Column("timed_out", Boolean, nullable=False),
    Column("correlation_id", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Index("file_pipeline_unfinished", "status", "started_at"),
)
"""The read model, which contains the status of each file."""

notifications: Table = Table(
    "file_pipeline_notifications",
    METADATA,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("message_id", Text, nullable=False, unique=True),
    Column("file_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("created_at", Double, nullable=False),
)
audit: Table = Table(
    "file_pipeline_audit",
    METADATA,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    Column("message_id", Text, nullable=False, index=True),
    Column("type", Text),
    Column("routing_key", Text, nullable=False),
    Column("correlation_id", Text, index=True),
    Column("recorded_at", Double, nullable=False),
    Column("body", Text, nullable=False),
)
"""All events as they were received. Triggers prevent rows from being changed or deleted."""

_APPEND_ONLY = {
    "sqlite": tuple(
        f"CREATE TRIGGER IF NOT EXISTS file_pipeline_audit_{verb} BEFORE {verb} "
        f"ON {audit.name} BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END"
        for verb in ("update", "delete")
    ),
    "postgresql": (
        "CREATE OR REPLACE FUNCTION file_pipeline_append_only() RETURNS trigger AS $$ "
        "BEGIN RAISE EXCEPTION 'the audit is append-only'; END $$ LANGUAGE plpgsql",
        f"CREATE OR REPLACE TRIGGER file_pipeline_audit_kept BEFORE UPDATE OR DELETE OR TRUNCATE "
        f"ON {audit.name} FOR EACH STATEMENT EXECUTE FUNCTION file_pipeline_append_only()",
    ),
}


for _dialect, _statements in _APPEND_ONLY.items():
    for _statement in _statements:
        _ddl: Any = DDL(_statement)  # type: ignore[no-untyped-call]
        event.listen(audit, "after_create", _ddl.execute_if(dialect=_dialect))
