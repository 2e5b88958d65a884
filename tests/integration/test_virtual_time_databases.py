"""Virtual time beside real databases: a query takes real time and no virtual time."""

from __future__ import annotations

import asyncio

from sqlalchemy import text

from hopback import App, Relay
from hopback.broker.embedded.virtual_time import LoopClock
from hopback.clock import SystemClock
from hopback.runtime.context import compose
from hopback.store import Outbox, migrate, open_database, transaction
from hopback.testing import AppTest, Tally, in_virtual_time
from tests.integration.database import database_url, postgres

__all__ = ["database_url", "postgres"]


@in_virtual_time
async def test_a_handler_and_a_relay_use_a_database_in_virtual_time(database_url: str) -> None:
    """A deadline of a second is not met by a query of real milliseconds, nor is the relay outrun."""
    clock = LoopClock(SystemClock().now)
    engine = open_database(database_url)
    await migrate(engine, clock)
    app = App("shop")
    app.queue("reminders", retry=["1s"])

    @app.handler("orders", retry=["30m"], deadline=1)
    async def handle(order: int) -> None:
        async with transaction(engine, clock) as tx:
            await tx.publish(compose("", "reminders", order), key="k")
        if engine.dialect.name == "postgresql":
            async with engine.connect() as connection:
                await connection.execute(text("select pg_sleep(0.1)"))

    async with AppTest(app) as test:
        relay = Relay(Outbox(engine, "relay", clock), app.send, idle=1.0)
        relaying = asyncio.create_task(relay.run())
        for order in range(3):
            await test.publish("", "orders", order)
        assert await test.drain() == Tally(done=3)
        await test.advance(5)
        reminders = test.broker.snapshot().queue("reminders").ready
        assert [one.body for one in reminders] == [b"0", b"1", b"2"]
        relaying.cancel()
        await asyncio.gather(relaying, return_exceptions=True)
    await engine.dispose()
