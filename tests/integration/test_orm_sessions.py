"""Inbox and outbox in the transactions of others: an ORM session, a DB-API cursor, a store of one's own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from hopback import Relay, compose
from hopback.message import Properties, Received
from hopback.store import CursorTransaction, Outbox, Pending, Transaction
from tests.integration.database import database_url, engine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.message import Message

__all__ = ["database_url", "engine"]


class _Base(DeclarativeBase): ...


class _Order(_Base):
    """A row of the application's own."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


async def _handle(session: AsyncSession, number: int, *, fails: bool = False) -> bool:
    """A handler that uses the given session."""
    tx = Transaction(await session.connection())
    if not await tx.first_time("orders", f"m-{number}"):
        return False
    session.add(_Order(id=number))
    await tx.send(compose("invoices", {"id": number}, message_id=f"i-{number}"))
    if fails:
        raise RuntimeError("after all of it")
    return True


async def test_session_work_inbox_mark_and_message_commit_together(
    engine: AsyncEngine,
) -> None:
    """A rollback removes all of them."""
    async with engine.begin() as connection:
        await connection.run_sync(_Base.metadata.create_all)
    with pytest.raises(RuntimeError):
        async with AsyncSession(engine) as session, session.begin():
            await _handle(session, 7, fails=True)
    outbox = Outbox(engine, "relay")
    assert await outbox.depth() == 0
    for first in (True, False):
        async with AsyncSession(engine) as session, session.begin():
            assert await _handle(session, 7) is first
    assert await outbox.depth() == 1
    async with AsyncSession(engine) as session:
        assert await session.get(_Order, 7) is not None
    sent: list[Message] = []

    async def publish(message: Message) -> None:
        sent.append(message)

    assert await Relay(outbox, publish).sweep() == 1
    assert [one.properties.message_id for one in sent] == ["i-7"]


def _connect(url: str) -> tuple[Any, str]:
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///")), "?"
    return psycopg.connect(url), "%s"


async def test_cursor_of_any_driver_takes_part_in_transaction(
    engine: AsyncEngine, database_url: str
) -> None:
    connection, placeholder = _connect(database_url)
    delivery = Received("q", "", "q", b"", Properties(message_id="m-1"))
    with closing(connection):
        for commits in (False, True):
            tx = CursorTransaction(connection.cursor(), placeholder=placeholder)  # type: ignore[arg-type]
            assert tx.first_time("orders", delivery)
            assert not tx.first_time("orders", "m-1")
            tx.send(compose("invoices", {"id": 1}, message_id="i-1"), key="customer 5")
            (connection.commit if commits else connection.rollback)()
        outbox = Outbox(engine, "relay")
        assert await outbox.depth() == 1
        claimed = await outbox.claim()
        [row] = await outbox.pending(claimed, 10)
    assert (row.key, row.message) == (
        "customer 5",
        compose("invoices", {"id": 1}, message_id="i-1"),
    )
    with pytest.raises(ValueError, match="expected a mandatory message"):
        tx.send(compose("invoices", {}, mandatory=False))
    with pytest.raises(ValueError, match="expected `delay` or `at`, got both"):
        compose("invoices", {}, delay="2h", at=datetime.now(UTC))


class _Shelf:
    """An outbox without a database that implements only the protocol."""

    def __init__(self, *messages: Message) -> None:
        self.lease = 30.0
        self.left = dict(enumerate(messages, start=1))
        self.errors: dict[int, str] = {}

    async def claim(self) -> Sequence[int]:
        return [0] if self.left else []

    async def renew(self, claimed: Sequence[int], /) -> bool:
        return True

    async def release(self, claimed: Sequence[int], /) -> None: ...

    async def pending(
        self, claimed: Sequence[int], most: int, /, *, after: int = 0
    ) -> Sequence[Pending]:
        found = [Pending(id_, None, one, 0) for id_, one in self.left.items() if id_ > after]
        return found[:most]

    async def settle(self, published: Sequence[int], failed: Mapping[int, str], /) -> None:
        self.errors |= failed
        for id_ in published:
            del self.left[id_]


async def test_relay_publishes_from_custom_store() -> None:
    """Five methods are enough."""
    shelf = _Shelf(*(compose("q", number) for number in range(5)))
    sent: list[bytes] = []

    async def publish(message: Message) -> None:
        sent.append(message.body)

    assert await Relay(shelf, publish, most=2).sweep() == 5
    assert (sorted(sent), shelf.left) == ([b"0", b"1", b"2", b"3", b"4"], {})
