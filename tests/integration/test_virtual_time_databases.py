"""Virtual time beside real databases: a query takes real time and no virtual time."""

from __future__ import annotations

import asyncio

from sqlalchemy import text

from hopback import App, Context, Relay
from hopback.broker.embedded.virtual_time import LoopClock
from hopback.clock import SystemClock
from hopback.runtime.context import compose
from hopback.store import DelayedMessages, Outbox, migrate, open_database, transaction
from hopback.testing import AppTest, Tally, in_virtual_time
from tests.integration.database import database_url

__all__ = ["database_url"]


@in_virtual_time
async def test_handler_and_relay_use_database_in_virtual_time(database_url: str) -> None:
    """A query takes real milliseconds and does not exceed a deadline of a virtual second."""
    clock = LoopClock(SystemClock().now)
    engine = open_database(database_url)
    await migrate(engine, clock)
    app = App("shop")
    app.queue("reminders", retry=["1s"])

    @app.handler("orders", retry=["30m"], deadline=1)
    async def handle(order: int) -> None:
        async with transaction(engine, clock) as tx:
            await tx.send(compose("reminders", order), key="k")
        if engine.dialect.name == "postgresql":
            async with engine.connect() as connection:
                await connection.execute(text("select pg_sleep(0.1)"))

    async with AppTest(app) as test:
        relay = Relay(Outbox(engine, "relay", clock), app.send, idle=1.0)
        relaying = asyncio.create_task(relay.run())
        for order in range(3):
            await test.publish("orders", order)
        assert await test.drain() == Tally(done=3)
        await test.advance(5)
        reminders = test.broker.snapshot().queue("reminders").ready
        assert [one.body for one in reminders] == [b"0", b"1", b"2"]
        relaying.cancel()
        await asyncio.gather(relaying, return_exceptions=True)
    await engine.dispose()


@in_virtual_time
async def test_delayed_outbox_messages_can_be_cancelled(
    database_url: str,
) -> None:
    """The time spent in the outbox is subtracted from the delay."""
    clock = LoopClock(SystemClock().now)
    engine = open_database(database_url)
    await migrate(engine, clock)
    delayed = DelayedMessages(engine, clock)
    app = App("shop")
    app.delays("1d", cancellations=delayed)
    came: list[tuple[str, float]] = []

    @app.handler("reminders", retry=["1s"])
    async def remind(context: Context) -> None:
        came.append((context.message_id, clock.now()))

    async with AppTest(app) as test:
        began = clock.now()
        async with transaction(engine, clock) as tx:
            for name in ("kept", "cancelled", "cancelled with the rest"):
                message = compose("reminders", {}, delay="2h", message_id=name)
                await tx.send(message, key="k")
        await asyncio.sleep(600)
        relaying = asyncio.create_task(
            Relay(Outbox(engine, "relay", clock), app.send, idle=1.0).run()
        )
        await asyncio.sleep(600)
        assert await delayed.cancel("cancelled")
        assert await delayed.cancel("cancelled")
        async with transaction(engine, clock) as tx:
            assert await tx.cancel("cancelled with the rest")
        relaying.cancel()
        await asyncio.gather(relaying, return_exceptions=True)
        await test.drain()
        ((name, moment),) = came
        assert name == "kept"
        assert 7200 <= moment - began < 7202
        assert not await delayed.cancel("kept")
        assert await delayed.begin("kept")  # a redelivery sends it again
        told = {one.fields["message_id"] for one in test.find_events("delay.cancelled")}
        assert told == {"cancelled", "cancelled with the rest"}
        (sent,) = test.find_events("delay.sent")
        assert sent.fields["late"] < 2
    await engine.dispose()
