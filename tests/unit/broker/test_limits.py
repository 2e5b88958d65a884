"""Restoring a lifted delivery limit: only where no message has outgrown it, in virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hopback.broker.embedded import EmbeddedBroker, EmbeddedManagement
from hopback.broker.limits import DLQ_LIMIT_PREFIX, lift_policy, restore_limits
from hopback.broker.port import count_now
from hopback.errors import UnsafeOperation
from hopback.message import Message
from hopback.testing import in_virtual_time
from hopback.topology.model import Queue, QueueType
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.broker.management.readings import QueueReading
    from hopback.broker.port import Connection

DLQ = Queue("old.errors", QueueType.QUORUM)
COUNT = 10


async def looked_at(times: int, version: BrokerVersion) -> tuple[Connection, EmbeddedManagement]:
    """A queue with a lifted limit whose messages were returned the given number of times."""
    broker = EmbeddedBroker(version=version)
    connection, management = await broker.connect("test"), EmbeddedManagement(broker)
    channel = await connection.open_channel()
    await channel.declare_queue(DLQ)
    await management.put_policy("/", lift_policy(DLQ_LIMIT_PREFIX, DLQ, []))
    for number in range(COUNT):
        await channel.publish(Message("", DLQ.name, f"{number}".encode()))
    for _ in range(times):
        await look(connection)
    return connection, management


async def look(connection: Connection) -> int:
    """Take all messages, return them by closing the channel, and return their number."""
    channel = await connection.open_channel()
    count = 0
    while await channel.get(DLQ.name):
        count += 1
    await channel.close()
    return count


VERSIONS = pytest.mark.parametrize("version", [BrokerVersion(4, 0), BrokerVersion(4, 3)], ids=str)


@VERSIONS
def test_limit_is_not_restored_over_messages_returned_too_often(version: BrokerVersion) -> None:
    @in_virtual_time
    async def play() -> None:
        connection, management = await looked_at(25, version)
        with pytest.raises(
            UnsafeOperation, match=r"10 messages of 'old\.errors' were returned up to 26"
        ):
            await restore_limits(connection, management)
        assert len(await management.policies()) == 1
        assert await look(connection) == await look(connection) == COUNT

    play()


@VERSIONS
def test_removing_lift_policy_directly_loses_messages_at_next_return(
    version: BrokerVersion,
) -> None:
    @in_virtual_time
    async def play() -> None:
        connection, management = await looked_at(25, version)
        await management.delete_policy("/", DLQ_LIMIT_PREFIX + DLQ.name)
        assert await look(connection) == COUNT
        assert await look(connection) == 0

    play()


@VERSIONS
def test_limit_is_restored_if_messages_are_far_below_it(version: BrokerVersion) -> None:
    @in_virtual_time
    async def play() -> None:
        connection, management = await looked_at(8, version)
        (taken,) = await restore_limits(connection, management)
        assert taken.queue == DLQ.name
        assert await management.policies() == ()
        assert await look(connection) == await look(connection) == COUNT

    play()


@in_virtual_time
async def test_limit_is_not_restored_while_messages_are_held() -> None:
    connection, management = await looked_at(25, BrokerVersion(4, 0))
    channel = await connection.open_channel()
    while await channel.get(DLQ.name):
        pass
    with pytest.raises(UnsafeOperation, match=r"10 messages .* held unacked\. Held by: 'test'"):
        await restore_limits(connection, management)
    await channel.close()
    assert await look(connection) == COUNT


class Busy(EmbeddedManagement):
    """A management API that has a consumer start after its first reading of a queue."""

    consumer: Connection | None = None

    async def queue(self, vhost: str, name: str) -> QueueReading:
        found = await super().queue(vhost, name)
        if self.consumer is None:
            self.consumer = await self._broker.connect("late")
            channel = await self.consumer.open_channel()
            await channel.qos(1)
            await channel.consume(name, lambda _: None)
        return found


@in_virtual_time
async def test_limit_is_not_restored_if_consumer_starts_during_check() -> None:
    """It is the single active consumer, so the check receives no messages."""
    broker = EmbeddedBroker(version=BrokerVersion(4, 0))
    connection, management = await broker.connect("test"), Busy(broker)
    queue = Queue(DLQ.name, QueueType.QUORUM, arguments={"x-single-active-consumer": True})
    channel = await connection.open_channel()
    await channel.declare_queue(queue)
    await management.put_policy("/", lift_policy(DLQ_LIMIT_PREFIX, queue, []))
    for number in range(COUNT):
        await channel.publish(Message("", queue.name, f"{number}".encode()))
    await asyncio.sleep(10)  # until the broker reports the messages
    with pytest.raises(
        UnsafeOperation, match=r"no changes .* had 9 messages, and only 0 of them .* again"
    ):
        await restore_limits(connection, management, watch_s=0.0)
    assert len(await management.policies()) == 1
    assert management.consumer is not None
    await management.consumer.close()
    state = await count_now(connection, queue.name)
    assert state is not None
    assert state.messages == COUNT


@in_virtual_time
async def test_limit_of_deleted_queue_is_restored_without_check() -> None:
    connection, management = await looked_at(0, BrokerVersion(4, 0))
    channel = await connection.open_channel()
    await channel.delete_queue(DLQ.name)
    (taken,) = await restore_limits(connection, management)
    assert taken.queue == DLQ.name
    assert await management.policies() == ()
