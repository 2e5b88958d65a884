"""Connections of SQLite come to an end, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hopback.store.database import open_database

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_close_that_is_cancelled_beside_a_stop_ends(tmp_path: Path) -> None:
    """As SQLAlchemy does it when a user of a connection is cancelled twice, and the process then ends."""
    engine = open_database(f"sqlite:///{tmp_path / 'store.db'}")
    async with engine.connect() as connection:
        raw = (await connection.get_raw_connection()).driver_connection
        assert raw is not None
        closing = asyncio.create_task(raw.close())
        await asyncio.sleep(0)
        raw.stop()
        closing.cancel()
        _, pending = await asyncio.wait({closing}, timeout=10)
        assert not pending
        await connection.invalidate()
    await engine.dispose()
