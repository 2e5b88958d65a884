"""Use inbox, handlers and outbox while the database fails. Every effect must happen exactly once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

from sqlalchemy import text

from hopback import App, Context, RabbitMQ, Service, compose
from hopback.broker.supervise import Backoff
from hopback.clock import SystemClock
from hopback.errors import BrokerError
from hopback.runtime import Environment
from hopback.store import Outbox, migrate, open_database, transaction
from hopback.topology import Queue
from tests.faults.auditor import bodies_in
from tests.faults.ledger.checks import Promise
from tests.faults.site import version_of
from tests.faults.tally import Part
from tests.harness.postgres import PostgresNode
from tests.integration.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.message import Delivery
    from tests.faults.site import Site
    from tests.harness.rabbitmq import RabbitNode

__all__ = ["CLOCK", "Shop", "databases", "prepare_database"]

CLOCK = SystemClock()


async def prepare_database(url: str) -> AsyncEngine:
    """Create a database with the tables of inbox and outbox and a table for the effects of the
    handlers.
    """
    engine = open_database(url)
    await migrate(engine, CLOCK)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE effects (number INTEGER, filler TEXT)"))
    return engine


class Shop:
    """An application that handles orders. Each order writes one row and sends one event, in the
    same transaction as its mark in the inbox.
    """

    def __init__(self, url: str, database: str, engine: AsyncEngine) -> None:
        self._url = url
        self._database = database
        self._engine = engine
        self.failures: list[str] = []
        self.seen: list[str] = []
        """The ids of the events that the relay has published."""
        self.app = App("shop")
        self.app.handler("orders", retry=["100ms", "300ms"], attempts=100, concurrency=5)(
            self._handle
        )

    async def _handle(self, number: int, context: Context) -> None:
        try:
            async with transaction(self._engine, CLOCK) as tx:
                if await tx.first_time("orders", context.message_id):
                    await tx.execute(text(f"INSERT INTO effects VALUES ({number}, '{'x' * 900}')"))
                    done = compose("events", number, message_id=f"event-{number}")
                    await tx.send(done, key=str(number % 7))
        except Exception as error:
            self.failures.append(str(error))
            raise

    async def play(self, orders: int, blows: dict[int, Callable[[], Awaitable[object]]]) -> None:
        """Publish all orders and wait until all events have been published. `blows` maps the number
        of an order to the fault after it.
        """
        await self._declare()
        watching = asyncio.ensure_future(self._watch())
        async with self._run_service():
            for number in range(orders):
                await self._publish(number)
                if number in blows:
                    await blows[number]()
            with _relay(self._database, self._url):
                await until(lambda: len(set(self.seen)) == orders, seconds=400)
                await self._until_relayed()
        watching.cancel()
        await asyncio.wait({watching})

    async def _declare(self) -> None:
        connection = await RabbitMQ(self._url).connect("test")
        channel = await connection.open_channel()
        await channel.declare_queue(Queue("events"))
        await connection.close()

    async def _watch(self) -> None:
        """Consume all events. After an error, connect again."""
        while True:
            with suppress(BrokerError, OSError):
                connection = await RabbitMQ(self._url).connect("watching")
                try:
                    channel = await connection.open_channel()
                    await channel.consume("events", self._see)
                    await connection.wait_closed()
                finally:
                    await connection.close()
            await asyncio.sleep(0.2)

    def _see(self, event: Delivery) -> None:
        self.seen.append(str(event.properties.message_id))

    async def _publish(self, number: int) -> None:
        """Publish an order until it is confirmed."""
        while True:
            try:
                return await self.app.publish("orders", number, message_id=str(number))
            except (BrokerError, OSError):
                await asyncio.sleep(0.3)

    @asynccontextmanager
    async def _run_service(self) -> AsyncIterator[None]:
        patience = Backoff(first=0.05, most=0.2)
        service = Service(
            self.app,
            RabbitMQ(self._url),
            environment=Environment(backoff=patience, reconnect=patience),
        )
        running = asyncio.create_task(service.run())
        await service.ready.wait()
        try:
            yield
        finally:
            service.stop()
            await running

    async def _until_relayed(self) -> None:
        outbox = Outbox(self._engine, "test", CLOCK)
        async with asyncio.timeout(60):
            while await outbox.depth():  # noqa: ASYNC110 - the outbox does not signal anything
                await asyncio.sleep(0.05)

    async def effects(self) -> list[int]:
        """Return the numbers of the orders that took effect, in ascending order."""
        async with self._engine.connect() as connection:
            rows = await connection.execute(text("SELECT number FROM effects ORDER BY number"))
            return [int(row[0]) for row in rows]

    def count_parked(self) -> int:
        """Return the number of orders in the dead-letter queue, which must be 0."""
        return len(bodies_in(self._url, ["orders.dlq"])["orders.dlq"])


@contextmanager
def _relay(database: str, broker: str) -> Iterator[None]:
    """Run `hopback store relay` as a process."""
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


async def databases(site: Site) -> Part:
    """Kill PostgreSQL and the broker while inbox and outbox are in use."""
    began = time.monotonic()
    orders = site.messages(2_000)
    async with site.turns, site.node() as node, AsyncExitStack() as stack:
        part = Part("inbox and outbox", "PostgreSQL killed, the broker too", version_of(node))
        server = PostgresNode()
        stack.push_async_callback(asyncio.to_thread, server.remove)
        await asyncio.to_thread(server.start)
        engine = await prepare_database(server.url())
        stack.push_async_callback(engine.dispose)
        shop = Shop(node.vhost_url("shop"), server.url(), engine)

        async def kill_database() -> None:
            part.faults["database:_killed"] = part.faults.get("database:_killed", 0) + 1
            await asyncio.to_thread(server.restart, "immediate")

        async def kill_broker() -> None:
            part.faults["broker:_kill_-9"] = part.faults.get("broker:_kill_-9", 0) + 1
            await asyncio.to_thread(_kill_and_start, node)

        moments = {orders * at // 6: kill_database for at in (1, 2, 4)}
        await shop.play(orders, {**moments, orders * 3 // 6: kill_broker})
        effects = await shop.effects()
        part.rounds, part.messages, part.confirmed = 1, orders, orders
        part.broken = {
            name: count
            for name, count in {
                Promise.LOST.value: orders - len(set(effects)),
                Promise.DUPLICATED.value: len(effects) - len(set(effects)),
                Promise.STRAYED.value: await asyncio.to_thread(shop.count_parked),
            }.items()
            if count
        }
    part.seconds = time.monotonic() - began
    return part


def _kill_and_start(node: RabbitNode) -> None:
    node.kill()
    node.start()
