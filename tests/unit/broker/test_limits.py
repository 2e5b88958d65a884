"""Restoring a lifted delivery limit: only where no message has outgrown it, in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.broker.embedded import EmbeddedBroker, EmbeddedManagement
from hopback.broker.limits import DLQ_LIMIT_PREFIX, lift_policy, restore_limits
from hopback.errors import UnsafeOperation
from hopback.message import Message
from hopback.testing import in_virtual_time
from hopback.topology.model import Queue, QueueType
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.broker.port import Connection

DLQ = Queue("old.errors", QueueType.QUORUM)
COUNT = 10


async def looked_at(times: int, version: BrokerVersion) -> tuple[Connection, EmbeddedManagement]:
    """A queue whose limit is lifted, with messages that were looked at so many times."""
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
    """Take everything, give it back by closing, and tell how much there was."""
    channel = await connection.open_channel()
    count = 0
    while await channel.get(DLQ.name):
        count += 1
    await channel.close()
    return count


VERSIONS = pytest.mark.parametrize("version", [BrokerVersion(4, 0), BrokerVersion(4, 3)], ids=str)


@VERSIONS
def test_what_was_looked_at_too_often_keeps_its_limit_lifted(version: BrokerVersion) -> None:
    """Refused with the highest count; the policy stays, and the next return loses nothing."""

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
def test_without_the_refusal_one_look_would_empty_the_queue(version: BrokerVersion) -> None:
    """Taking the policy away is enough: the next return of any kind removes the messages."""

    @in_virtual_time
    async def play() -> None:
        connection, management = await looked_at(25, version)
        await management.delete_policy("/", DLQ_LIMIT_PREFIX + DLQ.name)
        assert await look(connection) == COUNT
        assert await look(connection) == 0

    play()


@VERSIONS
def test_a_limit_far_away_is_restored(version: BrokerVersion) -> None:
    """Messages that were looked at a few times are not in danger; the look of ours counts as one."""

    @in_virtual_time
    async def play() -> None:
        connection, management = await looked_at(8, version)
        (taken,) = await restore_limits(connection, management)
        assert taken.queue == DLQ.name
        assert await management.policies() == ()
        assert await look(connection) == await look(connection) == COUNT

    play()


@in_virtual_time
async def test_what_somebody_holds_cannot_be_looked_at() -> None:
    """The queue reads as empty, but everything is in somebody's hands: refused, and he is named."""
    connection, management = await looked_at(25, BrokerVersion(4, 0))
    channel = await connection.open_channel()
    while await channel.get(DLQ.name):
        pass
    with pytest.raises(UnsafeOperation, match=r"10 messages .* held unacked\. Held by: 'test'"):
        await restore_limits(connection, management)
    await channel.close()
    assert await look(connection) == COUNT


@in_virtual_time
async def test_a_queue_that_is_gone_needs_no_limit() -> None:
    """Its policy is taken away without a look."""
    connection, management = await looked_at(0, BrokerVersion(4, 0))
    channel = await connection.open_channel()
    await channel.delete_queue(DLQ.name)
    (taken,) = await restore_limits(connection, management)
    assert taken.queue == DLQ.name
    assert await management.policies() == ()
