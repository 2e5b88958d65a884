"""Plans and jobs, with changes of the broker between the review and the start."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from hopback.broker.embedded import EmbeddedManagement
from hopback.errors import BadRequest, BrokerError, CountMismatch, QueueBusy
from hopback.message import Message, Properties
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import (
    Pace,
    Selection,
    SessionRequest,
    Settings,
    Target,
    TargetKind,
)
from hopback.ops.contract.search import SearchRequest
from hopback.ops.contract.values import JobState
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


async def test_limit_with_session_is_refused() -> None:
    """The limit was ignored, and the job discarded all messages of the session."""
    async with open_shop() as shop:
        await shop.park(5)
        view = await shop.operations.open_session(DLQ)
        selection = Selection(session=view.id, limit=2)
        with pytest.raises(BadRequest, match=r"selection\.limit"):
            await shop.operations.start(discard(selection=selection))
        with pytest.raises(BadRequest, match=r"selection\.limit"):
            await anext(shop.operations.export(DLQ, selection))


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
@pytest.mark.parametrize("room", [0, 10])
@pytest.mark.parametrize("count", [21, 60, 600])
@in_virtual_time
async def test_job_ends_if_target_refuses_all_messages_of_first_consumer(
    kind: QueueType, room: int, count: int
) -> None:
    """The first consumer has a prefetch of 20. The job waited forever for message 21, and could not
    be cancelled.
    """
    async with open_shop() as shop:
        limits: dict[str, int | str] = {"x-max-length": room, "x-overflow": "reject-publish"}
        await _declare(shop, Queue("dead", kind), Queue("full", arguments=limits))
        await shop.park(count, queue="dead")
        target = Target(TargetKind.QUEUE, routing_key="full")
        job = await shop.operations.start(redrive(queue="dead", target=target))
        async with asyncio.timeout(120):
            job = await shop.operations.wait(job.id)
        assert (job.state, "gave up after 5 attempts" in job.state_reason) == (
            JobState.FAILED,
            True,
        )
        moved, left = shop.bodies("full"), shop.bodies("dead")
        assert job.counts.done == len(moved) >= room
        assert sorted(moved + left) == sorted(b"%d" % number for number in range(count))


_BY_PRIORITY = (
    ("3.10", Queue("dead", arguments={"x-max-priority": 9})),
    ("4.0", Queue("dead", QueueType.QUORUM, arguments={"x-delivery-limit": 1_000_000})),
    ("4.3", Queue("dead", QueueType.QUORUM, arguments={"x-delivery-limit": 1_000_000})),
)


def _with_priority(text: str, priority: int | None) -> Message:
    found = Properties(message_id=text, delivery_mode=2, priority=priority)
    return Message("", "dead", text.encode(), found)


@pytest.mark.parametrize(("version", "queue"), _BY_PRIORITY)
@pytest.mark.parametrize("is_interrupted", [False, True])
@in_virtual_time
async def test_job_stops_if_queue_delivers_new_messages_first(
    version: str, queue: Queue, is_interrupted: bool
) -> None:
    """A discard removed the new messages and left as many selected ones in the queue."""
    async with open_shop(version=BrokerVersion.parse(version)) as shop:
        await _declare(shop, queue)
        await shop.publish(_with_priority(f"old{n}", 0) for n in range(3000))
        request = discard(queue="dead", confirm="dead", pace=Pace(rate=200, in_flight=1))
        plan = await shop.operations.plan(request)
        job = await shop.operations.start(structs.replace(request, selection=plan.selection))
        await asyncio.sleep(2)
        if is_interrupted:
            await shop.operations.interrupt(job.id)
        await shop.publish(_with_priority(f"new{n}", 9) for n in range(20))
        if is_interrupted:
            await shop.operations.resume(job.id)
        for _ in range(2):
            job = await shop.operations.wait(job.id)
            assert job.state is JobState.FAILED
            left = shop.bodies("dead")
            assert sum(body.startswith(b"new") for body in left) == 20
            assert len(left) == 3020 - job.counts.done
            await shop.operations.resume(job.id)  # ends again with the reason
        await shop.operations.wait(job.id)


@pytest.mark.parametrize(("version", "queue"), _BY_PRIORITY)
@in_virtual_time
async def test_job_completes_in_queue_with_several_priorities(version: str, queue: Queue) -> None:
    async with open_shop(version=BrokerVersion.parse(version)) as shop:
        await _declare(shop, queue)
        await shop.publish(_with_priority(f"a{n}", n % 8 or None) for n in range(1500))
        view = await shop.operations.open_session("dead", SessionRequest(200))
        await shop.operations.return_messages(view.id)
        await shop.publish(_with_priority(f"b{n}", n % 8 or None) for n in range(1500))
        request = discard(queue="dead", confirm="dead", pace=Pace(rate=2000))
        plan = await shop.operations.plan(request)
        job = await shop.operations.start(structs.replace(request, selection=plan.selection))
        job = await shop.operations.wait(job.id)
        assert (job.state, job.counts.done) == (JobState.COMPLETED, 3000), job.state_reason


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
        assert list(found) == [2500] * 6
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
