"""SQL: the inbox, the outbox, jobs, the audit and keys, and how their tables came to be.

Needs the extra `store`; imported only on demand.
"""

from __future__ import annotations

from hopback.extras import needs

with needs("store", "hopback.store"):
    from hopback.store.cursor import Cursor, CursorTransaction
    from hopback.store.database import (
        LATEST,
        DatabaseUrlError,
        current_version,
        migrate,
        open_database,
    )
    from hopback.store.outbox import Outbox, Pending
    from hopback.store.transaction import NoInboxKey, Transaction, forget_processed, transaction

__all__ = [
    "LATEST",
    "Cursor",
    "CursorTransaction",
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
