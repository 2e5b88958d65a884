"""A connection that is cut repeatedly: no confirmed message is lost, and none is settled twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from hopback.broker.declare import declare
from hopback.broker.message_sender import MessageSender
from hopback.broker.rabbitmq import RabbitMQ
from hopback.broker.supervise import Backoff, Supervised, SupervisedState
from hopback.errors import ChannelClosed, ConnectionFailed, ConnectionLost, PublishFailed
from hopback.message import Message
from hopback.topology.model import Queue, QueueType, Topology
from tests.integration.proxy import Proxy
from tests.integration.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.port import Channel, Connection
    from hopback.message import Delivery

_QUICK = Backoff(first=0.01, most=0.05)
_TOPOLOGY = Topology("test", queues=(Queue("q", QueueType.QUORUM),))


class _Consumer:
    """Consumes and acks on a supervised connection, remembering everything."""

    def __init__(self, proxy: Proxy) -> None:
        self.seen: Counter[bytes] = Counter()
        self.channel_errors: list[str] = []
        self.supervised = Supervised(RabbitMQ(proxy.url), "consumer", self._session, backoff=_QUICK)

    async def _session(self, connection: Connection) -> None:
        await declare(connection, _TOPOLOGY)
        channel = await connection.open_channel()
        await channel.qos(100)
        tasks: set[asyncio.Task[None]] = set()

        def on_delivery(delivery: Delivery) -> None:
            task = asyncio.ensure_future(self._handle(channel, delivery))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        await channel.consume("q", on_delivery)
        error = await channel.wait_closed()
        if isinstance(error, ChannelClosed):
            self.channel_errors.append(str(error))

    async def _handle(self, channel: Channel, delivery: Delivery) -> None:
        for _ in range(int(delivery.body) % 4):
            await asyncio.sleep(0)
        self.seen[delivery.body] += 1
        with contextlib.suppress(ChannelClosed, ConnectionLost):
            channel.ack(delivery.tag)


async def _publish_all(proxy: Proxy, count: int) -> tuple[set[bytes], set[bytes]]:
    """Publish numbers until each is confirmed. Return the confirmed and the repeated ones."""
    confirmed: set[bytes] = set()
    repeated: set[bytes] = set()

    async def send(body: bytes) -> None:
        while body not in confirmed:
            try:
                await publisher.send(Message("", "q", body))
                confirmed.add(body)
            except (PublishFailed, ConnectionFailed):
                repeated.add(body)

    async def lane(numbers: range) -> None:
        for number in numbers:
            await send(b"%d" % number)

    async with MessageSender(RabbitMQ(proxy.url), backoff=_QUICK) as publisher:
        await asyncio.gather(*(lane(range(start, count, 50)) for start in range(50)))
    return confirmed, repeated


async def _cut_at_random(proxies: list[Proxy], cuts: int) -> None:
    """Cut after a random number of bytes, wherever in a frame that falls."""
    chance = random.Random(7)
    for _ in range(cuts):
        proxy = chance.choice(proxies)
        proxy.cut_after(chance.randint(1, 30_000))
        await until(_accepts_more_than(proxy.accepted, proxy))


def _accepts_more_than(count: int, proxy: Proxy) -> Callable[[], bool]:
    return lambda: proxy.accepted > count


async def test_cuts_at_random_points_lose_no_message(amqp_url: str) -> None:
    """10,000 publishes and acks while both connections are cut twenty times."""
    count = 10_000
    async with Proxy(amqp_url) as one, Proxy(amqp_url) as two:
        consumer = _Consumer(one)
        running = asyncio.create_task(consumer.supervised.run())
        cutting = asyncio.create_task(_cut_at_random([one, two], 20))
        confirmed, repeated = await asyncio.wait_for(_publish_all(two, count), 120)
        cutting.cancel()
        await until(lambda: len(consumer.seen) == count)
        left = await _left_over(amqp_url)
        consumer.supervised.stop()
        await running
    assert confirmed == {b"%d" % number for number in range(count)}
    assert consumer.seen.keys() == confirmed
    assert consumer.channel_errors == [], "expected no ack of an unknown tag (406)"
    assert left == 0
    assert min(one.accepted, two.accepted) > 3, "expected both lines to be cut and made again"
    assert consumer.supervised.state is SupervisedState.CLOSED
    assert len(repeated) < count


async def _left_over(url: str) -> int:
    """The messages left in the queue after all acks."""
    connection = await RabbitMQ(url).connect()
    channel = await connection.open_channel()
    left = 1
    async with asyncio.timeout(20):
        while left:
            left = (await channel.declare_queue(Queue("q"), passive=True)).messages
            await asyncio.sleep(0.1)
    await connection.close()
    return left


async def test_publisher_waits_while_broker_refuses_connections(amqp_url: str) -> None:
    states: list[SupervisedState] = []
    tries: list[Exception] = []
    async with Proxy(amqp_url) as proxy:
        broker = RabbitMQ(proxy.url)
        connection = await broker.connect()
        await declare(connection, _TOPOLOGY)
        await connection.close()
        publisher = MessageSender(
            broker,
            backoff=_QUICK,
            on_state=lambda state, _: states.append(state),
            on_failure=tries.append,
        )
        async with publisher:
            await publisher.send(Message("", "q", b"1"))
            proxy.refusing = True
            proxy.cut()
            await until(lambda: states.count(SupervisedState.CONNECTING) == 2)
            waiting = asyncio.create_task(publisher.send(Message("", "q", b"2")))
            await until(lambda: len(tries) > 4)
            assert not waiting.done()
            proxy.refusing = False
            await asyncio.wait_for(waiting, 10)
    # each is reported once, not once per attempt
    reasons = states.count(SupervisedState.CONNECTING)
    assert 2 <= reasons <= len(tries)
    assert states == [
        SupervisedState.CONNECTING,
        SupervisedState.READY,
        *[SupervisedState.CONNECTING] * (reasons - 1),
        SupervisedState.READY,
        SupervisedState.CLOSED,
    ]


async def test_publisher_without_broker_raises_within_timeout() -> None:
    broker = RabbitMQ("amqp://127.0.0.1:1/")
    publisher = MessageSender(broker, timeout=0.3, backoff=_QUICK)
    publisher.start()
    with pytest.raises(ConnectionFailed, match=r"not sent.*Connection refused"):
        await publisher.send(Message("", "q", b"x"))
    await publisher.close()
    with pytest.raises(
        ConnectionFailed, match=r"^no connection to amqp://127.0.0.1:1/: Connection"
    ):
        async with MessageSender(broker):
            raise AssertionError("expected no publisher")


async def test_missing_exchange_fails_only_its_own_publishes(amqp_url: str) -> None:
    """The channel closes with 404. The next publish opens a new one."""
    broker = RabbitMQ(amqp_url)
    connection = await broker.connect()
    await declare(connection, _TOPOLOGY)
    async with MessageSender(broker, backoff=_QUICK) as publisher:
        await publisher.send(Message("", "q", b"1"))
        results = await asyncio.gather(
            publisher.send(Message("missing", "q", b"2")), return_exceptions=True
        )
        assert isinstance(results[0], PublishFailed)
        await publisher.send(Message("", "q", b"3"))
    channel = await connection.open_channel()
    assert (await channel.declare_queue(Queue("q"), passive=True)).messages == 2
    await connection.close()
