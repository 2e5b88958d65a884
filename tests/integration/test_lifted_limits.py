"""Delivery limits lifted by policy, on the RabbitMQ versions that have a default one."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from hopback.broker.apply import apply, live_plan
from hopback.broker.limits import restore_limits
from hopback.broker.management import Management, ManagementAddress
from hopback.broker.rabbitmq import RabbitMQ
from hopback.designs import DESIGNS
from hopback.errors import UnsafeOperation
from hopback.message import Message, Properties
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import SessionRequest
from hopback.ops.contract.search import SearchRequest, survey_queue
from hopback.ops.contract.values import Price
from hopback.ops.operations import Operations
from hopback.topology.model import Policy, Queue, QueueType
from tests.harness.versions import SUITES, installations

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.port import Connection
    from tests.harness.rabbitmq import RabbitNode

pytestmark = [pytest.mark.broker, pytest.mark.all_brokers]

DESIRED = DESIGNS["ratatoskr"].build({"queue": "q"}, hardened=False)
OPERATORS = Policy("ops", "dlq$", {"max-length": 1000}, 3, "queues")


async def look(connection: Connection, queue: str, times: int) -> int:
    """Take a message and close the channel repeatedly. Return how often there was one."""
    seen = 0
    for _ in range(times):
        channel = await connection.open_channel()
        seen += await channel.get(queue) is not None
        await channel.close()
    return seen


@pytest.mark.parametrize("suite", sorted(SUITES))
async def test_dead_letter_queue_with_lifted_limit_can_be_browsed_40_times(
    start_rabbitmq: Callable[..., RabbitNode], suite: str
) -> None:
    """The limit is not restored while messages exceed it."""
    node = start_rabbitmq(installation=installations()[suite])
    connection = await RabbitMQ(node.url).connect("test")
    async with Management(ManagementAddress.derive(None, node.management_url)) as management:
        await management.put_policy("/", OPERATORS)
        planned = await live_plan(DESIRED, connection, management, "/")
        await apply(planned, connection, management, vhost="/", take_offers=True)
        after = await live_plan(DESIRED, connection, management, "/")
        assert (after.is_up_to_date, after.offers) == (True, ())
        channel = await connection.open_channel()
        await channel.publish(Message("", "q.dlq", b"precious"))
        assert await look(connection, "q.dlq", 40) == 40
        with pytest.raises(UnsafeOperation, match="were returned up to 41 times"):
            await restore_limits(connection, management, "/")
        assert await look(connection, "q.dlq", 40) == 40
        await channel.purge_queue("q.dlq")
        taken = await restore_limits(connection, management, "/")
        assert {limit.queue for limit in taken} == {"q", "q.dlq"}
        assert await management.policies("/") == (OPERATORS,)
        await channel.publish(Message("", "q.dlq", b"at risk again"))
        assert await look(connection, "q.dlq", 22) == 21
    await connection.close()


async def test_browsing_counts_no_delivery_where_nack_is_not_counted(
    start_rabbitmq: Callable[..., RabbitNode],
) -> None:
    """Surveys, searches and sessions exceed the limit. All messages stay in order."""
    node = start_rabbitmq(installation=installations()["forky"])
    broker, count = RabbitMQ(node.url), 1500
    connection = await broker.connect("test")
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("q"))
    await channel.declare_queue(Queue("q.dlq", QueueType.QUORUM, arguments={"x-delivery-limit": 4}))
    sent = (Message("", "q.dlq", b"%d" % n, Properties(delivery_mode=2)) for n in range(count))
    await asyncio.gather(*map(channel.publish, sent))
    async with (
        Management(ManagementAddress.derive(None, node.management_url)) as management,
        Operations(ManagedBroker(broker, management=management)) as operations,
    ):
        detail = await operations.queue("q.dlq")
        assert (detail.cost.price, detail.job_cost.price) == (Price.FREE, Price.REFUSED)
        for number in range(6):
            found = await survey_queue(operations, "q.dlq")
            assert (found.seen, found.complete) == (count, True)
            session = await operations.open_session(
                "q.dlq", SessionRequest(limit=100, skip=200 * number)
            )
            await operations.release(session.id)
        assert await _read_bodies(operations, count) == [b"%d" % number for number in range(count)]
        # A reader that leaves early puts its messages behind those returned before.
        for _ in range(6):
            async with aclosing(operations.search(SearchRequest("1"))) as progress:
                await anext(progress)
        seen = await _read_bodies(operations, count)
        assert sorted(map(int, seen)) == list(range(count))
    await connection.close()


async def _read_bodies(operations: Operations, count: int) -> list[bytes]:
    session = await operations.open_session("q.dlq", SessionRequest(limit=count))
    found = (await operations.messages(session.id, limit=count)).dead_letters
    assert [one.delivery_count for one in found] == [0] * count
    bodies = [operations.delivery(session.id, one.id).body for one in found]
    await operations.release(session.id)
    return bodies
