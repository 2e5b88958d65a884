"""Moving every message of a queue into another, where deliveries are slow or cannot be sent on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from hopback.broker.embedded import EmbeddedBroker, run_virtual
from hopback.broker.migrate import move_all
from hopback.errors import BrokerError
from hopback.message import Message, Properties
from hopback.topology.model import Queue, QueueType
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.broker.port import Channel, Connection, OnDelivery
    from hopback.message import Delivery

COUNT = 30


async def prepared() -> Connection:
    """A connection to a broker with messages in `old` and an empty `new`."""
    connection = await EmbeddedBroker(version=BrokerVersion(4, 3)).connect()
    channel = await connection.open_channel()
    for name in ("old", "new"):
        await channel.declare_queue(Queue(name, QueueType.QUORUM))
    for number in range(COUNT):
        await channel.publish(Message("", "old", f"{number}".encode()))
    await channel.close()
    return connection


async def count(connection: Connection, queue: str) -> int:
    """How many messages are ready."""
    channel = await connection.open_channel()
    state = await channel.declare_queue(Queue(queue), passive=True)
    await channel.close()
    return state.messages


class SlowConnection:
    """A connection with delayed deliveries and confirms.

    All other answers are immediate. A quorum queue of RabbitMQ 4.3 behaved like this: a passive
    declare on another channel reported no ready message before the first delivery arrived.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def open_channel(self) -> Channel:
        """A channel with slow deliveries and confirms."""
        loop = asyncio.get_running_loop()
        channel = await self._connection.open_channel()
        consume, cancel, publish = channel.consume, channel.cancel, channel.publish

        async def consume_slowly(queue: str, on_delivery: OnDelivery, **options: Any) -> str:
            return await consume(
                queue, lambda delivery: loop.call_later(1.0, on_delivery, delivery), **options
            )

        async def cancel_after_them(tag: str) -> None:
            await cancel(tag)
            await asyncio.sleep(1.0)

        def publish_slowly(message: Message, **options: Any) -> asyncio.Future[None]:
            slow: asyncio.Future[None] = loop.create_future()
            publish(message, **options).add_done_callback(
                lambda _: loop.call_later(0.5, slow.set_result, None)
            )
            return slow

        channel.consume = consume_slowly  # type: ignore[method-assign]
        channel.cancel = cancel_after_them  # type: ignore[method-assign]
        channel.publish = publish_slowly  # type: ignore[method-assign]
        return channel


class StaggeredConnection:
    """A connection whose confirms arrive 10 ms apart. It counts the passive declares."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._published = 0
        self.declares = 0

    async def open_channel(self) -> Channel:
        """A channel with late confirms."""
        loop = asyncio.get_running_loop()
        channel = await self._connection.open_channel()
        declare, publish = channel.declare_queue, channel.publish

        async def count_declare(queue: Queue, **options: Any) -> Any:
            self.declares += 1
            return await declare(queue, **options)

        def publish_late(message: Message, **options: Any) -> asyncio.Future[None]:
            self._published += 1
            wait, late = self._published * 0.01, loop.create_future()
            publish(message, **options).add_done_callback(
                lambda _: loop.call_later(wait, late.set_result, None)
            )
            return late

        channel.declare_queue = count_declare  # type: ignore[method-assign]
        channel.publish = publish_late  # type: ignore[method-assign]
        return channel


def test_move_counts_its_queue_at_most_20_times_a_second() -> None:
    """A count after each message would cost the broker more than the move."""

    async def play() -> None:
        staggered = StaggeredConnection(await prepared())
        assert await move_all(staggered, "old", "new", lambda d: d.properties) == COUNT  # type: ignore[arg-type]
        assert staggered.declares <= 20 * COUNT * 0.01 + 4

    run_virtual(play())


def test_deliveries_in_transit_are_not_moved_twice() -> None:
    async def play() -> None:
        connection = await prepared()
        slow = SlowConnection(connection)
        assert await move_all(slow, "old", "new", lambda d: d.properties) == COUNT  # type: ignore[arg-type]
        assert (await count(connection, "old"), await count(connection, "new")) == (0, COUNT)
        await connection.close()

    run_virtual(play())


def test_unpublishable_message_ends_move_without_loss() -> None:
    def rewrite(delivery: Delivery) -> Properties:
        if delivery.body == b"3":
            raise ValueError("a header that cannot be written")
        return delivery.properties

    async def play() -> None:
        connection = await prepared()
        with pytest.raises(BrokerError, match="'old' cannot be published again: a header"):
            await asyncio.wait_for(move_all(connection, "old", "new", rewrite), 60)
        assert await count(connection, "old") + await count(connection, "new") >= COUNT
        assert await count(connection, "old") >= 1
        await connection.close()

    run_virtual(play())
