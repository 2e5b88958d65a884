"""Handlers that hang inside a transaction, beside handlers that use the same database.

A bystander must run once, must not be parked, and its message from the outbox must arrive once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from hopback import App, Context, Service, compose
from hopback.broker import EmbeddedBroker
from hopback.message import Message
from hopback.store import Database
from tests.harness.seeded import publish
from tests.integration.waiting import until

if TYPE_CHECKING:
    from tests.harness.shared import SharedPostgres

_MESSAGES = 100


async def _run_beside(database: Database, hanging: int, **options: Any) -> tuple[Counter[str], int]:
    """Return the runs of the bystanders and the number of hanging handlers after they ran."""
    app = App("shop", lifespan=database.lifespan)
    runs, held, outputs = Counter[str](), set[str](), Counter[str]()

    @app.handler("hanging", retry=["10m"], concurrency=20, **options)
    async def hang(context: Context) -> None:
        async with database.transaction() as tx:
            await tx.first_time("hanging", context.delivery)
            held.add(context.message_id)
            try:
                await asyncio.Event().wait()
            finally:
                held.discard(context.message_id)

    @app.handler("orders", retry=["1s", "1s"], concurrency=10)
    async def handle(context: Context) -> None:
        runs[context.message_id] += 1
        async with database.transaction() as tx:
            if await tx.first_time("orders", context.delivery):
                await tx.send(compose("outputs", {}, message_id=context.message_id))

    @app.handler("outputs", retry=["1s"])
    async def take(context: Context) -> None:
        outputs[context.message_id] += 1

    await database.prepare()
    broker = EmbeddedBroker()
    service = Service(app, broker)
    running = asyncio.create_task(service.run())
    await asyncio.wait_for(service.ready.wait(), 30)
    for number in range(hanging):
        await publish(broker, Message("", "hanging", b"%d" % number))
    await until(lambda: len(held) == hanging)
    for number in range(_MESSAGES):
        await app.publish("orders", number, message_id=f"m-{number}")
    await until(lambda: len(outputs) == _MESSAGES, seconds=60)
    left = len(held)
    assert len(broker.snapshot().queue("orders.dlq").ready) == 0
    assert outputs == Counter({f"m-{number}": 1 for number in range(_MESSAGES)})
    running.cancel()
    await asyncio.wait({running})
    return runs, left


async def test_handlers_that_hang_in_a_transaction_keep_their_connections_only(
    postgres: SharedPostgres,
) -> None:
    """A process has 15 connections to PostgreSQL."""
    database = Database(postgres.create_database())
    runs, left = await _run_beside(database, hanging=14)
    assert (runs.total(), left) == (_MESSAGES, 14)


async def test_deadline_ends_the_transaction_of_a_hanging_handler(tmp_path: Any) -> None:
    """SQLite has one writer. Other transactions wait for it for 10 s."""
    database = Database(f"sqlite:///{tmp_path / 'shop.db'}")
    runs, left = await _run_beside(database, hanging=1, deadline="2s")
    assert (runs.total(), left) == (_MESSAGES, 0)
