"""Dead letters on RabbitMQ: sessions do not change queues, and target problems lose no message."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from hopback.broker.declare import declare
from hopback.broker.management import Management, ManagementAddress
from hopback.broker.rabbitmq import RabbitMQ
from hopback.designs import DESIGNS
from hopback.errors import BrokerError, UnsafeOperation
from hopback.message import Message, Properties
from hopback.ops.brokers.discovery import Override
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import (
    Pace,
    RedriveRequest,
    Selection,
    SessionRequest,
    Settings,
    Target,
    TargetKind,
)
from hopback.ops.contract.values import JobState
from hopback.ops.operations import Operations
from hopback.topology.model import Exchange, Queue, QueueType
from tests.harness.versions import SUITES, installations
from tests.integration.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hopback.broker.port import Connection
    from hopback.fields import FieldValue
    from hopback.ops.contract.values import Job
    from tests.harness.rabbitmq import RabbitNode
    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

DLQ, MAIN = "orders.dlq", "orders"
DESIGN = DESIGNS["ratatoskr"].build({"queue": MAIN})


class _Shop:
    """Operations on a broker, and a separate connection to inspect it."""

    def __init__(self, connection: Connection, operations: Operations) -> None:
        self.connection = connection
        self.operations = operations

    async def park(self, count: int, queue: str = DLQ) -> None:
        """Put numbered dead letters into the queue."""
        channel = await self.connection.open_channel()
        properties = Properties(delivery_mode=2)
        await asyncio.gather(
            *(channel.publish(Message("", queue, b"%d" % n, properties)) for n in range(count))
        )
        await channel.close()

    async def depth(self, queue: str) -> int:
        """Ready messages."""
        channel = await self.connection.open_channel()
        state = await channel.declare_queue(Queue(queue), passive=True)
        await channel.close()
        return state.messages

    async def drain(self, queue: str) -> list[int]:
        """Take everything out for good, in order."""
        channel = await self.connection.open_channel()
        found = []
        while (delivery := await channel.get(queue)) is not None:
            found.append(int(delivery.body))
            channel.ack(delivery.tag)
        await channel.close()
        return found


@asynccontextmanager
async def _open_shop(
    url: str, management_url: str, vhost: str, *, through: str = "", **options: Any
) -> AsyncIterator[_Shop]:
    connection = await RabbitMQ(url).connect("test")
    await declare(connection, DESIGN)
    address = ManagementAddress.derive(None, management_url)
    async with Management(address) as management:
        operations = Operations(
            ManagedBroker(RabbitMQ(through or url), management=management, vhost=vhost), **options
        )
        async with operations:
            yield _Shop(connection, operations)
    await connection.close()


def _redrive(**changes: Any) -> RedriveRequest:
    plain: dict[str, Any] = {"queue": DLQ, "selection": Selection(), "reason": "repaired"}
    return RedriveRequest(**plain | changes)


async def _sessions_keep_everything(shop: _Shop, sessions: int) -> None:
    await shop.park(300)
    for number in range(sessions):
        window = SessionRequest(limit=(200, 50, 120)[number % 3], lift=True)
        # A busy broker requeues some time after its reply.
        while await shop.depth(DLQ) < 300:  # noqa: ASYNC110  nobody tells us when it has
            await asyncio.sleep(0.05)
        session = await shop.operations.open_session(DLQ, window)
        assert session.held == window.limit
        dead_letters = (await shop.operations.messages(session.id, limit=500)).dead_letters
        assert [dead_letter.place for dead_letter in dead_letters] == [*range(1, window.limit + 1)]
        await shop.operations.release(session.id)
    assert await shop.drain(DLQ) == [*range(300)]


async def test_hundred_sessions_change_neither_content_nor_order(
    rabbitmq: SharedNode, vhost: str, amqp_url: str
) -> None:
    """The sessions have different sizes. The quorum queue has no limit."""
    async with _open_shop(amqp_url, rabbitmq.management_url, vhost) as shop:
        await _sessions_keep_everything(shop, 100)


@pytest.mark.all_brokers
@pytest.mark.parametrize("suite", sorted(SUITES))
async def test_hundred_sessions_lose_no_message_on_other_versions(
    start_rabbitmq: Callable[..., RabbitNode], suite: str
) -> None:
    """4.0 counts browsed messages: with its default limit, every session is refused, and with the
    limit lifted, all messages stay. 4.3 does not count them.
    """
    node = start_rabbitmq(installation=installations()[suite])
    async with _open_shop(node.url, node.management_url, "/") as shop:
        if suite == "trixie":
            for _ in range(100):
                with pytest.raises(UnsafeOperation, match="21 times"):
                    await shop.operations.open_session(DLQ)
        await _sessions_keep_everything(shop, 100)


async def test_discovery_and_redrive_work_without_management(amqp_url: str) -> None:
    """Depths come from AMQP, targets from passive declares."""
    connection = await RabbitMQ(amqp_url).connect("test")
    await declare(connection, DESIGN)
    async with Operations(ManagedBroker(RabbitMQ(amqp_url), topologies=(DESIGN,))) as operations:
        shop = _Shop(connection, operations)
        await shop.park(3)
        (row,) = await operations.queues()
        assert (row.queue, row.main_queue, row.depth.ready, row.depth.source) == (
            DLQ,
            MAIN,
            3,
            "amqp",
        )
        job = await operations.start(_redrive(expected_count=3))
        assert (await operations.wait(job.id)).counts.done == 3
        assert await shop.drain(MAIN) == [0, 1, 2]
    await connection.close()


async def test_live_topology_shows_dead_letter_queues(
    rabbitmq: SharedNode, vhost: str, amqp_url: str
) -> None:
    """The management API gives the dead-letter routes, types and targets."""
    async with _open_shop(amqp_url, rabbitmq.management_url, vhost) as shop:
        (row,) = await shop.operations.queues()
        assert (row.queue, row.main_queue, row.depth.source) == (DLQ, MAIN, "management")
        detail = await shop.operations.queue(DLQ)
        assert (detail.type, detail.depth.source) == (QueueType.QUORUM, "amqp")
        assert {choice.flaw for choice in detail.targets} == {None}


async def test_missing_or_unroutable_target_is_refused_before_first_message(
    rabbitmq: SharedNode, vhost: str, amqp_url: str
) -> None:
    async with _open_shop(amqp_url, rabbitmq.management_url, vhost) as shop:
        await shop.park(5)
        for target in (
            Target(TargetKind.QUEUE, routing_key="typo"),
            Target(TargetKind.EXCHANGE, "typo", "k"),
            Target(TargetKind.EXCHANGE, "amq.direct", "k"),
        ):
            with pytest.raises(UnsafeOperation, match="no message was moved"):
                await shop.operations.start(_redrive(target=target))
        assert await shop.drain(DLQ) == [*range(5)]


async def test_target_deleted_during_redrive_stops_job(
    rabbitmq: SharedNode, vhost: str, amqp_url: str
) -> None:
    """Every message is in one of the two queues."""
    async with _open_shop(amqp_url, rabbitmq.management_url, vhost) as shop:
        await shop.park(200)
        channel = await shop.connection.open_channel()
        await channel.declare_queue(Queue("spare"))
        target = Target(TargetKind.QUEUE, routing_key="spare")
        job = await shop.operations.start(
            _redrive(target=target, pace=Pace(rate=100, tries=2, pause_s=0.01))
        )
        await asyncio.sleep(0.3)
        moved = set(await shop.drain("spare"))
        await channel.delete_queue("spare")
        done = await shop.operations.wait(job.id)
        assert done.state is JobState.FAILED
        assert "NO_ROUTE" in done.state_reason
        assert done.counts.done < 200
        assert {*await shop.drain(DLQ)} | moved >= {*range(done.counts.done, 200)}

        await shop.park(20)
        await channel.declare_exchange(Exchange("way"))
        gone = Target(TargetKind.EXCHANGE, "way", "k")
        with pytest.raises(UnsafeOperation, match="to no queue"):
            await shop.operations.start(_redrive(target=gone))
        assert await shop.drain(DLQ) == [*range(20)]


async def test_full_target_stops_job_without_loss(
    rabbitmq: SharedNode, vhost: str, amqp_url: str
) -> None:
    async with _open_shop(amqp_url, rabbitmq.management_url, vhost) as shop:
        await shop.park(100)
        channel = await shop.connection.open_channel()
        full: dict[str, FieldValue] = {"x-max-length": 10, "x-overflow": "reject-publish"}
        await channel.declare_queue(Queue("full", arguments=full))
        job = await shop.operations.start(
            _redrive(
                target=Target(TargetKind.QUEUE, routing_key="full"),
                pace=Pace(tries=2, pause_s=0.01, in_flight=5),
            )
        )
        done = await shop.operations.wait(job.id)
        assert done.state is JobState.FAILED
        assert "gave up after 2 attempts" in done.state_reason
        arrived, left = await shop.drain("full"), await shop.drain(DLQ)
        assert done.counts.done == len(arrived)
        assert sorted(arrived + left) == [*range(100)]


async def test_job_continues_after_connection_is_cut(
    rabbitmq: SharedNode, vhost: str, amqp_url: str
) -> None:
    async with (
        Proxy(amqp_url) as proxy,
        _open_shop(amqp_url, rabbitmq.management_url, vhost, through=proxy.url) as shop,
    ):
        await shop.park(400)
        job = await shop.operations.start(_redrive(pace=Pace(rate=400, in_flight=50)))
        await asyncio.sleep(0.4)
        proxy.cut()
        done = await shop.operations.wait(job.id)
        assert (done.state, done.counts.done, done.run) == (JobState.COMPLETED, 400, 2)
        assert set(await shop.drain(MAIN)) == {*range(400)}
        assert await shop.depth(DLQ) == 0


async def test_missing_write_permission_fails_job_with_reason(
    rabbitmq: SharedNode, vhost: str, amqp_url: str
) -> None:
    rabbitmq.management.call("PUT", "/users/reader", {"password": "r", "tags": ""})
    allowed = {"configure": "", "write": "^amq\\.gen.*$", "read": ".*"}
    rabbitmq.management.call("PUT", f"/permissions/{vhost}/reader", allowed)
    connection = await RabbitMQ(amqp_url).connect("test")
    await declare(connection, DESIGN)
    broker = RabbitMQ(amqp_url.replace("guest:guest@", "reader:r@"))
    async with Operations(ManagedBroker(broker, topologies=(DESIGN,))) as operations:
        shop = _Shop(connection, operations)
        await shop.park(5)
        job = await operations.start(_redrive(pace=Pace(tries=2, pause_s=0.01)))
        done = await operations.wait(job.id)
        assert done.state is JobState.FAILED
        assert "403" in done.state_reason
        assert await shop.drain(DLQ) == [*range(5)]
    await connection.close()


@pytest.mark.waits(20)
async def test_job_interrupted_by_broker_restart_resumes_completely(
    start_rabbitmq: Callable[..., RabbitNode],
) -> None:
    node = start_rabbitmq()
    impatient = Settings(patience_s=1.0)
    async with _open_shop(node.url, node.management_url, "/", settings=impatient) as shop:
        await shop.park(500)
        job = await shop.operations.start(_redrive(pace=Pace(rate=300, in_flight=50)))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(node.stop)
        stopped = await shop.operations.wait(job.id)
        assert stopped.state is JobState.INTERRUPTED
        await asyncio.to_thread(node.start)
        done = await _resume(shop, job.id)
        assert (done.state, done.counts.done) == (JobState.COMPLETED, 500)
        shop.connection = await RabbitMQ(node.url).connect("test")
        assert set(await shop.drain(MAIN)) == {*range(500)}
        await shop.connection.close()


async def _resume(shop: _Shop, job_id: str) -> Job:
    """Resume until it is through: a queue that has just come up has no leader for a while."""
    async with asyncio.timeout(90):
        while True:
            try:
                await shop.operations.resume(job_id)
                done = await shop.operations.wait(job_id)
            except BrokerError:
                await asyncio.sleep(0.2)
                continue
            if done.state is JobState.COMPLETED:
                return done
            await asyncio.sleep(0.2)


async def test_queue_named_by_override_is_redriven(amqp_url: str) -> None:
    connection = await RabbitMQ(amqp_url).connect("test")
    channel = await connection.open_channel()
    for name in ("graveyard", "garden"):
        await channel.declare_queue(Queue(name))
    broker = RabbitMQ(amqp_url)
    async with Operations(
        ManagedBroker(broker, overrides=[Override("graveyard", "garden")])
    ) as operations:
        shop = _Shop(connection, operations)
        await shop.park(3, "graveyard")
        job = await operations.start(_redrive(queue="graveyard"))
        assert (await operations.wait(job.id)).counts.done == 3
        assert await shop.drain("garden") == [0, 1, 2]
    await connection.close()
