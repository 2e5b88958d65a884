"""SQL: the inbox, the outbox and their migrations. Needs the extra `store`; imported only on demand."""

from __future__ import annotations

from hopback.extras import needs

with needs("store", "hopback.store"):
    from hopback.store.database import DatabaseUrlError, open_database
    from hopback.store.inbox_key import NoInboxKey
    from hopback.store.migrations import LATEST, current_version, migrate
    from hopback.store.outbox import Outbox, Pending
    from hopback.store.transaction import Transaction, forget_processed, transaction

__all__ = [
    "LATEST",
    "DatabaseUrlError",
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
