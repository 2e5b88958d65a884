"""Periodic messages: by any number of processes, none missing, each known by its id."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Context, PeriodicMessage, Router, Service
from hopback.broker.embedded import EmbeddedBroker
from hopback.errors import InvalidDeclaration
from hopback.observe.events import Bus
from hopback.runtime import Environment
from hopback.runtime.periodic import SentSoFar
from hopback.testing import AppTest
from hopback.testing import in_virtual_time as virtual_time
from hopback.topology import Queue
from hopback.topology.check import check

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

in_virtual_time = virtual_time(start=datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC))


def _app(ids: list[str], *, missed: str = "once", period: str = "5m") -> App:
    app = App("reports")

    @app.every(period, missed=missed, retry=["1s"])
    async def report(periodic: PeriodicMessage, context: Context) -> None:
        assert periodic.name == "report"
        assert context.message_id == f"report@{periodic.due.isoformat()}"
        ids.append(context.message_id)

    return app


@in_virtual_time
async def test_periodic_message_is_sent_on_time_with_id() -> None:
    ids: list[str] = []
    app = _app(ids)
    assert check(app.topology) == ()
    async with AppTest(app) as test:
        await test.advance(1801)
        sent = test.find_events("periodic.sent", queue="report")
        assert max(one.fields["late"] for one in sent) < 0.1
    # Virtual time begins at 22:13:20.
    minutes = (15, 20, 25, 30, 35, 40)
    assert ids == [f"report@2023-11-14T22:{minute}:00+00:00" for minute in minutes]


@in_virtual_time
async def test_one_of_several_processes_sends_periodic_messages() -> None:
    """Another takes over when it ends. Each time has one message."""
    ids: list[str] = []
    broker = EmbeddedBroker()
    async with AsyncExitStack() as stack:
        running = [
            await stack.enter_async_context(AppTest(_app(ids), broker=broker)) for _ in range(3)
        ]
        await running[0].advance(3600)
        assert len(ids) == len(set(ids)) == 12
        for ending in (0, 2):
            await running[ending].stop()
            await running[1].advance(3600)
        assert len(ids) == len(set(ids)) == 36
        assert broker.snapshot().queue("report.schedule").consumers == ("hopback-2-1",)


@in_virtual_time
async def test_lost_connections_skip_no_periodic_message() -> None:
    """Duplicates have the same id."""
    ids: list[str] = []
    broker = EmbeddedBroker()
    async with (
        AppTest(_app(ids, period="10s", missed="each"), broker=broker) as test,
        AppTest(_app(ids, period="10s", missed="each"), broker=broker),
    ):
        for number in range(60):
            await test.advance(7.3 + number / 100)
            broker.cut()
        await test.advance(120)
        began = test.events[0].at
        due = range(int(began // 10 + 1) * 10, int(asyncio.get_running_loop().time()) - 60, 10)
    moments = {int(_moment(one)) for one in ids}
    assert set(due) <= moments


def _moment(message_id: str) -> float:
    return datetime.fromisoformat(message_id.partition("@")[2]).timestamp()


@pytest.mark.parametrize(("missed", "found"), [("once", 1), ("skip", 0), ("each", 12)])
@in_virtual_time
async def test_missed_times_are_caught_up_as_configured(missed: str, found: int) -> None:
    """Once, never or each."""
    ids: list[str] = []
    broker = EmbeddedBroker()
    async with AppTest(_app(ids, missed=missed), broker=broker) as test:
        await test.advance(301)
        assert len(ids) == 1
    await asyncio.sleep(3600)
    ids.clear()
    async with AppTest(_app(ids, missed=missed), broker=broker) as test:
        await test.advance(0.1)
        assert len(ids) == found
        await test.advance(300)
        assert len(ids) == found + 1


@in_virtual_time
async def test_deleted_or_invalid_schedule_message_is_replaced() -> None:
    ids: list[str] = []
    async with AppTest(_app(ids, missed="each")) as test:
        await test.advance(601)
        channel = await (await test.broker.connect()).open_channel()
        await channel.delete_queue("report.schedule")
        await test.advance(600)
        await test.publish("report.schedule", b'{"since": 5, "last": 1}')
        await test.advance(600)
    moments = sorted({_moment(one) for one in ids if one.startswith("report@")})
    assert len(moments) >= 5
    assert {after - before for before, after in pairwise(moments)} == {300.0}


class _SetClock:
    """A clock that a test sets forward or back."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead


@asynccontextmanager
async def _run_service(
    ids: list[str], broker: EmbeddedBroker, clock: _SetClock, told: list[float], **options: str
) -> AsyncIterator[None]:
    def note(name: str, fields: Mapping[str, Any]) -> None:
        if name == "periodic.clock":
            told.append(round(fields["seconds"]))

    service = Service(_app(ids, **options), broker, environment=Environment(Bus(note), clock=clock))
    running = asyncio.create_task(service.run())
    await service.ready.wait()
    yield
    service.stop()
    await running


