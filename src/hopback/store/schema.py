"""The tables: what was processed (inbox), what is still to be published (outbox), jobs and the audit."""

from __future__ import annotations

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
    text,
)

__all__ = [
    "SLOTS",
    "api_keys",
    "audit",
    "audit_retention",
    "ended_sessions",
    "inbox",
    "job_failures",
    "jobs",
    "metadata",
    "outbox",
    "outbox_slots",
    "versions",
]

SLOTS = 64
"""Outbox messages are spread over so many slots by their key; a relay leases whole slots, so that
messages of one key are only ever published by one relay, in order."""

metadata = MetaData()

_BIG_ID = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers only INTEGER keys by itself

versions = Table(
    "hopback_versions",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("applied_at", Double, nullable=False),
)

inbox = Table(
    "hopback_inbox",
    metadata,
    Column("consumer", Text, primary_key=True),
    Column("message_id", Text, primary_key=True),
    Column("processed_at", Double, nullable=False, index=True),
)

outbox = Table(
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

outbox_slots = Table(
    "hopback_outbox_slots",
    metadata,
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("leased_by", Text),
    Column("leased_until", Double, nullable=False, server_default="0"),
)

_ACTIVE = text("state IN ('running', 'paused')")

jobs = Table(
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
    # The database itself sees to it that a queue has one active job, whoever asks.
    Index(
        "hopback_jobs_active",
        "place",
        "queue",
        unique=True,
        sqlite_where=_ACTIVE,
        postgresql_where=_ACTIVE,
    ),
)

job_failures = Table(
    "hopback_job_failures",
    metadata,
    Column("number", _BIG_ID, primary_key=True, autoincrement=True),
    Column("job", Text, nullable=False, index=True),
    Column("document", Text, nullable=False),
)

audit = Table(
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
)

ended_sessions = Table(
    "hopback_ended_sessions",
    metadata,
    Column("id", Text, primary_key=True),
    # When it would have ended by itself: afterwards nobody needs to remember it.
    Column("until", Double, nullable=False),
)

audit_retention = Table(
    "hopback_audit_retention",
    metadata,
    Column("number", _BIG_ID, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    # Rows of the audit from before this moment may be deleted, and no others.
    Column("deleted_before", Double, nullable=False),
)

api_keys = Table(
    "hopback_api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    # The key itself is nowhere: the document has its hash.
    Column("document", Text, nullable=False),
)
