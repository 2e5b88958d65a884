"""Lost connections, pauses, restarts, alarms and faults in random order lose no message."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from hopback import App, BreakerPolicy, Context, ServiceOptions
from hopback.testing import AppTest, Fault, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGES = 12


def _blows(test: AppTest) -> dict[str, Callable[[], object]]:
    """The faults that can be injected into a running application."""
    consumer = test.service.consumer("orders")
    return {
        "cut": test.broker.cut,
        "restart": test.broker.restart,
        "restore": lambda: consumer.restore("a storm"),
        "pause": lambda: consumer.pause("a storm"),
        "resume": lambda: consumer.resume("a storm"),
        "block": test.broker.block,
        "unblock": lambda: test.broker.block(blocked=False),
        "nack": lambda: test.faults.inject(Fault.NACK),
        "return": lambda: test.faults.inject(Fault.RETURN),
        "lose confirm": lambda: test.faults.inject(Fault.LOSE_CONFIRM),
        "cut at publish": lambda: test.faults.inject(Fault.CUT_AFTER_PUBLISH),
        "cut at settle": lambda: test.faults.inject(Fault.CUT_BEFORE_SETTLE),
        "refuse": lambda: test.faults.inject(Fault.REFUSE_CONNECTION),
        "forget": lambda: _forget(test),
    }


def _forget(test: AppTest) -> None:
    for session in test.broker.node.sessions:
        for channel in session.channels.values():
            for consumer in test.broker.node.queues["orders"].ring.consumers.copy():
                channel.cancel(consumer.tag)


NAMES = (
    "cut", "restart", "restore", "pause", "resume", "block", "unblock", "nack", "return",
    "lose confirm", "cut at publish", "cut at settle", "refuse", "forget",
)  # fmt: skip


def _app(done: Counter[int], *, batch: bool, in_order: bool) -> App:
    app = App("shop")

    async def work(number: int, attempt: int) -> None:
        await asyncio.sleep(number % 3)
        if number % 4 == 3 or (number % 2 and attempt == 1):
            raise ValueError("as planned")
        done[number] += 1

    if batch:
        seen: Counter[int] = Counter()

        @app.batch("orders", retry=["5s", "20s"], size=3, wait="500ms", prepare=_number)
        async def insert(numbers: list[int]) -> None:
            seen.update(numbers)
            for number in numbers:
                await work(number, seen[number])
    else:

        @app.handler(
            "orders",
            retry=["5s", "20s"],
            concurrency=3,
            key=(lambda delivery: str(delivery.body[-1] % 2)) if in_order else None,
            breaker=BreakerPolicy(failures=4, cool_down=3),
        )
        async def handle(number: int, context: Context) -> None:
            await work(number, context.attempt)

    return app


async def _number(number: int) -> int:
    await asyncio.sleep(0.1)
    return number


@given(
    blows=st.lists(
        st.tuples(st.sampled_from(NAMES), st.sampled_from([0.0, 0.05, 0.7, 4.0])), max_size=12
    ),
    batch=st.booleans(),
    in_order=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_random_faults_lose_no_message(
    blows: list[tuple[str, float]], batch: bool, in_order: bool
) -> None:
    """At the end each message was handled or is in the dead-letter queue."""
    done: Counter[int] = Counter()

    @in_virtual_time
    async def play() -> None:
        app = _app(done, batch=batch, in_order=in_order)
        async with AppTest(app, options=ServiceOptions(watch=5)) as test:
            for number in range(MESSAGES):
                await test.publish("orders", number, message_id=str(number))
            strike = _blows(test)
            for name, pause in blows:
                strike[name]()
                await asyncio.sleep(pause)
            test.faults.clear()
            strike["unblock"]()
            strike["resume"]()
            await test.drain()
            resting = {int(one.body) for one in test.dead_letters("orders")}
            assert set(done) | resting == set(range(MESSAGES))
            assert {number for number in range(MESSAGES) if number % 4 == 3} <= resting
            report = await test.stop()
        assert report.left == ()
        assert test.broker.connections == ()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    play()


@given(
    blows=st.lists(
        st.tuples(st.sampled_from(NAMES), st.sampled_from([0.0, 0.05, 0.7])), max_size=6
    ),
    batch=st.booleans(),
    forced=st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_shutdown_during_random_faults_ends_within_grace(
    blows: list[tuple[str, float]], batch: bool, forced: bool
) -> None:
    """No task is left, and every message still exists."""
    done: Counter[int] = Counter()

    @in_virtual_time
    async def play() -> None:
        app = _app(done, batch=batch, in_order=False)
        async with AppTest(app, options=ServiceOptions(watch=5, grace=10)) as test:
            for number in range(MESSAGES):
                await test.publish("orders", number, message_id=str(number))
            strike = _blows(test)
            for name, pause in blows:
                strike[name]()
                await asyncio.sleep(pause)
            began = asyncio.get_running_loop().time()
            test.service.stop()
            if forced:
                test.service.stop()
            await test.stop()
            assert asyncio.get_running_loop().time() - began < 60
        assert asyncio.all_tasks() == {asyncio.current_task()}
        left = {int(one.body) for queue in test.broker.snapshot().queues for one in queue.messages}
        assert set(done) | left == set(range(MESSAGES))

    play()