@pytest.mark.parametrize("missed", ["once", "skip", "each"])
@pytest.mark.parametrize("seconds", [1.6, 20.0])
@pytest.mark.parametrize("jump", [600, -600])
@in_virtual_time
async def test_clock_wrong_for_a_moment_costs_no_later_message(
    jump: int, seconds: float, missed: str
) -> None:
    """The clock is 10 min ahead or behind.

    A short jump sends no message, a longer one at most the messages due within it.
    """
    ids, told = list[str](), list[float]()
    clock, broker = _SetClock(), EmbeddedBroker()
    async with _run_service(ids, broker, clock, told, period="1s", missed=missed):
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(10.5)
        clock.ahead = jump
        await asyncio.sleep(seconds)
        clock.ahead = 0
        returned = asyncio.get_running_loop().time()
        await asyncio.sleep(25)
    came = {_moment(one) for one in ids}
    assert {*range(int(returned) + 2, int(returned) + 24)} <= came
    if seconds < 5:
        assert max(came) <= returned + 25
    if seconds < 5 or jump < 0:
        assert len(came) == len(ids)
    if missed == "each":
        assert {*range(int(began) + 1, int(returned) + 24)} <= came
    assert told[0] == jump
    assert len(told) >= 2


@in_virtual_time
async def test_progress_of_process_with_wrong_clock_does_not_block_next() -> None:
    """Its clock was ahead when it ended. The next process reports it and starts at once."""
    ids, told = list[str](), list[float]()
    clock, broker = _SetClock(), EmbeddedBroker()
    async with _run_service(ids, broker, clock, told, period="1s"):
        await asyncio.sleep(3)
        clock.ahead = 600
        await asyncio.sleep(10)
    ids.clear()
    told.clear()
    clock.ahead = 0
    async with _run_service(ids, broker, clock, told, period="1s"):
        await asyncio.sleep(10)
    assert len(ids) >= 9
    assert told == [pytest.approx(600, abs=5)]


@pytest.mark.parametrize("seed", range(4))
@in_virtual_time
async def test_deleted_schedule_queue_repeats_no_message(seed: int) -> None:
    """Three processes run, two of which have waited for an hour."""
    ids: list[str] = []
    broker = EmbeddedBroker(seed=seed)
    async with AsyncExitStack() as stack:
        running = [
            await stack.enter_async_context(
                AppTest(_app(ids, missed="each"), broker=broker, chance=chance)
            )
            for chance in ((0.9, 0.1, 0.5), (0.1, 0.9, 0.5), (0.5, 0.1, 0.9), (0.5, 0.5, 0.5))[seed]
        ]
        await running[0].advance(3600)
        await running[seed % 3].stop()  # in some runs the sender, so that another one takes over
        await running[(seed + 1) % 3].advance(1800)
        channel = await (await broker.connect()).open_channel()
        for _ in range(3):
            await channel.delete_queue("report.schedule")
            await running[(seed + 1) % 3].advance(900)
    assert len(ids) == len(set(ids)) == (3600 + 1800 + 2700) // 300


@in_virtual_time
async def test_progress_behind_gap_is_not_sent_again() -> None:
    """The former sender writes its progress after another process has started to send."""
    ids: list[str] = []
    async with AppTest(_app(ids, missed="each")) as test:
        began = int(asyncio.get_running_loop().time())
        await test.advance(901)
        assert len(ids) == 3
        before = {"since": (began - 3600) * 1000, "last": (began - 700) * 1000}
        await test.publish("report.schedule", before)
        await test.advance(1)
    moments = [_moment(one) for one in ids]
    assert len(moments) == len(set(moments)) == 5
    assert {after - before for before, after in pairwise(sorted(moments))} == {300.0}


@in_virtual_time
async def test_router_may_have_periodic_messages() -> None:
    """Its prefix is part of the name. A failed run is retried."""
    runs: list[int] = []
    router = Router("shop.")

    @router.every(cron="0 * * * *", name="hourly", retry=["30s"])
    async def hourly(context: Context) -> None:
        runs.append(context.attempt)
        if context.attempt == 1:
            raise ValueError("x")

    app = App("whole")
    app.include(router)
    assert "shop.hourly.schedule" in app.topology.unconsumed
    async with AppTest(app) as test:
        await test.advance(3600)
        test.assert_retried("shop.hourly", times=1)
    assert runs == [1, 2]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({}, "got neither"),
        ({"period": "5m", "cron": "* * * * *"}, "got both"),
        ({"period": "5 minutes"}, "a duration like"),
        ({"period": 0.5}, "a period of 1s or more"),
        ({"cron": "61 * * * *"}, "minute from 0 to 59"),
        ({"period": "5m", "missed": "all"}, "'once' or 'skip' or 'each'"),
    ],
)
def test_invalid_periodic_message_is_refused_at_declaration(
    said: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidDeclaration, match=told):
        App("x").every(**said)


def test_sent_ranges_are_joined_without_gap() -> None:
    """A range that starts after the end of another is not joined to it."""
    whole = SentSoFar.together([SentSoFar(0, 50), SentSoFar(40, 90), SentSoFar(95, 200)])
    assert whole == SentSoFar(0, 90)
    assert SentSoFar.together([]) is None
    assert SentSoFar.read(SentSoFar(3, 4).write()) == SentSoFar(3, 4)
    nonsense = (b"", b"[]", b"null", b'{"since": true, "last": 2}', b"[" * 9999)
    assert {SentSoFar.read(body) for body in nonsense} == {None}


def test_schedule_queue_has_one_message_and_single_active_consumer() -> None:
    """It has no delivery limit."""
    queue = _app([]).topology.queue("report.schedule")
    assert isinstance(queue, Queue)
    assert queue.arguments["x-single-active-consumer"] is True
