"""Consuming from a real RabbitMQ: deliveries, settlement, and consumers that end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hopback.broker.rabbitmq import RabbitMQ
from hopback.errors import ChannelClosed, NotFound, PreconditionFailed
from hopback.message import Message
from hopback.topology.model import Queue, QueueType
from tests.integration.waiting import until_read

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.broker.rabbitmq import RabbitChannel, RabbitConnection
    from hopback.message import Delivery


@pytest.fixture
async def connection(amqp_url: str) -> AsyncIterator[RabbitConnection]:
    """A connection whose virtual host is this test's own."""
    connection = await RabbitMQ(amqp_url).connect()
    yield connection
    await connection.close()


class _Inbox:
    """Deliveries as they come, and a way to wait for a number of them."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self._arrived = asyncio.Event()

    def __call__(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        self._arrived.set()

    async def wait_for(self, count: int) -> list[Delivery]:
        async with asyncio.timeout(10):
            while len(self.deliveries) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.deliveries


async def _fill(connection: RabbitConnection, count: int) -> RabbitChannel:
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("q"))
    await asyncio.gather(*(channel.publish(Message("", "q", b"%d" % n)) for n in range(count)))
    return channel


async def _ready(connection: RabbitConnection) -> int:
    channel = await connection.open_channel()
    state = await channel.declare_queue(Queue("q"), passive=True)
    await channel.close()
    return state.messages


async def test_prefetch_limits_unsettled_deliveries(connection: RabbitConnection) -> None:
    """Five at a time, in order. Each ack brings the next."""
    channel, inbox = await _fill(connection, 12), _Inbox()
    await channel.qos(5)
    await channel.consume("q", inbox)
    await inbox.wait_for(5)
    assert await _ready(connection) == 7
    assert len(inbox.deliveries) == 5
    for delivery in list(inbox.deliveries):
        channel.ack(delivery.tag)
    await inbox.wait_for(10)
    assert [delivery.body for delivery in inbox.deliveries] == [b"%d" % n for n in range(10)]
    assert {delivery.queue for delivery in inbox.deliveries} == {"q"}


async def test_unacked_messages_return_after_channel_closes(
    connection: RabbitConnection,
) -> None:
    channel, inbox = await _fill(connection, 100), _Inbox()
    await channel.consume("q", inbox)
    kept = {3, 50, 51, 99}
    for number, delivery in enumerate(await inbox.wait_for(100)):
        if number not in kept:
            channel.ack(delivery.tag)
        if number % 10 == 0:
            await asyncio.sleep(0)
    await channel.close()
    again = await connection.open_channel()
    left = [await again.get("q") for _ in range(len(kept))]
    assert [found.body for found in left if found] == [b"%d" % number for number in sorted(kept)]
    assert all(found.redelivered for found in left if found)
    assert await again.get("q") is None


async def test_nack_requeues_or_dead_letters(connection: RabbitConnection) -> None:
    channel = await connection.open_channel()
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dlq"}
    await channel.declare_queue(Queue("dlq"))
    await channel.declare_queue(Queue("q", arguments=dead))
    await channel.publish(Message("", "q", b"x"))
    first = await channel.get("q")
    assert first is not None
    channel.nack(first.tag, requeue=True)
    second = await channel.get("q")
    assert second is not None
    assert second.redelivered
    channel.nack(second.tag, requeue=False)
    inbox = _Inbox()
    await channel.consume("dlq", inbox)
    (parked,) = await inbox.wait_for(1)
    deaths = parked.properties.headers["x-death"]
    assert isinstance(deaths, list)
    assert deaths[0]["reason"] == "rejected"


async def test_second_settlement_closes_channel_with_406(connection: RabbitConnection) -> None:
    """All unsettled deliveries are reported as lost."""
    channel, inbox = await _fill(connection, 3), _Inbox()
    await channel.consume("q", inbox)
    deliveries = await inbox.wait_for(3)
    channel.ack(deliveries[0].tag)
    channel.ack(deliveries[0].tag)
    error = await channel.wait_closed()
    assert isinstance(error, PreconditionFailed)
    assert "unknown delivery tag 1" in error.text
    assert channel.lost == (2, 3)
    await until_read(lambda: _ready(connection), 2)


async def test_late_ack_on_closed_channel_raises(connection: RabbitConnection) -> None:
    """A new channel with the same tags is not affected."""
    channel, inbox = await _fill(connection, 2), _Inbox()
    await channel.consume("q", inbox)
    old = (await inbox.wait_for(2))[0]
    await channel.close()
    assert channel.lost == (1, 2)
    fresh, again = await connection.open_channel(), _Inbox()
    await fresh.consume("q", again)
    await again.wait_for(2)
    with pytest.raises(ChannelClosed):
        channel.ack(old.tag)
    with pytest.raises(ChannelClosed):
        channel.nack(old.tag, requeue=True)
    await fresh.close()
    await until_read(lambda: _ready(connection), 2)


async def test_consumer_of_deleted_queue_is_cancelled(connection: RabbitConnection) -> None:
    """The channel stays open for a new consumer."""
    channel, cancelled = await _fill(connection, 1), asyncio.Event()
    tags: list[str] = []

    def on_cancel(tag: str) -> None:
        tags.append(tag)
        cancelled.set()

    inbox = _Inbox()
    tag = await channel.consume("q", inbox, on_cancel=on_cancel)
    await inbox.wait_for(1)
    other = await connection.open_channel()
    await other.delete_queue("q")
    await asyncio.wait_for(cancelled.wait(), 5)
    assert tags == [tag]
    await channel.cancel(tag)
    await channel.declare_queue(Queue("q"))
    await channel.consume("q", inbox)
    await channel.publish(Message("", "q", b"again"))
    assert (await inbox.wait_for(2))[1].body == b"again"


async def test_no_delivery_follows_cancel(connection: RabbitConnection) -> None:
    """Held deliveries can still be settled."""
    channel, inbox = await _fill(connection, 3), _Inbox()
    await channel.qos(1)
    tag = await channel.consume("q", inbox)
    (held,) = await inbox.wait_for(1)
    await channel.cancel(tag)
    channel.ack(held.tag)
    await channel.recover()
    assert len(inbox.deliveries) == 1
    await until_read(lambda: _ready(connection), 2)


async def test_consuming_missing_queue_raises_not_found(connection: RabbitConnection) -> None:
    channel = await connection.open_channel()
    with pytest.raises(NotFound):
        await channel.consume("missing", _Inbox())


async def test_callback_that_raises_keeps_connection(connection: RabbitConnection) -> None:
    """The error is logged, and the message stays unsettled."""
    channel, inbox = await _fill(connection, 3), _Inbox()
    reported: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))

    def on_delivery(delivery: Delivery) -> None:
        inbox(delivery)
        if delivery.body == b"1":
            raise ValueError("bad handler")
        channel.ack(delivery.tag)

    await channel.consume("q", on_delivery)
    await inbox.wait_for(3)
    await channel.close()
    assert [str(context["exception"]) for context in reported] == ["bad handler"]
    await until_read(lambda: _ready(connection), 1)


async def test_cancelled_get_requeues_its_message(
    connection: RabbitConnection,
) -> None:
    channel = await _fill(connection, 1)
    getting = asyncio.ensure_future(channel.get("q"))
    await asyncio.sleep(0)
    getting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await getting
    inbox = _Inbox()
    await channel.consume("q", inbox)
    (found,) = await inbox.wait_for(1)
    assert found.redelivered


async def test_recover_redelivers_unsettled_messages(connection: RabbitConnection) -> None:
    channel, inbox = await _fill(connection, 3), _Inbox()
    await channel.consume("q", inbox)
    await inbox.wait_for(3)
    await channel.recover()
    for delivery in (await inbox.wait_for(6))[3:]:
        assert delivery.redelivered
        channel.ack(delivery.tag)
    await channel.close()
    assert await _ready(connection) == 0


async def test_ten_thousand_messages_keep_order(connection: RabbitConnection) -> None:
    channel, inbox = await _fill(connection, 10_000), _Inbox()
    await channel.qos(200)

    def on_delivery(delivery: Delivery) -> None:
        inbox(delivery)
        channel.ack(delivery.tag)

    await channel.consume("q", on_delivery)
    await inbox.wait_for(10_000)
    await channel.close()
    assert [int(delivery.body) for delivery in inbox.deliveries] == list(range(10_000))
    assert await _ready(connection) == 0


@pytest.mark.parametrize("queue_type", [QueueType.CLASSIC, QueueType.QUORUM])
async def test_concurrent_cancel_and_declare_are_both_answered(
    connection: RabbitConnection, queue_type: QueueType
) -> None:
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("q", type=queue_type))
    tag = await channel.consume("q", _Inbox())
    passive = channel.declare_queue(Queue("q"), passive=True)
    _, state = await asyncio.gather(channel.cancel(tag), passive)
    assert state.consumers == 0
