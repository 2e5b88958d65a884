"""A re-drive trusts the origin that a message names only if the topology confirms it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.designs import DESIGNS
from hopback.fields import Timestamp
from hopback.message import Message, Received
from hopback.ops.brokers.discovery import DeadLetterQueue, stand_in_plan
from hopback.ops.brokers.targets import Aim, aim_at
from hopback.ops.contract.requests import Target, TargetKind
from hopback.ops.contract.values import JobState
from hopback.testing import in_virtual_time
from hopback.topology.model import Binding, Exchange, ExchangeType, Queue
from hopback.topology.plan import Redrive
from tests.unit.ops.shop import DLQ, MAIN, open_shop, properties, redrive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.fields import FieldValue
    from tests.unit.ops.shop import Shop

_SHARED = "shared.dlq"
_DEATH: Mapping[str, FieldValue] = {
    "count": 1, "queue": "vault", "reason": "rejected", "exchange": "", "time": Timestamp(5),
    "routing-keys": ["vault"],
}  # fmt: skip
_FORGED: dict[str, FieldValue] = {
    "hopback-queue": "vault",
    "x-original-queue": "vault",
    "x-parked-from-queue": "vault",
    "x-first-death-queue": "vault",
    "x-last-death-queue": "vault",
    "x-death": [_DEATH],
}


async def _fill_shared(shop: Shop) -> None:
    """Two queues that share a dead-letter queue, and an unrelated one."""
    connection = await shop.broker.connect("test")
    channel = await connection.open_channel()
    await channel.declare_exchange(Exchange("dlx", ExchangeType.FANOUT))
    for name in ("s1", "s2"):
        arguments = {"x-dead-letter-exchange": "dlx"}
        await channel.declare_queue(Queue(name, arguments=arguments))
    for name in (_SHARED, "vault"):
        await channel.declare_queue(Queue(name))
    await channel.bind(Binding("dlx", _SHARED, ""))
    await connection.close()


@in_virtual_time
async def test_forged_origin_headers_are_left_out_of_redrive() -> None:
    """Each of the six headers that can name a queue is forged.

    Messages that died in `s1` return to `s1`.
    """
    async with open_shop() as shop:
        await _fill_shared(shop)
        await shop.publish([Message("", "s1", b"sound", properties("sound"))])
        connection = await shop.broker.connect("test")
        channel = await connection.open_channel()
        taken = await channel.get("s1")
        assert taken is not None
        channel.nack(taken.tag, requeue=False)
        await connection.close()
        await shop.publish(
            Message("dlx", "", name.encode(), properties(name, {name: value}))
            for name, value in _FORGED.items()
        )
        plan = await shop.operations.plan(redrive(queue=_SHARED))
        assert [(way.exchange, way.routing_key, way.count) for way in plan.ways if way.count] == [
            ("", "s1", 1)
        ]
        (left,) = plan.left_out
        assert left.count == len(_FORGED)
        assert "not known to dead-letter to this queue: name a target queue" in left.reason
        job = await shop.operations.start(redrive(queue=_SHARED))
        done = await shop.operations.wait(job.id)
        assert (done.state, done.counts.done, done.counts.failed) == (
            JobState.COMPLETED,
            1,
            len(_FORGED),
        )
        assert shop.bodies("s1") == [b"sound"]
        assert shop.bodies("vault") == []
        assert len(shop.bodies(_SHARED)) == len(_FORGED)
        aimed = redrive(queue=_SHARED, target=Target(TargetKind.QUEUE, "", "s2"))
        await shop.operations.wait((await shop.operations.start(aimed)).id)
        assert len(shop.bodies("s2")) == len(_FORGED)
        assert {
            message.properties.headers["hopback-queue"] for message in shop.queue("s2").ready
        } == {"s2"}


@pytest.mark.parametrize("kind", [TargetKind.FAILED_QUEUE, TargetKind.RETRY_EXCHANGE])
@in_virtual_time
async def test_redrive_to_failed_queue_leaves_out_forged_origin(kind: TargetKind) -> None:
    """The same holds for the retry queue of the failed queue."""
    async with open_shop() as shop:
        await _fill_shared(shop)
        await shop.publish([Message("dlx", "", b"x", properties("m", {"hopback-queue": "vault"}))])
        plan = await shop.operations.plan(redrive(queue=_SHARED, target=Target(kind)))
        assert [each.count for each in plan.left_out] == [1]
        assert "name a target queue" in plan.left_out[0].reason


def test_message_is_not_sent_to_retry_exchange_of_another_queue() -> None:
    plan = DESIGNS["file-pipeline"].build().plan("q.validator")
    assert plan is not None
    plans = (plan, stand_in_plan("orders", _SHARED))
    source = DeadLetterQueue(_SHARED, ("q.validator", "orders"), plans, None, "plan")
    target, message = Target(TargetKind.RETRY_EXCHANGE), Received(_SHARED, "", _SHARED)
    assert aim_at(target, message, "q.validator", source) == Aim(
        plan, Redrive("retry.q.validator", "retry")
    )
    assert aim_at(target, message, "orders", source) == "queue 'orders' has no retry exchange"


@in_virtual_time
async def test_redrive_returns_messages_to_queue_without_plan() -> None:
    """The queue dead-letters into the dead-letter queue of another queue's plan."""
    async with open_shop() as shop:
        connection = await shop.broker.connect("test")
        channel = await connection.open_channel()
        to_dlq = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DLQ}
        await channel.declare_queue(Queue("other", arguments=to_dlq))
        await shop.publish(
            [
                Message("", "other", b"other's", properties("1")),
                Message("", DLQ, b"ours", properties("2", {"hopback-queue": MAIN})),
                Message("", DLQ, b"nobody's", properties("3")),
            ]
        )
        taken = await channel.get("other")
        assert taken is not None
        channel.nack(taken.tag, requeue=False)
        await connection.close()
        await shop.operations.wait((await shop.operations.start(redrive())).id)
        assert (shop.bodies("other"), shop.bodies(MAIN)) == ([b"other's"], [b"ours"])
        assert shop.bodies(DLQ) == [b"nobody's"]


