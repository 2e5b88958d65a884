"""A database that fills up or restarts under inbox, handler and outbox: every effect happens once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, text

from hopback import App, Context, Queue, RabbitMQ, Service, Surroundings, compose
from hopback.broker.supervise import Backoff
from hopback.clock import SystemClock
from hopback.store import Outbox, migrate, open_database, transaction
from tests.harness.postgres import PostgresNode
from tests.integration.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncEngine

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("fault-storm")]

ORDERS = 150
_CLOCK = SystemClock()


def _app(engine: AsyncEngine, failures: list[str]) -> App:
    """Each order writes one row and one event, together with its mark in the inbox."""
    app = App("shop")

    @app.handler("orders", retry=["100ms", "300ms"], attempts=100, concurrency=5)
    async def handle(number: int, context: Context) -> None:
        try:
            async with transaction(engine, _CLOCK) as tx:
                if await tx.first_time("orders", context.message_id):
                    await tx.execute(text(f"INSERT INTO effects VALUES ({number}, '{'x' * 900}')"))
                    done = compose("", "events", number, message_id=f"event-{number}")
                    await tx.publish(done, key=str(number % 7))
        except Exception as error:
            failures.append(str(error))
            raise

    return app


@contextmanager
def _relay(database: str, broker: str) -> Iterator[None]:
    """`hopback store relay` as a process."""
    relay = subprocess.Popen(
        [sys.executable, "-m", "hopback", "store", "relay", "--idle", "0.05"],
        env={**os.environ, "HOPBACK_DATABASE": database, "HOPBACK_BROKER": broker},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        relay.kill()
        relay.wait()


@asynccontextmanager
async def _running(app: App, url: str) -> AsyncIterator[None]:
    service = Service(app, RabbitMQ(url), world=Surroundings(backoff=Backoff(first=0.05, most=0.2)))
    running = asyncio.create_task(service.run())
    await service.ready.wait()
    try:
        yield
    finally:
        service.stop()
        await running


async def _play(
    amqp_url: str, database: str, engine: AsyncEngine, blow: Callable[[], Awaitable[object]]
) -> list[str]:
    """All orders, with the blow in the middle; what the handlers failed of."""
    failures: list[str] = []
    app = _app(engine, failures)
    connection = await RabbitMQ(amqp_url).connect("test")
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("events"))
    seen: list[str] = []
    await channel.consume("events", lambda one: seen.append(str(one.properties.message_id)))
    async with _running(app, amqp_url):
        for number in range(ORDERS):
            await app.publish("", "orders", number, message_id=str(number))
            if number == ORDERS // 3:
                await blow()
        with _relay(database, amqp_url):
            await until(lambda: len(set(seen)) == ORDERS, seconds=90)
            await _until_empty(Outbox(engine, "test", _CLOCK))
    assert await _effects(engine) == list(range(ORDERS))
    state = await channel.declare_queue(Queue("orders.dlq"), passive=True)
    assert state.messages == 0
    await connection.close()
    return failures


async def _until_empty(outbox: Outbox) -> None:
    async with asyncio.timeout(30):
        while await outbox.depth():  # noqa: ASYNC110 - nothing to wait on but the look itself
            await asyncio.sleep(0.05)


async def _effects(engine: AsyncEngine) -> list[int]:
    async with engine.connect() as connection:
        rows = await connection.execute(text("SELECT number FROM effects ORDER BY number"))
        return [int(row[0]) for row in rows]


async def _prepared(url: str) -> AsyncEngine:
    engine = open_database(url)
    await migrate(engine, _CLOCK)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE effects (number INTEGER, filler TEXT)"))
    return engine


async def test_a_database_that_is_full_holds_effects_back_and_loses_none(
    amqp_url: str, tmp_path: Path
) -> None:
    """SQLite with no page left: handlers fail and are retried; with room again each acts once."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = await _prepared(url)
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
async def test_a_database_server_that_restarts_loses_no_effect_and_doubles_none(
    amqp_url: str, mode: str
) -> None:
    """PostgreSQL stopped in order, and as by a crash, while handlers write."""
    server = PostgresNode()
    try:
        server.start()
        engine = await _prepared(server.url())
        await _play(amqp_url, server.url(), engine, lambda: asyncio.to_thread(server.restart, mode))
        await engine.dispose()
    finally:
        server.remove()
