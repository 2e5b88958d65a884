"""Database migrations for SQLite and PostgreSQL.

Each migration is applied once, in a transaction. A released migration must not be changed. Add a new
one instead. If the database has unknown migrations, a newer version has created it, and it is not
used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hopback.errors import StoreTooNew

if TYPE_CHECKING:
    from hopback.sql.database import Execute

SLOTS = 64
"""Number of outbox slots, which limits the number of relays. Messages with the same key are in the
same slot, so they are published in order by a single relay.
"""


class SchemaChange(NamedTuple):
    """The statements of a migration. Statements for all databases are executed first.

    `{numbered}` and `{bytes}` are replaced with types that depend on the database.
    """

    both: tuple[str, ...]
    sqlite: tuple[str, ...] = ()
    postgresql: tuple[str, ...] = ()


_TYPES = {
    # SQLite only generates ids for INTEGER keys.
    "sqlite": {"{numbered}": "INTEGER NOT NULL PRIMARY KEY", "{bytes}": "BLOB"},
    "postgresql": {"{numbered}": "BIGSERIAL NOT NULL PRIMARY KEY", "{bytes}": "BYTEA"},
}

# All times are in seconds since the epoch. Documents are JSON.
_INBOX_AND_OUTBOX = (
    """CREATE TABLE hopback_inbox (
        consumer TEXT NOT NULL,
        message_id TEXT NOT NULL,
        processed_at DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (consumer, message_id)
    )""",
    "CREATE INDEX hopback_inbox_processed_at ON hopback_inbox (processed_at)",
    """CREATE TABLE hopback_outbox (
        id {numbered},
        slot INTEGER NOT NULL,
        key TEXT,
        message_id TEXT NOT NULL,
        exchange TEXT NOT NULL,
        routing_key TEXT NOT NULL,
        body {bytes} NOT NULL,
        properties TEXT NOT NULL,
        created_at DOUBLE PRECISION NOT NULL,
        failures INTEGER DEFAULT 0 NOT NULL,
        error TEXT
    )""",
    "CREATE INDEX hopback_outbox_order ON hopback_outbox (slot, id)",
    """CREATE TABLE hopback_outbox_slots (
        slot INTEGER NOT NULL PRIMARY KEY,
        leased_by TEXT,
        leased_until DOUBLE PRECISION DEFAULT 0 NOT NULL
    )""",
    "INSERT INTO hopback_outbox_slots (slot) VALUES "
    + ", ".join(f"({slot})" for slot in range(SLOTS)),
)

_JOBS = (
    # `document` is a JobRecord and `control` a ControlRequest. `ended_at` is set when the job is
    # completed or cancelled. The retention time starts there.
    """CREATE TABLE hopback_jobs (
        number {numbered},
        id TEXT NOT NULL UNIQUE,
        broker TEXT NOT NULL,
        queue TEXT NOT NULL,
        state TEXT NOT NULL,
        idempotency_key TEXT,
        document TEXT NOT NULL,
        control TEXT NOT NULL,
        leased_by TEXT,
        leased_until DOUBLE PRECISION NOT NULL,
        ended_at DOUBLE PRECISION
    )""",
    "CREATE UNIQUE INDEX hopback_jobs_key ON hopback_jobs (broker, idempotency_key)",
    # Make sure there is only one active job per queue.
    """CREATE UNIQUE INDEX hopback_jobs_active ON hopback_jobs (broker, queue)
        WHERE state IN ('running', 'paused')""",
    """CREATE TABLE hopback_job_failures (
        number {numbered},
        job_id TEXT NOT NULL,
        document TEXT NOT NULL
    )""",
    "CREATE INDEX hopback_job_failures_job ON hopback_job_failures (job_id)",
    # Documents by kind, such as surveys, trends and notes.
    """CREATE TABLE hopback_documents (
        broker TEXT NOT NULL,
        kind TEXT NOT NULL,
        key TEXT NOT NULL,
        saved_at DOUBLE PRECISION NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (broker, kind, key)
    )""",
)

_AUDIT = (
    """CREATE TABLE hopback_audit (
        number {numbered},
        at DOUBLE PRECISION NOT NULL,
        "by" TEXT NOT NULL,
        action TEXT NOT NULL,
        broker TEXT NOT NULL,
        queue TEXT NOT NULL,
        job TEXT NOT NULL,
        reason TEXT NOT NULL,
        result TEXT NOT NULL,
        details TEXT NOT NULL
    )""",
    "CREATE INDEX hopback_audit_broker ON hopback_audit (broker, number)",
    # Only audit entries older than the latest `deleted_before` may be deleted.
    """CREATE TABLE hopback_audit_retention (
        number {numbered},
        at DOUBLE PRECISION NOT NULL,
        deleted_before DOUBLE PRECISION NOT NULL
    )""",
)

_SERVICE = (
    # The document contains the hash of the key.
    "CREATE TABLE hopback_api_keys (id TEXT NOT NULL PRIMARY KEY, document TEXT NOT NULL)",
    # Sessions that were signed out before they expired.
    """CREATE TABLE hopback_ended_sessions (
        id TEXT NOT NULL PRIMARY KEY,
        expires_at DOUBLE PRECISION NOT NULL
    )""",
    # The document is encrypted, because it contains tokens. Only one process renews a session at a
    # time.
    """CREATE TABLE hopback_oidc_sessions (
        id TEXT NOT NULL PRIMARY KEY,
        document TEXT NOT NULL,
        expires_at DOUBLE PRECISION NOT NULL,
        renewing_until DOUBLE PRECISION NOT NULL
    )""",
)

_ALERTS = (
    "CREATE TABLE hopback_alerts (id TEXT NOT NULL PRIMARY KEY, document TEXT NOT NULL)",
    # `ended_at` is set when the notice was accepted, or when the service gave up.
    """CREATE TABLE hopback_alert_notices (
        number {numbered},
        target TEXT NOT NULL,
        document TEXT NOT NULL,
        attempts INTEGER DEFAULT 0 NOT NULL,
        due_at DOUBLE PRECISION NOT NULL,
        error TEXT,
        ended_at DOUBLE PRECISION
    )""",
    "CREATE INDEX hopback_alert_notices_waiting ON hopback_alert_notices (ended_at, number)",
    # Tasks that must only be done by one process at a time.
    """CREATE TABLE hopback_leases (
        name TEXT NOT NULL PRIMARY KEY,
        leased_by TEXT NOT NULL,
        leased_until DOUBLE PRECISION NOT NULL
    )""",
)

_ABORT = "BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END"
_RAISE = "RAISE EXCEPTION 'the audit is append-only';"

_APPEND_ONLY_SQLITE = (
    f"CREATE TRIGGER hopback_audit_no_update BEFORE UPDATE ON hopback_audit {_ABORT}",
    f"""CREATE TRIGGER hopback_audit_no_delete BEFORE DELETE ON hopback_audit
        WHEN OLD.at >= COALESCE(
            (SELECT MAX(deleted_before) FROM hopback_audit_retention), OLD.at
        ) {_ABORT}""",
    f"""CREATE TRIGGER hopback_audit_retention_no_update
        BEFORE UPDATE ON hopback_audit_retention {_ABORT}""",
    f"""CREATE TRIGGER hopback_audit_retention_no_delete
        BEFORE DELETE ON hopback_audit_retention {_ABORT}""",
)
_APPEND_ONLY_POSTGRESQL = (
    f"""CREATE FUNCTION hopback_audit_append_only() RETURNS trigger AS $$
        BEGIN {_RAISE} END $$ LANGUAGE plpgsql""",
    f"""CREATE FUNCTION hopback_audit_retained() RETURNS trigger AS $$
        BEGIN
            IF OLD.at < (SELECT MAX(deleted_before) FROM hopback_audit_retention) THEN
                RETURN OLD;
            END IF;
            {_RAISE}
        END $$ LANGUAGE plpgsql""",
    """CREATE TRIGGER hopback_audit_append_only BEFORE UPDATE OR TRUNCATE
        ON hopback_audit FOR EACH STATEMENT EXECUTE FUNCTION hopback_audit_append_only()""",
    """CREATE TRIGGER hopback_audit_retained BEFORE DELETE
        ON hopback_audit FOR EACH ROW EXECUTE FUNCTION hopback_audit_retained()""",
    """CREATE TRIGGER hopback_audit_retention_append_only BEFORE UPDATE OR DELETE OR TRUNCATE
        ON hopback_audit_retention FOR EACH STATEMENT
        EXECUTE FUNCTION hopback_audit_append_only()""",
)

MIGRATIONS = (
    SchemaChange(
        (*_INBOX_AND_OUTBOX, *_JOBS, *_AUDIT, *_SERVICE, *_ALERTS),
        _APPEND_ONLY_SQLITE,
        _APPEND_ONLY_POSTGRESQL,
    ),
)

LATEST = len(MIGRATIONS)
"""The current schema version."""

_LOCK = 0x686F706261636B
"""Key of the PostgreSQL advisory lock for migrations ("hopback" in ASCII)."""

_VERSIONS_EXIST = {
    "sqlite": "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'hopback_versions'",
    "postgresql": "SELECT 1 WHERE to_regclass('hopback_versions') IS NOT NULL",
}


def version_of(execute: Execute, dialect: str) -> int:
    """Return the schema version of the database, or 0 if there are no tables."""
    if not execute(_VERSIONS_EXIST[dialect]):
        return 0
    found: int | None = execute("SELECT MAX(version) FROM hopback_versions")[0][0]
    return found or 0


def apply_missing(
    execute: Execute, dialect: str, now: float, migrations: tuple[SchemaChange, ...] = MIGRATIONS
) -> list[int]:
    """Apply missing migrations and return their numbers.

    Raises:
        StoreTooNew: If the database was migrated by a newer version.
    """
    if dialect == "postgresql":  # SQLite only has one writer at a time
        execute("SELECT pg_advisory_xact_lock(:lock)", {"lock": _LOCK})
    # Don't use IF NOT EXISTS, because PostgreSQL checks the permission to create tables first.
    if not execute(_VERSIONS_EXIST[dialect]):
        execute(
            "CREATE TABLE hopback_versions"
            " (version INTEGER NOT NULL PRIMARY KEY, applied_at DOUBLE PRECISION NOT NULL)"
        )
    version = version_of(execute, dialect)
    if version > len(migrations):
        raise StoreTooNew(
            f"the database is at version {version}, expected at most {len(migrations)}"
        )
    missing = list(range(version + 1, len(migrations) + 1))
    for number in missing:
        migration = migrations[number - 1]
        for statement in (*migration.both, *getattr(migration, dialect)):
            execute(_with_types(dialect, statement))
        execute(
            "INSERT INTO hopback_versions (version, applied_at) VALUES (:version, :now)",
            {"version": number, "now": now},
        )
    return missing


def _with_types(dialect: str, statement: str) -> str:
    for placeholder, name in _TYPES[dialect].items():
        statement = statement.replace(placeholder, name)
    return statement