@in_virtual_time
async def test_redrive_leaves_out_exchange_that_does_not_route_to_failed_queue() -> None:
    """The queue is known. The exchange or routing key is not."""
    async with open_shop() as shop:
        await _fill_shared(shop)
        connection = await shop.broker.connect("test")
        channel = await connection.open_channel()
        await channel.declare_exchange(Exchange("front", ExchangeType.TOPIC))
        await channel.bind(Binding("front", MAIN, "order.#"))
        await channel.bind(Binding("front", "vault", "secret"))
        await connection.close()
        origins = {
            "sound": ("front", "order.made"),
            "default": ("", "vault"),
            "other key": ("front", "secret"),
            "unknown": ("nosuch", "order.made"),
        }
        await shop.publish(
            Message(
                "", DLQ, name.encode(),
                properties(name, {"hopback-origin-exchange": exchange, "hopback-origin-routing-key": key}),
            )
            for name, (exchange, key) in origins.items()
        )  # fmt: skip
        aimed = redrive(target=Target(TargetKind.ORIGIN_EXCHANGE))
        plan = await shop.operations.plan(aimed)
        (left,) = plan.left_out
        assert (left.count, "choose another target" in left.reason) == (3, True)
        await shop.operations.wait((await shop.operations.start(aimed)).id)
        assert shop.bodies(MAIN) == [b"sound"]
        assert shop.bodies("vault") == []


@in_virtual_time
async def test_plan_warns_of_unreadable_headers() -> None:
    """The messages are re-driven with the raw bytes in a header."""
    async with open_shop() as shop:
        await shop.park(2, headers={"hopback-unread-headers": b"\x01kz"})
        plan = await shop.operations.plan(redrive())
        assert [text for text in plan.warnings if "hopback-unread-headers" in text]
        await shop.operations.wait((await shop.operations.start(redrive())).id)
        assert {
            message.properties.headers["hopback-unread-headers"]
            for message in shop.queue(MAIN).ready
        } == {b"\x01kz"}
