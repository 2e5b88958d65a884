"""How the tables came to be: numbered migrations in SQL, the same for SQLite and PostgreSQL.

They are applied in order, each in one transaction, safe to repeat and to race. What a release has applied is
never changed: the next change is the next number. The tables as they are used stand in `store.database`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.sql.database import Execute

SLOTS = 64
"""Outbox messages are spread over so many slots by their key; a relay leases whole slots, so that
messages of one key are only ever published by one relay, in order."""

_APPEND_ONLY = "the audit is append-only"

_WORDS = {
    # SQLite numbers only INTEGER keys by itself.
    "sqlite": {"{numbered}": "INTEGER NOT NULL PRIMARY KEY", "{bytes}": "BLOB"},
    "postgresql": {"{numbered}": "BIGSERIAL NOT NULL PRIMARY KEY", "{bytes}": "BYTEA"},
}
"""What the two databases call differently."""

_BOTH = tuple(_WORDS)

_MIGRATIONS: tuple[tuple[tuple[tuple[str, ...], str], ...], ...] = (
    # 1: the inbox, the outbox and its slots.
    (
        (
            _BOTH,
            "CREATE TABLE hopback_inbox (consumer TEXT NOT NULL, message_id TEXT NOT NULL,"
            " processed_at DOUBLE PRECISION NOT NULL, PRIMARY KEY (consumer, message_id))",
        ),
        (_BOTH, "CREATE INDEX ix_hopback_inbox_processed_at ON hopback_inbox (processed_at)"),
        (
            _BOTH,
            "CREATE TABLE hopback_outbox (id {numbered}, slot INTEGER NOT NULL, key TEXT,"
            " message_id TEXT NOT NULL, exchange TEXT NOT NULL, routing_key TEXT NOT NULL,"
            " body {bytes} NOT NULL, properties TEXT NOT NULL, created_at DOUBLE PRECISION NOT NULL,"
            " failures INTEGER DEFAULT '0' NOT NULL, error TEXT)",
        ),
        (_BOTH, "CREATE INDEX hopback_outbox_order ON hopback_outbox (slot, id)"),
        (
            _BOTH,
            "CREATE TABLE hopback_outbox_slots (slot INTEGER NOT NULL PRIMARY KEY, leased_by TEXT,"
            " leased_until DOUBLE PRECISION DEFAULT '0' NOT NULL)",
        ),
        (
            _BOTH,
            "INSERT INTO hopback_outbox_slots (slot) VALUES "
            + ", ".join(f"({slot})" for slot in range(SLOTS)),
        ),
    ),
    # 2: jobs with their failures, and an audit that the database lets nobody change.
    (
        (
            _BOTH,
            "CREATE TABLE hopback_jobs (number {numbered}, id TEXT NOT NULL UNIQUE,"
            " place TEXT NOT NULL, queue TEXT NOT NULL, state TEXT NOT NULL, key TEXT,"
            " document TEXT NOT NULL, wish TEXT NOT NULL, leased_by TEXT,"
            " leased_until DOUBLE PRECISION DEFAULT '0' NOT NULL)",
        ),
        (_BOTH, "CREATE UNIQUE INDEX hopback_jobs_key ON hopback_jobs (place, key)"),
        # The database itself sees to it that a queue has one active job, however many ask.
        (
            _BOTH,
            "CREATE UNIQUE INDEX hopback_jobs_active ON hopback_jobs (place, queue)"
            " WHERE state IN ('running', 'paused')",
        ),
        (
            _BOTH,
            "CREATE TABLE hopback_job_failures (number {numbered}, job TEXT NOT NULL,"
            " document TEXT NOT NULL)",
        ),
        (_BOTH, "CREATE INDEX ix_hopback_job_failures_job ON hopback_job_failures (job)"),
        (
            _BOTH,
            "CREATE TABLE hopback_audit (number {numbered}, at DOUBLE PRECISION NOT NULL,"
            ' "by" TEXT NOT NULL, action TEXT NOT NULL, queue TEXT NOT NULL, job TEXT NOT NULL,'
            " reason TEXT NOT NULL, result TEXT NOT NULL, details TEXT NOT NULL)",
        ),
        *(
            (
                ("sqlite",),
                f"CREATE TRIGGER hopback_audit_no_{verb.lower()} BEFORE {verb} ON hopback_audit"
                f" BEGIN SELECT RAISE(ABORT, '{_APPEND_ONLY}'); END",
            )
            for verb in ("UPDATE", "DELETE")
        ),
        (
            ("postgresql",),
            "CREATE OR REPLACE FUNCTION hopback_audit_append_only() RETURNS trigger AS $$"
            f" BEGIN RAISE EXCEPTION '{_APPEND_ONLY}'; END $$ LANGUAGE plpgsql",
        ),
        (
            ("postgresql",),
            "CREATE TRIGGER hopback_audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE"
            " ON hopback_audit FOR EACH STATEMENT EXECUTE FUNCTION hopback_audit_append_only()",
        ),
    ),
    # 3: the keys of the admin service.
    (
        (
            _BOTH,
            "CREATE TABLE hopback_api_keys (id TEXT NOT NULL PRIMARY KEY, document TEXT NOT NULL)",
        ),
    ),
    # 4: old rows of the audit may go once it is written down how old; sessions that were ended.
    (
        (
            _BOTH,
            "CREATE TABLE hopback_audit_retention (number {numbered}, at DOUBLE PRECISION NOT NULL,"
            " deleted_before DOUBLE PRECISION NOT NULL)",
        ),
        (
            _BOTH,
            "CREATE TABLE hopback_ended_sessions (id TEXT NOT NULL PRIMARY KEY,"
            " until DOUBLE PRECISION NOT NULL)",
        ),
        (_BOTH, "ALTER TABLE hopback_jobs ADD COLUMN ended_at DOUBLE PRECISION"),
        (("sqlite",), "DROP TRIGGER hopback_audit_no_delete"),
        (
            ("sqlite",),
            "CREATE TRIGGER hopback_audit_no_delete BEFORE DELETE ON hopback_audit WHEN OLD.at >="
            " COALESCE((SELECT MAX(deleted_before) FROM hopback_audit_retention), OLD.at)"
            f" BEGIN SELECT RAISE(ABORT, '{_APPEND_ONLY}'); END",
        ),
        *(
            (
                ("sqlite",),
                f"CREATE TRIGGER hopback_audit_retention_no_{verb.lower()}"
                f" BEFORE {verb} ON hopback_audit_retention"
                f" BEGIN SELECT RAISE(ABORT, '{_APPEND_ONLY}'); END",
            )
            for verb in ("UPDATE", "DELETE")
        ),
        (("postgresql",), "DROP TRIGGER hopback_audit_append_only ON hopback_audit"),
        (
            ("postgresql",),
            "CREATE TRIGGER hopback_audit_append_only BEFORE UPDATE OR TRUNCATE"
            " ON hopback_audit FOR EACH STATEMENT EXECUTE FUNCTION hopback_audit_append_only()",
        ),
        (
            ("postgresql",),
            "CREATE OR REPLACE FUNCTION hopback_audit_retained() RETURNS trigger AS $$ BEGIN"
            " IF OLD.at < (SELECT MAX(deleted_before) FROM hopback_audit_retention)"
            f" THEN RETURN OLD; END IF; RAISE EXCEPTION '{_APPEND_ONLY}'; END $$ LANGUAGE plpgsql",
        ),
        (
            ("postgresql",),
            "CREATE TRIGGER hopback_audit_retained BEFORE DELETE"
            " ON hopback_audit FOR EACH ROW EXECUTE FUNCTION hopback_audit_retained()",
        ),
        (
            ("postgresql",),
            "CREATE TRIGGER hopback_audit_retention_append_only BEFORE UPDATE OR DELETE OR TRUNCATE"
            " ON hopback_audit_retention FOR EACH STATEMENT"
            " EXECUTE FUNCTION hopback_audit_append_only()",
        ),
    ),
    # 5: each entry of the audit says to which broker it belongs.
    (
        (_BOTH, "ALTER TABLE hopback_audit ADD COLUMN broker TEXT DEFAULT '' NOT NULL"),
        (_BOTH, "CREATE INDEX hopback_audit_broker ON hopback_audit (broker, number)"),
    ),
    # 6: alerts, the messages about them that wait, and who may send them.
    (
        (
            _BOTH,
            "CREATE TABLE hopback_leases (name TEXT NOT NULL PRIMARY KEY, leased_by TEXT NOT NULL,"
            " leased_until DOUBLE PRECISION NOT NULL)",
        ),
        (
            _BOTH,
            "CREATE TABLE hopback_alerts (id TEXT NOT NULL PRIMARY KEY, document TEXT NOT NULL)",
        ),
        (
            _BOTH,
            "CREATE TABLE hopback_alert_notices (number {numbered}, target TEXT NOT NULL,"
            " document TEXT NOT NULL, created_at DOUBLE PRECISION NOT NULL,"
            " attempts INTEGER DEFAULT '0' NOT NULL, due_at DOUBLE PRECISION NOT NULL, error TEXT,"
            " ended_at DOUBLE PRECISION)",
        ),
        (
            _BOTH,
            "CREATE INDEX hopback_alert_notices_waiting ON hopback_alert_notices (ended_at, number)",
        ),
    ),
    # 7: what is remembered of queues: answers about them, surveys, trends.
    (
        (
            _BOTH,
            "CREATE TABLE hopback_documents (place TEXT NOT NULL, kind TEXT NOT NULL,"
            " key TEXT NOT NULL, at DOUBLE PRECISION NOT NULL, document TEXT NOT NULL,"
            " PRIMARY KEY (place, kind, key))",
        ),
    ),
    # 8: who signed in by a provider.
    (
        (
            _BOTH,
            "CREATE TABLE hopback_oidc_sessions (id TEXT NOT NULL PRIMARY KEY,"
            " document TEXT NOT NULL, until DOUBLE PRECISION NOT NULL,"
            " busy_until DOUBLE PRECISION DEFAULT '0' NOT NULL)",
        ),
    ),
)

LATEST = len(_MIGRATIONS)
"""The version that this release of Hopback works with."""

_LOCK = 0x686F706261636B
"""The advisory lock that makes two migrating processes wait for each other on PostgreSQL."""

_VERSIONS_EXIST = {
    "sqlite": "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'hopback_versions'",
    "postgresql": "SELECT 1 WHERE to_regclass('hopback_versions') IS NOT NULL",
}


def version_of(execute: Execute, dialect: str) -> int:
    """The version of the database; 0 where nothing was ever applied."""
    if not execute(_VERSIONS_EXIST[dialect]):
        return 0
    found: int | None = execute("SELECT MAX(version) FROM hopback_versions")[0][0]
    return found or 0


def apply_missing(execute: Execute, dialect: str, now: float) -> list[int]:
    """Apply what is missing, in the transaction that is open, and tell which versions that were."""
    if dialect == "postgresql":
        # The second to come waits; SQLite has one writer at a time anyway.
        execute("SELECT pg_advisory_xact_lock(:lock)", {"lock": _LOCK})
    # Not by IF NOT EXISTS: PostgreSQL asks for the right to create before it looks, and who only uses the
    # tables need not have it.
    if not execute(_VERSIONS_EXIST[dialect]):
        execute(
            "CREATE TABLE hopback_versions"
            " (version INTEGER NOT NULL PRIMARY KEY, applied_at DOUBLE PRECISION NOT NULL)"
        )
    applied = list(range(version_of(execute, dialect) + 1, LATEST + 1))
    for version in applied:
        for dialects, statement in _MIGRATIONS[version - 1]:
            if dialect in dialects:
                execute(_in_words_of(dialect, statement))
        execute(
            "INSERT INTO hopback_versions (version, applied_at) VALUES (:version, :now)",
            {"version": version, "now": now},
        )
    return applied


def _in_words_of(dialect: str, statement: str) -> str:
    for placeholder, word in _WORDS[dialect].items():
        statement = statement.replace(placeholder, word)
    return statement
