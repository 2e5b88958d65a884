"""A foreign application on a real RabbitMQ whose cause is not repaired: a careful job stops at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import aio_pika
import pytest

from hopback.broker.declare import declare
from hopback.broker.management import Management, ManagementAddress
from hopback.broker.rabbitmq import RabbitMQ
from hopback.message import Message, Properties
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import (
    RAMP,
    Pace,
    RedriveRequest,
    Selection,
    Target,
    TargetKind,
)
from hopback.ops.contract.search import SearchRequest
from hopback.ops.contract.values import JobState
from hopback.ops.operations import Operations
from hopback.topology.model import Queue, Topology
from tests.unit.ops.service import count_returned

if TYPE_CHECKING:
    from hopback.broker.port import Channel
    from hopback.message import Delivery
    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

_COUNT = 300
_TTL_MS = 1000
_TOPOLOGY = Topology(
    "foreign",
    queues=(
        Queue(
            "slow",
            arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "slow.dlq"},
        ),
        Queue(
            "slow.retry",
            arguments={
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "slow",
                "x-message-ttl": _TTL_MS,
            },
        ),
        Queue("slow.dlq"),
    ),
)


async def _fail_always(channel: Channel) -> None:
    """Its consumer waits twice in the retry queue, then rejects."""
    waited = Counter[bytes]()

    def handle(delivery: Delivery) -> None:
        waited[delivery.body] += 1
        if waited[delivery.body] % 3:
            again = Message("", "slow.retry", delivery.body, delivery.properties)
            channel.publish(again).add_done_callback(lambda _: channel.ack(delivery.tag))
        else:
            channel.nack(delivery.tag, requeue=False)

    await channel.consume("slow", handle)


async def test_ramped_redrive_stops_after_one_message_fails_again(
    rabbitmq: SharedNode, vhost: str, amqp_url: str
) -> None:
    """No design is declared. The retry queue and `x-death` give the duration of the watch."""
    connection = await RabbitMQ(amqp_url).connect("test")
    await declare(connection, _TOPOLOGY)
    channel = await connection.open_channel()
    await _fail_always(channel)
    filling = await connection.open_channel()
    for number in range(_COUNT):
        body = b'{"customer": "C-%05d"}' % number
        await filling.publish(Message("", "slow", body, Properties(delivery_mode=2)))
    async with (
        Management(ManagementAddress.derive(None, rabbitmq.management_url)) as management,
        Operations(
            ManagedBroker(RabbitMQ(amqp_url), management=management, vhost=vhost)
        ) as operations,
    ):
        async with asyncio.timeout(60):
            # A depth only shows by looking.
            while (await operations.queue("slow.dlq")).depth.ready != _COUNT:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        request = RedriveRequest(
            queue="slow.dlq", selection=Selection(), reason="try", pace=Pace(ramp=RAMP)
        )
        plan = await operations.plan(request)
        assert plan.watch_s == pytest.approx(9.5, abs=2)
        assert "slow.retry" in plan.watch_text
        assert plan.reasons[0].sample.attempts == 3
        job = await operations.wait((await operations.start(request)).id)
        assert (job.state, job.counts.done) == (JobState.STOPPED, 1), job
        assert (await operations.queue("slow.dlq")).depth.ready == _COUNT
        async for progress in operations.search(SearchRequest(f"job:{job.id}", ("slow.dlq",))):
            last = progress
        assert (last.matching, last.seen) == (1, _COUNT)
    await connection.close()


@pytest.mark.parametrize("drops_headers", [False, True], ids=["rejects", "publishes-a-copy"])
async def test_redrive_of_3000_stops_when_aio_pika_consumer_fails_40_percent_again(
    rabbitmq: SharedNode, vhost: str, amqp_url: str, drops_headers: bool
) -> None:
    connection = await RabbitMQ(amqp_url).connect("test")
    await declare(connection, _TOPOLOGY)
    channel = await connection.open_channel()
    fates = [
        channel.publish(Message("", "slow.dlq", b"%d" % number, Properties(delivery_mode=2)))
        for number in range(3000)
    ]
    await asyncio.gather(*fates)
    handled = 0
    consumer = await aio_pika.connect(amqp_url)
    consuming = await consumer.channel()

    async def handle(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        nonlocal handled
        handled += 1
        if int(message.body) % 5 not in (1, 4):
            await message.ack()
        elif drops_headers:
            copy = aio_pika.Message(message.body)
            await consuming.default_exchange.publish(copy, routing_key="slow.dlq")
            await message.ack()
        else:
            await message.reject(requeue=False)

    await (await consuming.get_queue("slow")).consume(handle)
    async with (
        Management(ManagementAddress.derive(None, rabbitmq.management_url)) as management,
        Operations(
            ManagedBroker(RabbitMQ(amqp_url), management=management, vhost=vhost)
        ) as operations,
    ):
        pace = Pace(ramp=RAMP, watch_s=1.0)
        request = RedriveRequest(
            queue="slow.dlq", selection=Selection(), reason="try", pace=pace,
            target=Target(TargetKind.QUEUE, routing_key="slow"),
        )  # fmt: skip
        job = await operations.wait((await operations.start(request)).id)
        assert job.state is JobState.STOPPED, job
        assert handled == job.counts.done <= 60
        returned = sum(number % 5 in (1, 4) for number in range(handled))
        ready = (await operations.queue("slow.dlq")).depth.ready
        assert (job.counts.arrived_meanwhile, ready) == (returned, 3000 - handled + returned)
        if not drops_headers:
            assert await count_returned(operations, job.id) == returned
    await consumer.close()
    await connection.close()
