"""Plans and jobs, with changes of the broker between the review and the start."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from hopback.broker.embedded import EmbeddedManagement
from hopback.errors import BadRequest, BrokerError, CountMismatch, QueueBusy
from hopback.message import Message
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import (
    Selection,
    SessionRequest,
    Settings,
    Target,
    TargetKind,
)
from hopback.ops.contract.search import SearchRequest
from hopback.ops.operations import Operations
from hopback.testing import in_virtual_time
from hopback.topology.model import Queue, QueueType
from hopback.version import BrokerVersion
from tests.unit.ops.shop import DLQ, MAIN, discard, open_shop, properties, redrive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.ops.contract.requests import RedriveRequest
    from tests.unit.ops.shop import Shop


async def _declare(shop: Shop, *queues: Queue) -> None:
    connection = await shop.broker.connect("test")
    channel = await connection.open_channel()
    for queue in queues:
        await channel.declare_queue(queue)
    await connection.close()


async def _take(shop: Shop, count: int) -> None:
    """Remove the first messages of the dead-letter queue."""
    connection = await shop.broker.connect("test")
    channel = await connection.open_channel()
    for _ in range(count):
        taken = await channel.get(DLQ)
        assert taken is not None
        channel.ack(taken.tag)
    await connection.close()


@pytest.mark.parametrize("version", ["3.10", "4.0", "4.3"])
@pytest.mark.parametrize("terms", ["", "header.color:red"])
@in_virtual_time
async def test_job_leaves_new_messages_if_others_have_left_since_its_plan(
    version: str, terms: str
) -> None:
    """The delivery limit of this quorum queue is so high that browsing is counted but safe."""
    async with open_shop(version=BrokerVersion.parse(version)) as shop:
        await shop.park(4, headers={"color": "red"})
        request = redrive(selection=Selection(filter=terms))
        plan = await shop.operations.plan(request)
        await _take(shop, 2)
        await shop.publish(
            Message("", DLQ, body, properties(body.decode(), {"color": "red"}))
            for body in (b"new1", b"new2")
        )
        job = await shop.operations.start(structs.replace(request, selection=plan.selection))
        await shop.operations.wait(job.id)
        assert (shop.bodies(MAIN), shop.bodies(DLQ)) == ([b"2", b"3"], [b"new1", b"new2"])


async def test_count_without_limit_is_refused() -> None:
    """A caller may expect that the job discards 3 messages, but a count does not limit it."""
    async with open_shop() as shop:
        await shop.park(5)
        with pytest.raises(BadRequest, match=r"selection\.limit"):
            await shop.operations.start(discard(selection=Selection(count=3)))


@in_virtual_time
async def test_expected_count_is_checked_if_plan_has_only_read_first_messages() -> None:
    async with open_shop(settings=Settings(count_scan=10)) as shop:
        await shop.park(30, headers={"color": "red"})

        async def planned(expected: int) -> RedriveRequest:
            request = redrive(selection=Selection(filter="header.color:red"))
            plan = await shop.operations.plan(request)
            assert plan.selection.estimate
            return structs.replace(request, selection=plan.selection, expected_count=expected)

        with pytest.raises(CountMismatch, match="expected 5 messages, found 30"):
            await shop.operations.start(await planned(5))
        job = await shop.operations.start(await planned(30))
        assert (await shop.operations.wait(job.id)).counts.done == 30


@pytest.mark.parametrize("kind", list(QueueType)[:2])
@in_virtual_time
async def test_requests_that_read_a_queue_at_the_same_time_each_read_all_messages(
    kind: QueueType,
) -> None:
    """Each of them read only the messages that the others did not hold. A quorum queue also lost
    its order.
    """
    async with open_shop() as shop:
        await _declare(shop, Queue("dead", kind))
        await shop.park(2500, queue="dead")
        operations = shop.operations

        async def plan() -> int | None:
            request = redrive(queue="dead", selection=Selection(filter="id:m*"))
            return (await operations.plan(request)).selection.count

        async def export() -> int:
            return len([line async for line in operations.export("dead")])

        async def search() -> int:
            request = SearchRequest("id:m*", ("dead",), 0)
            return [report async for report in operations.search(request)][-1].matching

        async def look() -> int:
            view = await operations.open_session("dead", SessionRequest(2500))
            await operations.return_messages(view.id)
            return view.held

        found = await asyncio.gather(plan(), plan(), export(), search(), export(), look())
        assert found == [2500] * 6
        assert shop.bodies("dead") == [b"%d" % number for number in range(2500)]


@in_virtual_time
async def test_request_is_refused_while_another_reads_the_queue_for_long() -> None:
    async with open_shop() as shop:
        await shop.park(3)
        lines = shop.operations.export(DLQ)
        await anext(lines)  # a slow client
        with pytest.raises(QueueBusy, match=r"another request reads 'orders\.dlq'"):
            await shop.operations.plan(redrive())
        await lines.aclose()
        assert (await shop.operations.plan(redrive())).selection.count == 3


@in_virtual_time
async def test_incomplete_read_is_reported_if_another_process_holds_messages() -> None:
    """Both processes have counted all messages before they start to read."""
    async with open_shop() as shop, _second_process(shop) as other:
        await shop.park(2500)

        async def export(operations: Operations) -> list[bytes]:
            return [line async for line in operations.export(DLQ)]

        found = await asyncio.gather(export(shop.operations), export(other), return_exceptions=True)
        errors = [str(each) for each in found if isinstance(each, BrokerError)]
        assert errors
        assert "of 2,500 messages in 'orders.dlq' could not be read" in errors[0]
        request = redrive(selection=Selection(filter="id:m*"))
        plans = await asyncio.gather(shop.operations.plan(request), other.plan(request))
        partial = [plan for plan in plans if plan.seen < 2500]
        assert partial
        for plan in partial:
            assert any("could not be read" in warning for warning in plan.warnings)


@asynccontextmanager
async def _second_process(shop: Shop) -> AsyncIterator[Operations]:
    management = EmbeddedManagement(shop.broker)
    managed = ManagedBroker(shop.broker, management=management, topologies=(shop.topology,))
    async with Operations(managed) as operations:
        yield operations


@pytest.mark.parametrize(
    ("arguments", "warns"),
    [
        ({"x-max-length": 5}, True),
        ({"x-max-length": 5, "x-overflow": "reject-publish-dlx"}, True),
        ({"x-max-length": 5, "x-overflow": "reject-publish"}, False),
        ({"x-max-length": 6}, False),
        ({"x-max-length-bytes": 5}, True),
        ({"x-max-length-bytes": 6}, False),
    ],
    ids=str,
)
@in_virtual_time
async def test_plan_warns_of_target_queue_that_drops_messages(
    arguments: dict[str, int | str], warns: bool
) -> None:
    """The job would be completed, although the target queue had dropped messages."""
    async with open_shop() as shop:
        await _declare(shop, Queue("small", arguments=arguments))
        await shop.park(6)  # with bodies of one byte
        request = redrive(target=Target(TargetKind.QUEUE, routing_key="small"))
        plan = await shop.operations.plan(request)
        assert any("small keeps at most 5" in warning for warning in plan.warnings) is warns
