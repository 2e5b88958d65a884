"""SQL: the inbox, the outbox, jobs, the audit and keys, and how their tables came to be.

Needs the extra `store`; imported only on demand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.extras import needs
from hopback.front_door import front_door

with needs("store", "hopback.store"):
    from hopback.sql.versions import LATEST
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

if TYPE_CHECKING:
    from hopback.store.rows import copy_rows

__all__ = [
    "LATEST",
    "Cursor",
    "CursorTransaction",
    "DatabaseUrlError",
    "DelayedMessages",
    "NoInboxKey",
    "Outbox",
    "Pending",
    "Transaction",
    "copy_rows",
    "current_version",
    "forget_processed",
    "migrate",
    "open_database",
    "transaction",
]

# psycopg comes with an extra of its own.
__getattr__, __dir__ = front_door(__name__, {"hopback.store.rows": ("copy_rows",)})
