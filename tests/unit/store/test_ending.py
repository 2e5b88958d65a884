"""Connections of SQLite come to an end, whichever task is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from hopback.errors import ConnectionFailed
from hopback.message import Message, Properties
from hopback.store import Database
from hopback.store.database import open_database

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncEngine


async def test_close_cancelled_during_stop_ends(tmp_path: Path) -> None:
    """SQLAlchemy does this when the user of a connection is cancelled twice and the process then
    ends.
    """
    engine = open_database(f"sqlite:///{tmp_path / 'store.db'}")
    async with engine.connect() as connection:
        raw = (await connection.get_raw_connection()).driver_connection
        assert raw is not None
        closing = asyncio.create_task(raw.close())
        await asyncio.sleep(0)
        stopped = raw.stop()
        closing.cancel()
        _, pending = await asyncio.wait({closing}, timeout=10)
        assert not pending
        await stopped  # its thread notifies this loop of its end
        await connection.invalidate()
    await engine.dispose()


async def _read(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        await connection.execute(text("SELECT 1"))


@pytest.mark.parametrize("turns", [0, 3, 6, 10, 15, 21, 28, 36])
async def test_cancelled_user_leaves_no_connection_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """The cancellation hits every turn of the loop: while the thread connects, prepares or reads."""
    opened: list[sqlite3.Connection] = []
    plain = sqlite3.connect

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        made: sqlite3.Connection = plain(*arguments, **options)
        opened.append(made)  # held, so that the garbage collector does not close it
        return made

    monkeypatch.setattr(sqlite3, "connect", connect)
    engine = open_database(f"sqlite:///{tmp_path / 'store.db'}")
    user = asyncio.create_task(_read(engine))
    for _ in range(turns):
        await asyncio.sleep(0)
    user.cancel()
    with suppress(asyncio.CancelledError):
        await user
    await engine.dispose()
    gc.collect()
    assert not any(map(_is_open, opened))


def _is_open(connection: sqlite3.Connection) -> bool:
    try:
        connection.total_changes  # noqa: B018
    except sqlite3.ProgrammingError:
        return False
    return True


@pytest.mark.parametrize("way", ["stop", "close"])
async def test_connection_closed_in_transaction_leaves_no_lock(tmp_path: Path, way: str) -> None:
    """SQLAlchemy closes the connection of a cancelled task without a rollback. A closed connection
    keeps its lock as long as one of its cursors exists.
    """
    engine = open_database(f"sqlite:///{tmp_path / 'store.db'}")
    async with engine.connect() as connection:
        raw = (await connection.get_raw_connection()).driver_connection
        assert raw is not None
        await raw.execute("CREATE TABLE notes (id INTEGER)")
        await raw.execute("BEGIN IMMEDIATE")
        cursor = await raw.execute("INSERT INTO notes VALUES (1), (2) RETURNING id")
        await getattr(raw, way)()
        with closing(sqlite3.connect(tmp_path / "store.db", timeout=0.1)) as other:
            other.execute("INSERT INTO notes VALUES (3)")
            assert other.execute("SELECT id FROM notes").fetchall() == [(3,)]
        del cursor
        await connection.invalidate()
    await engine.dispose()


async def test_database_ends_although_relay_cannot_release_its_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the release replaces the cancellation of the relay."""
    monkeypatch.setattr("hopback.sql.sqlite._BUSY_S", 0.1)
    file = tmp_path / "store.db"
    database = Database(f"sqlite:///{file}")
    sender = _Sender()
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        async with asyncio.timeout(20):
            async with database.lifespan(sender):
                async with database.transaction() as tx:
                    await tx.send(Message("", "orders", b"1", Properties(message_id="m-1")))
                await sender.was_called.wait()
                other.execute("BEGIN IMMEDIATE")


class _Sender:
    """The first publish is never confirmed, and later ones fail."""

    def __init__(self) -> None:
        self.was_called = asyncio.Event()

    async def send(self, _message: Message, /) -> None:
        if self.was_called.is_set():
            raise ConnectionFailed("the broker is away")
        self.was_called.set()
        await asyncio.Event().wait()
