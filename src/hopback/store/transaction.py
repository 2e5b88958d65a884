"""A handler's transaction: its own work, the processed mark and the events to publish commit together."""

from __future__ import annotations

import warnings
import zlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, insert
from sqlalchemy.dialects import postgresql, sqlite

from hopback.store.document import write_properties
from hopback.store.inbox_key import inbox_key
from hopback.store.schema import SLOTS, inbox, outbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from sqlalchemy import Executable
    from sqlalchemy.engine import CursorResult
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from hopback.clock import Clock
    from hopback.message import Delivery, Message

__all__ = ["Transaction", "forget_processed", "slot_of", "transaction"]


class Transaction:
    """One open transaction; `connection` is SQLAlchemy's, for whatever the handler has to do."""

    def __init__(self, connection: AsyncConnection, clock: Clock) -> None:
        self.connection = connection
        self._clock = clock

    async def first_time(
        self,
        consumer: str,
        message: str | Delivery | None = None,
        *,
        key: str | Callable[[Delivery], str] | None = None,
        message_id: str | None = None,
    ) -> bool:
        """Mark the message as processed by this consumer; False if it already was.

        `message` is a delivery, or the text itself by which the message is known. Of a delivery it is
        the message id, which its producer chose; `key` names a header instead, or is a function of
        the delivery. NoInboxKey if that finds nothing.

        The mark commits with everything else in this transaction: a crash before the commit leaves
        no mark, so the redelivery does the work; one after it finds the mark and does nothing.
        `message_id` is the old name of `message`.
        """
        if message_id is not None:
            warnings.warn(
                "first_time(message_id=…) is now first_time(consumer, message)",
                DeprecationWarning,
                stacklevel=2,
            )
            message = message_id
        if message is None:
            raise TypeError("expected a message to know it by: a delivery, or a text")
        if isinstance(message, str):
            if key is not None:
                raise TypeError("expected a delivery to take the key of, got a text")
            message_id = message
        else:
            message_id = inbox_key(message, key)
        dialect = postgresql if self.connection.dialect.name == "postgresql" else sqlite
        mark = dialect.insert(inbox).values(
            consumer=consumer, message_id=message_id, processed_at=self._clock.now()
        )
        # What was inserted comes back; a row count is not to be had from every driver.
        written = mark.on_conflict_do_nothing().returning(inbox.c.message_id)
        return (await self.connection.execute(written)).first() is not None

    async def publish(self, message: Message, *, key: str | None = None) -> None:
        """Publish after the commit, by the relay; messages of one key keep their order."""
        message_id = message.properties.message_id
        if not message_id:
            raise ValueError(
                "expected a message id: what a relay publishes twice must be recognisable"
            )
        if not message.mandatory:
            raise ValueError(
                "expected a message that must arrive: one with mandatory=False, or a direct reply, "
                "needs no outbox; publish it with `context.publish`"
            )
        await self.execute(
            insert(outbox).values(
                slot=slot_of(key if key is not None else message_id),
                key=key,
                message_id=message_id,
                exchange=message.exchange,
                routing_key=message.routing_key,
                body=message.body,
                properties=write_properties(message.properties),
                created_at=self._clock.now(),
            )
        )

    async def execute(self, statement: Executable, parameters: Any = None) -> CursorResult[Any]:
        """Run a statement in this transaction."""
        return await self.connection.execute(statement, parameters)


@asynccontextmanager
async def transaction(engine: AsyncEngine, clock: Clock) -> AsyncIterator[Transaction]:
    """A transaction that commits at the end of the block, and rolls back if the block fails."""
    async with engine.begin() as connection:
        yield Transaction(connection, clock)


async def forget_processed(engine: AsyncEngine, before: float) -> int:
    """Delete marks older than `before` (seconds since 1970) and tell how many."""
    async with engine.begin() as connection:
        result = await connection.execute(delete(inbox).where(inbox.c.processed_at < before))
    return result.rowcount


def slot_of(key: str) -> int:
    """The slot of a key: the same on every machine and in every process."""
    return zlib.crc32(key.encode()) % SLOTS
