"""Connections of SQLite come to an end, whichever task is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

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
