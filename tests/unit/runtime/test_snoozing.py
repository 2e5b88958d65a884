"""Snoozes and retries with a wait: held, in a retry queue or in the delay queues."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from hopback import App, Context, Retry, Rule, Snooze, Verdict
from hopback.errors import InvalidDeclaration
from hopback.testing import AppTest, in_virtual_time
from hopback.topology import Queue, Topology
from hopback.topology.plan import Count, Leave, LocalWait, Parking, Plan, Redrive, Return

_PLAN = Plan(
    "letters",
    attempts=1,
    tiers=(),
    leave=Leave.PUBLISH,
    returns=Return.QUEUE,
    parking=Parking("rest", Leave.PUBLISH, "", "rest"),
    count=Count.HEADER,
    redrive=Redrive("", "letters"),
    snooze=LocalWait(1_000, 60_000),
)


@in_virtual_time
async def test_snooze_without_retry_queue_is_held_and_never_parked() -> None:
    """Every message of the batch is held for the wait, requeued and handled again."""
    app = App(
        "letters", topology=Topology("t", queues=(Queue("letters"), Queue("rest")), plans=(_PLAN,))
    )
    sizes: list[int] = []

    @app.batch("letters", size=3, batchers=1)
    async def insert(rows: list[int]) -> list[Snooze] | None:
        sizes.append(len(rows))
        return [Snooze(40)] * len(rows) if len(sizes) < 3 else None

    async with AppTest(app, chance=1.0) as test:
        for number in range(3):
            await test.publish("letters", number)
        await test.advance(79)
        assert sizes == [3, 3]
        tally = await test.drain()
        assert (tally.done, tally.snoozed, tally.parked) == (3, 6, 0)
        assert test.dead_letters("letters") == ()


@pytest.mark.parametrize("wait", ["2h", 7200, timedelta(hours=2)])
@in_virtual_time
async def test_wait_beyond_last_tier_uses_delay_queues(wait: Any) -> None:
    """A snooze counts no attempt, a retry counts one. Both keep headers and id."""
    app = App("later")
    app.delays("1d")
    came: list[tuple[float, int, str, dict[str, Any]]] = []

    @app.handler("orders", retry=["30s", "5m"], attempts=3)
    async def order(context: Context) -> Snooze | Retry | None:
        now = asyncio.get_running_loop().time()
        own = {name: value for name, value in context.headers.items() if name == "mine"}
        came.append((now, context.attempt, context.message_id, own))
        return (None, Snooze(wait), Retry("busy", after=wait), None)[len(came)]

    async with AppTest(app) as test:
        began = asyncio.get_running_loop().time()
        await test.publish("orders", {}, message_id="m-1", headers={"mine": 1})
        tally = await test.drain()
        assert (tally.done, tally.snoozed, tally.retried) == (1, 1, 1)
    first, second, third = (moment - began for moment, *_ in came)
    assert first < 1
    assert 7200 <= second - first < 7201.5
    assert 7200 <= third - second < 7201.5
    assert [attempt for _, attempt, *_ in came] == [1, 1, 2]
    assert {told[2:] == ("m-1", {"mine": 1}) for told in came} == {True}


@in_virtual_time
async def test_snooze_without_retry_queues_uses_delay_queues() -> None:
    """A longer wait ends with the longest delay."""
    app = App("later")
    app.delays("1h")  # its queues hold messages for up to 4,095 s
    came: list[float] = []

    @app.handler("orders", retry=None)
    async def order() -> Snooze | None:
        came.append(asyncio.get_running_loop().time())
        return Snooze("2h") if len(came) == 1 else None

    async with AppTest(app) as test:
        await test.publish("orders", {})
        tally = await test.drain()
        assert (tally.snoozed, tally.parked) == (1, 0)
    assert 4095 <= came[1] - came[0] < 4096.5


@pytest.mark.parametrize("wait", ["soon", -1, float("nan")])
@in_virtual_time
async def test_invalid_wait_parks_with_allowed_values(wait: Any) -> None:
    app = App("later")

    @app.handler("orders", retry=["1s"])
    async def order() -> Snooze:
        return Snooze(wait)

    async with AppTest(app) as test:
        await test.publish("orders", {})
        await test.drain()
        test.assert_parked(
            "orders", times=1, reason=r"expected a reason that is a text, and a wait"
        )


@in_virtual_time
async def test_rule_wait_is_a_duration() -> None:
    """An invalid one is refused where it was written."""
    app = App("later")

    @app.handler("orders", retry=["30s", "5m"], rules=[Rule(KeyError, Verdict.RETRY, after="1m")])
    async def order(context: Context) -> None:
        if context.attempt == 1:
            raise KeyError("x")

    async with AppTest(app) as test:
        await test.publish("orders", {})
        await test.drain()
        (told,) = test.find_events("delivery.retried")
        assert told.fields["delay_ms"] == 300_000
    with pytest.raises(InvalidDeclaration, match="a duration like"):
        Rule(KeyError, Verdict.RETRY, after="soon")
