"""A database fills up or restarts while inbox, handlers and outbox use it. Every effect must happen
exactly once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, text

from tests.faults.databases import Shop, prepare_database
from tests.harness.postgres import PostgresNode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncEngine

pytestmark = pytest.mark.broker

ORDERS = 150


async def _play(
    amqp_url: str, database: str, engine: AsyncEngine, blow: Callable[[], Awaitable[object]]
) -> list[str]:
    """Run all orders with a fault in the middle. Returns the errors of the handlers."""
    shop = Shop(amqp_url, database, engine)
    await shop.play(ORDERS, {ORDERS // 3: blow})
    assert await shop.effects() == list(range(ORDERS))
    assert await asyncio.to_thread(shop.count_parked) == 0
    return shop.failures


async def test_full_database_delays_effects_and_loses_none(amqp_url: str, tmp_path: Path) -> None:
    """SQLite has no free pages, so handlers fail and are retried. When there is space again, each
    order takes effect once.
    """
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = await prepare_database(url)
    most = {"pages": 1_000_000}

    def limit(raw: Any, *_: object) -> None:
        cursor = raw.cursor()
        cursor.execute(f"PRAGMA max_page_count={most['pages']}")
        cursor.close()

    event.listen(engine.sync_engine, "checkout", limit)

    async def fill_up() -> None:
        async with engine.connect() as connection:
            used = (await connection.execute(text("PRAGMA page_count"))).scalar_one()
        most["pages"] = used + 2
        asyncio.get_running_loop().call_later(2.0, lambda: most.update(pages=1_000_000))

    failures = await _play(amqp_url, url, engine, fill_up)
    await engine.dispose()
    assert any("full" in failure for failure in failures)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_restarted_database_server_loses_and_doubles_no_effect(
    amqp_url: str, mode: str
) -> None:
    """PostgreSQL is stopped or crashes while handlers write."""
    server = PostgresNode()
    try:
        server.start()
        engine = await prepare_database(server.url())
        await _play(amqp_url, server.url(), engine, lambda: asyncio.to_thread(server.restart, mode))
        await engine.dispose()
    finally:
        server.remove()
