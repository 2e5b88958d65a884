"""The query connection and the snapshot of a managed broker."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hopback.broker.embedded.management import EmbeddedManagement
from hopback.clock import ManualClock
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.brokers.snapshot import BrokerSnapshot
from hopback.topology.model import Queue, QueueType, Topology
from hopback.version import BrokerVersion
from tests.unit.ops.shop import CountingBroker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.broker.management.readings import QueueReading


class _CountingManagement(EmbeddedManagement):
    """Counts how often all queues are read."""

    reads = 0

    async def queues(self, vhost: str = "/") -> tuple[QueueReading, ...]:
        self.reads += 1
        return await super().queues(vhost)


@asynccontextmanager
async def _open_managed() -> AsyncIterator[
    tuple[ManagedBroker, CountingBroker, _CountingManagement]
]:
    broker = CountingBroker()
    connection = await broker.connect("declaring")
    channel = await connection.open_channel()
    for name in ("orders", "orders.dlq"):
        await channel.declare_queue(Queue(name))
    await connection.close()
    broker.connected = 0
    management = _CountingManagement(broker)
    managed = ManagedBroker(broker, management=management, clock=ManualClock(0.0))
    yield managed, broker, management
    await managed.close()
    assert broker.connections == ()


async def test_queries_share_one_connection() -> None:
    async with _open_managed() as (managed, broker, _):
        await managed.snapshot(count="orders.dlq")
        await managed.depth("orders.dlq")
        await asyncio.gather(*(managed.count_now("orders") for _ in range(5)))
        assert broker.connected == 1


async def test_query_for_missing_queue_keeps_the_connection() -> None:
    async with _open_managed() as (managed, broker, _):
        assert await managed.count_now("nowhere") is None
        assert await managed.count_now("orders") is not None
        assert broker.connected == 1


async def test_lost_query_connection_is_reopened() -> None:
    async with _open_managed() as (managed, broker, _):
        await managed.count_now("orders")
        broker.connections[0].cut()
        counts = await asyncio.gather(*(managed.count_now("orders") for _ in range(3)))
        assert None not in counts
        assert broker.connected == 2


async def test_channels_that_a_caller_leaves_open_are_closed() -> None:
    async with _open_managed() as (managed, broker, _):
        async with managed.query() as connection:
            channel = await connection.open_channel()
        assert await channel.wait_closed() is None
        assert len(broker.connections) == 1


async def test_recent_snapshots_share_one_reading_for_two_seconds() -> None:
    async with _open_managed() as (managed, _, management):
        snapshots = await asyncio.gather(*(managed.recent_snapshot() for _ in range(3)))
        assert len({id(each) for each in snapshots}) == 1
        assert management.reads == 1
        await managed.recent_snapshot()
        assert management.reads == 1


async def test_connection_names_include_users_of_the_query_connection() -> None:
    async with _open_managed() as (managed, _, _):
        async with managed.query("hopback look orders.dlq"):
            assert "hopback look orders.dlq" in (await managed.connection_names() or ())
        assert "hopback look orders.dlq" not in (await managed.connection_names() or ())


def test_browse_cost_of_many_queues_is_computed_once_per_queue() -> None:
    names = [f"q{number:04}.dlq" for number in range(4000)]
    live = Topology("many", queues=tuple(Queue(name, QueueType.QUORUM) for name in names))
    snapshot = BrokerSnapshot(live, BrokerVersion(4, 0), 0.0, live)
    start = time.thread_time()
    costs = [snapshot.cost(name) for name in names]
    # The time grew with the square of the number of queues: 2.5 s of CPU for 4,000.
    assert time.thread_time() - start < 1.0
    assert {cost.can_lift for cost in costs} == {True}
