"""Inbox and outbox on a DB-API cursor: for Django, psycopg and sqlite3, in the transaction they have open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from hopback.clock import SystemClock
from hopback.store.database import inbox, outbox
from hopback.store.transaction import known_by, outbox_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hopback.clock import Clock
    from hopback.message import Delivery, Message

__all__ = ["Cursor", "CursorTransaction"]


class Cursor(Protocol):
    """What is used of a DB-API cursor."""

    def execute(self, sql: str, params: Sequence[Any], /) -> Any:
        """Run a statement."""

    def fetchone(self) -> Any:
        """The next row, or None."""


class CursorTransaction:
    """Inbox and outbox in the open transaction of a DB-API cursor.

    `placeholder` is what the driver writes for a value: `%s` for psycopg and everything in Django,
    `?` for sqlite3 itself. Committing is the business of whoever opened the transaction.
    """

    def __init__(
        self, cursor: Cursor, *, placeholder: Literal["%s", "?"] = "%s", clock: Clock | None = None
    ) -> None:
        self._cursor = cursor
        self._placeholder = placeholder
        self._clock = clock or SystemClock()

    def first_time(
        self,
        consumer: str,
        message: str | Delivery,
        *,
        key: str | Callable[[Delivery], str] | None = None,
    ) -> bool:
        """Mark the message as processed by this consumer; False if it already was.

        As `Transaction.first_time`: the mark commits with everything else in the transaction.
        """
        row = {
            "consumer": consumer,
            "message_id": known_by(message, key),
            "processed_at": self._clock.now(),
        }
        self._insert(inbox.name, row, " ON CONFLICT DO NOTHING RETURNING message_id")
        return self._cursor.fetchone() is not None

    def publish(self, message: Message, *, key: str | None = None) -> None:
        """Publish after the commit, by the relay; messages of one key keep their order."""
        self._insert(outbox.name, outbox_row(message, key, self._clock.now()))

    def _insert(self, table: str, row: dict[str, Any], then: str = "") -> None:
        # The names are ours, and "key" is a word of SQL; the values go as parameters.
        names = ", ".join(f'"{name}"' for name in row)
        values = ", ".join([self._placeholder] * len(row))
        sql = f"INSERT INTO {table} ({names}) VALUES ({values}){then}"  # noqa: S608 - names of our own schema
        self._cursor.execute(sql, tuple(row.values()))
