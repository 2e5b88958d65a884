"""`rate="10/s"`: messages start at a rate, per handler and process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hopback import App, Context, Delivery, Rule
from hopback.errors import InvalidDeclaration
from hopback.runtime.handler import HandlerOptions
from hopback.testing import AppTest, Tally, in_virtual_time


def _key(delivery: Delivery) -> str:
    return delivery.body.decode()[-1]


class _Clock:
    """Seconds since the start of the test."""

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._began = self._time()

    def __call__(self) -> float:
        return self._time() - self._began


@pytest.mark.parametrize("options", [{}, {"concurrency": 1}, {"prefetch": 1}, {"key": _key}])
@in_virtual_time
async def test_rate_spaces_starts_and_does_not_slow_another_queue(options: Any) -> None:
    app, started, others = App("shop"), list[float](), list[float]()

    clock = _Clock()

    @app.handler("orders", retry=["1s"], rate="10/s", **options)
    async def handle(number: int) -> None:
        started.append(clock())

    @app.handler("mails", retry=["1s"])
    async def mail(number: int) -> None:
        others.append(clock())

    async with AppTest(app) as test:
        for number in range(50):
            await test.publish("orders", number)
            await test.publish("mails", number)
        assert await test.drain() == Tally(done=100)
    assert 4.7 <= started[-1] - started[0] <= 5.1
    for first in started:
        assert sum(first <= one < first + 1 for one in started) <= 12
    assert others[-1] < 0.5


@in_virtual_time
async def test_rate_counts_the_messages_of_batches() -> None:
    app, started = App("shop"), list[tuple[int, int]]()
    clock = _Clock()

    @app.batch("orders", retry=["1s"], size=10, batchers=2, rate="10/s")
    async def handle(numbers: list[int]) -> None:
        started.append((round(clock()), len(numbers)))

    async with AppTest(app) as test:
        for number in range(40):
            await test.publish("orders", number)
        assert await test.drain() == Tally(done=40)
    began = started[0][0]
    assert [(at - began, size) for at, size in started] == [(0, 10), (1, 10), (2, 10), (3, 10)]


@pytest.mark.parametrize("is_batch", [False, True])
@in_virtual_time
async def test_stop_requeues_messages_that_wait_for_their_turn(is_batch: bool) -> None:
    app, clock = App("shop"), _Clock()
    if is_batch:

        @app.batch("orders", retry=["1s"], size=5, wait="100ms", rate="1/s")
        async def handle_all(numbers: list[int]) -> None: ...

    else:

        @app.handler("orders", retry=["1s"], rate="1/s")
        async def handle(number: int) -> None: ...

    async with AppTest(app) as test:
        for number in range(10):
            await test.publish("orders", number)
        await test.advance("2s")
        left = clock()
    assert clock() - left < 1
    assert test.report is not None
    assert 2 <= test.report.handled <= 5
    assert test.broker.node.queues["orders"].ready


@in_virtual_time
async def test_slow_rate_keeps_consumer_and_retries() -> None:
    """The broker is checked every 30 s, while a message waits for a minute."""
    app, runs = App("shop"), list[int]()

    @app.handler("orders", retry=["1s"], rate="1/m", rules=[Rule(KeyError, "park")])
    async def handle(number: int, context: Context) -> None:
        runs.append(context.attempt)
        if context.attempt == 1 and number == 0:
            raise ValueError("no")

    async with AppTest(app) as test:
        for number in range(5):
            await test.publish("orders", number)
        assert await test.drain() == Tally(done=5, retried=1)
        assert not test.find_events("consumer.lost")
    assert len(runs) == 6


def test_prefetch_is_work_of_ten_seconds() -> None:
    assert HandlerOptions(rate=0.5).window == 5
    assert HandlerOptions(rate=1000).window == 20
    assert HandlerOptions(rate=0.5, prefetch=50).window == 50


@pytest.mark.parametrize("rate", ["100", "100/d", "0/s", "59/h", "-1/s", "fast", 100])
def test_wrong_rate_is_refused(rate: Any) -> None:
    with pytest.raises(
        InvalidDeclaration, match=f"handler of queue 'orders': rate: .*at least 1/m, got {rate!r}"
    ):
        App("shop").handler("orders", rate=rate)


def test_batch_that_would_wait_for_minutes_is_refused() -> None:
    with pytest.raises(InvalidDeclaration, match="size: expected at most 300 messages"):
        App("shop").batch("orders", rate="1/s", size=301)
