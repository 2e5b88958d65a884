"""Alarms, timeouts and a kill of a private RabbitMQ node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hopback.broker.message_sender import MessageSender
from hopback.broker.rabbitmq import RabbitMQ
from hopback.broker.supervise import Backoff, SupervisedState
from hopback.errors import ConnectionFailed, PreconditionFailed, PublishFailed
from hopback.message import Message
from hopback.topology.model import Queue, QueueType
from tests.harness.configuration import Timings
from tests.integration.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.message import Delivery
    from tests.harness.rabbitmq import RabbitNode

pytestmark = pytest.mark.destructive

_QUICK = Backoff(first=0.05, most=0.5)


@pytest.fixture
def node(start_rabbitmq: Callable[..., RabbitNode]) -> RabbitNode:
    """A private node with a short consumer timeout."""
    return start_rabbitmq(timings=Timings(consumer_timeout_ms=1000))


@pytest.mark.waits(20)
async def test_alarms_timeouts_and_kill_are_detected_and_survived(node: RabbitNode) -> None:
    """One node is used because a start takes seconds."""
    connection = await RabbitMQ(node.url).connect()
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("q", QueueType.QUORUM))
    await connection.close()
    await _consumer_timeout_closes_the_channel_and_is_told(node)
    await _an_alarm_blocks_publishers_only(node)
    await _what_an_alarm_keeps_waiting_is_stored_once(node)
    await _a_publisher_outlives_the_broker(node)


async def _what_an_alarm_keeps_waiting_is_stored_once(node: RabbitNode) -> None:
    """Publishes in flight when the broker stops reading do not time out and are not repeated."""
    connection = await RabbitMQ(node.url, confirm_timeout=5.0).connect()
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("alarmed", QueueType.QUORUM))
    await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.00001")
    fates = [channel.publish(Message("", "alarmed", b"x")) for _ in range(20)]
    await until(lambda: connection.blocked)
    # Longer than the time for a confirm: it would have run out for all of them.
    _, waiting = await asyncio.wait(fates, timeout=7)
    assert waiting
    await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.6")
    await asyncio.gather(*fates)
    assert (await channel.declare_queue(Queue("alarmed"), passive=True)).messages == 20
    await connection.close()


async def _consumer_timeout_closes_the_channel_and_is_told(node: RabbitNode) -> None:
    connection = await RabbitMQ(node.url).connect()
    channel = await connection.open_channel()
    await channel.publish(Message("", "q", b"held"))
    held: list[Delivery] = []
    await channel.consume("q", held.append)
    error = await asyncio.wait_for(channel.wait_closed(), 30)
    assert isinstance(error, PreconditionFailed)
    assert "timed out" in error.text
    assert channel.lost == (held[0].tag,)
    with pytest.raises(PreconditionFailed):
        channel.ack(held[0].tag)
    again = await connection.open_channel()
    found = None
    while found is None:
        found = await again.get("q")
    assert found.redelivered
    again.ack(found.tag)
    await connection.close()


async def _an_alarm_blocks_publishers_only(node: RabbitNode) -> None:
    states: list[SupervisedState] = []
    consuming = await RabbitMQ(node.url).connect()
    channel = await consuming.open_channel()
    broker = RabbitMQ(node.url, confirm_timeout=60)
    async with MessageSender(broker, on_state=lambda state, _: states.append(state)) as publisher:
        await publisher.send(Message("", "q", b"before"))
        await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.00001")
        waiting = asyncio.create_task(publisher.send(Message("", "q", b"during")))
        await until(lambda: SupervisedState.BLOCKED in states)
        found = await channel.get("q")
        assert found is not None
        channel.ack(found.tag)
        assert not waiting.done()
        behind = asyncio.create_task(publisher.send(Message("", "q", b"behind")))
        await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.6")
        await asyncio.wait_for(asyncio.gather(waiting, behind), 30)
    assert states == [
        SupervisedState.CONNECTING,
        SupervisedState.READY,
        SupervisedState.BLOCKED,
        SupervisedState.READY,
        SupervisedState.CLOSED,
    ]
    assert await channel.purge_queue("q") == 2
    await consuming.close()


async def _a_publisher_outlives_the_broker(node: RabbitNode) -> None:
    async with MessageSender(RabbitMQ(node.url), timeout=60, backoff=_QUICK) as publisher:
        await publisher.send(Message("", "q", b"1"))
        await asyncio.to_thread(node.kill)
        await until(lambda: publisher.state is SupervisedState.CONNECTING)
        waiting = asyncio.create_task(publisher.send(Message("", "q", b"2")))
        await asyncio.to_thread(node.restart)
        try:
            await asyncio.wait_for(waiting, 60)
        except (PublishFailed, ConnectionFailed):
            await publisher.send(Message("", "q", b"2"))
    connection = await RabbitMQ(node.url).connect()
    channel = await connection.open_channel()
    bodies = [found.body for _ in range(2) if (found := await channel.get("q"))]
    assert bodies == [b"1", b"2"]
    await connection.close()
