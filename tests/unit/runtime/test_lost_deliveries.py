"""A run whose channel has closed does not publish. The run of the redelivered message does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Context, Retry
from hopback.broker import EmbeddedBroker
from hopback.broker.embedded import Fault
from hopback.errors import DeliveryLost
from hopback.testing import AppTest, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 5
"""How long each run takes; its channel ends meanwhile."""


def _by_context(app: App, seen: list[object]) -> None:
    @app.handler("orders", retry=["1s"])
    async def handle(context: Context) -> None:
        await asyncio.sleep(SECONDS)
        try:
            await context.publish("out", {})
        except DeliveryLost as lost:
            seen.append(lost)
            raise


def _by_app_in_a_task(app: App, seen: list[object]) -> None:
    async def publish() -> None:
        await asyncio.sleep(SECONDS)
        await app.publish("out", {})

    @app.handler("orders", retry=["1s"])
    async def handle() -> None:
        try:
            await asyncio.create_task(publish())
        except DeliveryLost as lost:
            seen.append(lost)
            raise


def _by_batch(app: App, seen: list[object]) -> None:
    app.queue("orders", retry=["1s"])

    @app.batch("orders", size=1)
    async def handle(rows: list[dict[str, Any]]) -> None:
        await asyncio.sleep(SECONDS)
        try:
            await app.publish("out", {})
        except DeliveryLost as lost:
            seen.append(lost)
            raise


@pytest.mark.parametrize("declare", [_by_context, _by_app_in_a_task, _by_batch])
@in_virtual_time
async def test_handler_whose_channel_ended_publishes_nothing(
    declare: Callable[[App, list[object]], None],
) -> None:
    app, seen = App("shop"), list[object]()
    declare(app, seen)
    app.queue("out", retry=None)
    async with AppTest(app) as test:
        await test.publish("orders", {})
        await test.advance(1)
        test.broker.cut()
        await test.advance(60)
        assert len(test.broker.snapshot().queue("out").messages) == 1
        assert len(seen) == 1
        assert not test.find_events("delivery.retried")


@in_virtual_time
async def test_handler_whose_channel_ended_asks_nothing() -> None:
    app, asked, seen = App("shop"), list[int](), list[object]()

    @app.handler("orders", retry=["1s"])
    async def handle() -> None:
        await asyncio.sleep(SECONDS)
        try:
            await app.request("questions", 1)
        except DeliveryLost as lost:
            seen.append(lost)
            raise

    @app.handler("questions", retry=None, replies=True)
    async def answer(number: int) -> int:
        asked.append(number)
        return number

    async with AppTest(app) as test:
        await test.publish("orders", {})
        await test.advance(1)
        test.broker.cut()
        await test.advance(60)
    assert (asked, len(seen)) == ([1], 1)


@in_virtual_time
async def test_retry_of_run_whose_channel_ended_is_not_published() -> None:
    app = App("shop")
    runs: list[float] = []

    @app.handler("orders", retry=["10m"], attempts=2)
    async def handle() -> Retry:
        runs.append(asyncio.get_running_loop().time())
        await asyncio.sleep(SECONDS)
        return Retry("no")

    async with AppTest(app) as test:
        await test.publish("orders", {})
        await test.advance(1)
        test.broker.cut()
        await test.advance(60)
        assert len(runs) == 2  # the lost run and the redelivered message's
        assert len(test.broker.snapshot().queue("orders.retry.10m").messages) == 1


@in_virtual_time
async def test_publish_that_waits_for_connection_is_dropped_with_its_delivery() -> None:
    """The broker blocks publishers, and meanwhile the consumer's connection is lost."""
    app, seen = App("shop"), list[object]()
    _by_context(app, seen)
    app.queue("out", retry=None)
    async with AppTest(app) as test:
        await test.publish("orders", {})
        await test.advance(1)
        test.broker.block()
        await test.advance(SECONDS)  # the publish waits
        consuming = [one for one in test.broker.connections if one.name == "shop consumer"]
        test.broker.cut(*consuming)
        await test.advance(1)
        test.broker.block(blocked=False)
        await test.advance(60)
        assert len(test.broker.snapshot().queue("out").messages) == 1


@in_virtual_time
async def test_task_that_outlives_its_run_publishes_after_a_reconnect() -> None:
    app = App("shop")
    app.queue("out", retry=None)
    left: set[asyncio.Task[None]] = set()

    async def poll() -> None:
        await asyncio.sleep(60)
        await app.publish("out", {})

    @app.handler("orders", retry=["1s"])
    async def handle() -> None:
        left.add(asyncio.create_task(poll()))

    async with AppTest(app, broker=EmbeddedBroker()) as test:
        await test.publish("orders", {})
        await test.advance(10)
        test.broker.cut()
        await test.advance(120)
        assert len(test.broker.snapshot().queue("out").messages) == 1


@pytest.mark.parametrize(("cuts", "is_parked"), [(1, False), (2, True)])
@in_virtual_time
async def test_publish_is_repeated_once_when_its_connection_is_lost(
    cuts: int, is_parked: bool
) -> None:
    app, runs = App("shop"), list[int]()
    app.queue("out", retry=None)
    all_run = asyncio.Barrier(5)

    @app.handler("orders", retry=None)
    async def handle(number: int, context: Context) -> None:
        runs.append(number)
        await all_run.wait()
        if number == 4:  # the publishes of the others are in flight
            test.faults.inject(Fault.CUT_AFTER_PUBLISH, times=cuts)
        await context.publish("out", number, message_id=f"out-{number}")

    async with AppTest(app) as test:
        for number in range(5):
            await test.publish("orders", number)
        await test.advance(60)
        stored = test.broker.snapshot().queue("out").messages
        assert sorted(runs) == [0, 1, 2, 3, 4]
        assert bool(test.dead_letters("orders")) is is_parked
        assert {one.properties.message_id for one in stored} == {f"out-{one}" for one in runs}
