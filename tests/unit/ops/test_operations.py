"""Plans and jobs, with changes of the broker between the review and the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from hopback.errors import CountMismatch
from hopback.message import Message
from hopback.ops.contract.requests import Selection, Settings, Target, TargetKind
from hopback.testing import in_virtual_time
from hopback.topology.model import Queue
from hopback.version import BrokerVersion
from tests.unit.ops.shop import DLQ, MAIN, open_shop, properties, redrive

if TYPE_CHECKING:
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
