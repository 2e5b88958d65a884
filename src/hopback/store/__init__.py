"""Inbox, outbox and database migrations. Requires the `store` extra."""

from hopback.extras import needs

with needs("store", "hopback.store"):
    from hopback.sql.versions import LATEST
    from hopback.store.application_database import Database
    from hopback.store.database import DatabaseUrlError, current_version, migrate, open_database
    from hopback.store.transaction import (
        Cursor,
        CursorTransaction,
        DelayedMessages,
        NoInboxKey,
        Outbox,
        Pending,
        Transaction,
        forget_processed,
        transaction,
    )

__all__ = [
    "LATEST",
    "Cursor",
    "CursorTransaction",
    "Database",
    "DatabaseUrlError",
    "DelayedMessages",
    "NoInboxKey",
    "Outbox",
    "Pending",
    "Transaction",
    "current_version",
    "forget_processed",
    "migrate",
    "open_database",
    "transaction",
]
