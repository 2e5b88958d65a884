"""Return values and exceptions of handlers, and the resulting outcomes."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Context, Done, NextRun, Park, Retry, Rule, Service, Snooze
from hopback.broker import EmbeddedBroker
from hopback.observe.events import Bus
from hopback.policy.outcome import MENU, Verdict
from hopback.runtime.settling import Environment
from hopback.testing import AppTest, Tally, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WAITS = ["30s", "5m", "30m"]


def _app(behave: Callable[..., Any], **options: Any) -> App:
    """An application whose one queue is handled by `behave`."""
    app = App("shop")
    app.handler("orders", retry=WAITS, **options)(behave)
    return app


async def _play(app: App, *payloads: object) -> tuple[Tally, AppTest]:
    async with AppTest(app) as test:
        for payload in payloads or ({"id": 1},):
            await test.publish("orders", payload)
        tally = await test.drain()
    return tally, test


@pytest.mark.parametrize("returned", [None, Done()])
@in_virtual_time
async def test_returning_none_or_done_completes_message(returned: object) -> None:
    async def behave() -> object:
        return returned

    tally, test = await _play(_app(behave))
    assert tally == Tally(done=1)
    assert test.report is not None
    assert test.report.handled == 1


@in_virtual_time
async def test_concurrent_failures_are_all_counted() -> None:
    """Each waits for the confirm of its publish at the same time."""

    async def behave() -> None:
        raise ValueError("no")

    async with AppTest(_app(behave, concurrency=10)) as test:
        test.broker.faults.latency = 0.1
        for number in range(10):
            await test.publish("orders", number)
        tally = await test.drain()
    assert (tally.retried, tally.parked) == (30, 10)
    assert test.report is not None
    assert test.report.handled == 40


@in_virtual_time
async def test_failure_takes_tiers_in_order_and_parks_at_end() -> None:
    """Three waits mean four runs, at 0 s, 30 s, 5 min 30 s and 35 min 30 s."""
    began = asyncio.get_running_loop().time()
    runs: list[tuple[int, bool, int]] = []

    async def behave(context: Context) -> None:
        after = round(asyncio.get_running_loop().time() - began)
        runs.append((context.attempt, context.is_last_attempt, after))
        raise LookupError("no such customer")

    tally, test = await _play(_app(behave))
    assert runs == [(1, False, 0), (2, False, 30), (3, False, 330), (4, True, 2130)]
    assert tally == Tally(retried=3, parked=1)
    test.assert_parked("orders", times=1, reason="LookupError: no such customer", exhausted=True)
    [dead] = test.dead_letters("orders")
    assert dead.body == b'{"id":1}'
    assert dead.properties.headers["hopback-attempts"] == 4


@in_virtual_time
async def test_retry_after_selects_smallest_sufficient_tier() -> None:
    """If none is long enough, it is the last one."""
    answers = [Retry("later", after=100), Retry("much later", after=10**6), Retry("again"), None]

    async def behave(context: Context) -> object:
        return answers[context.attempt - 1]

    tally, test = await _play(_app(behave))
    tiers = [one.fields["tier"] for one in test.find_events("delivery.retried")]
    assert tiers == ["5m", "30m", "30m"]
    waits = [one.fields["asked_ms"] for one in test.find_events("delivery.retried")]
    assert waits == [None, 10**9, None]
    assert tally == Tally(retried=3, done=1)


@pytest.mark.parametrize(
    ("outcome", "longest", "waits"),
    [
        (Retry("busy", after="9h"), None, (1_800_000, 32_400_000)),
        (Retry("busy", after="9h"), "12h", (32_400_000, None)),
        (Retry("busy", after="100d"), "1h", (4_095_000, 8_640_000_000)),
        (Retry("busy", after=float("inf")), None, (1_800_000, 315_360_000_000)),
        (Snooze("9h"), None, (1_800_000, 32_400_000)),
        (Snooze("30m"), None, (1_800_000, None)),
    ],
)
@in_virtual_time
async def test_event_shows_the_requested_wait_if_it_was_shortened(
    outcome: Retry | Snooze, longest: str | None, waits: tuple[int, int | None]
) -> None:
    answers = [outcome, None]

    async def behave(_context: Context) -> object:
        return answers.pop(0)

    app = _app(behave)
    if longest:
        app.delays(longest)
    async with AppTest(app) as test:
        await test.publish("orders", {"id": 1})
        await test.drain()
        name = "delivery.retried" if isinstance(outcome, Retry) else "delivery.snoozed"
        [happening] = test.find_events(name)
        assert (happening.fields["delay_ms"], happening.fields["asked_ms"]) == waits


class _Later(Exception):
    """An exception with `retry_after`."""

    def __init__(self, after: object) -> None:
        self.retry_after = after


@pytest.mark.parametrize(
    ("after", "tier"), [(60, "5m"), (timedelta(minutes=20), "30m"), ("nonsense", "30s")]
)
@in_virtual_time
async def test_exception_with_retry_after_selects_wait(after: object, tier: str) -> None:
    """An invalid value is ignored."""

    async def behave(context: Context) -> None:
        if context.attempt == 1:
            raise _Later(after)

    _, test = await _play(_app(behave))
    test.assert_retried("orders", times=1, tier=tier)


@in_virtual_time
async def test_first_matching_rule_decides_retry_or_park() -> None:
    """Without a match, the message is retried."""
    rules = [
        Rule(ValueError, Verdict.PARK, when=lambda error: "hopeless" in str(error)),
        Rule(ValueError, Verdict.RETRY, after=200),
    ]

    async def behave(payload: dict[str, str], context: Context) -> None:
        if context.attempt == 1:
            raise ValueError(payload["say"]) if payload["say"] != "other" else KeyError("other")

    tally, test = await _play(
        _app(behave, rules=rules), {"say": "hopeless"}, {"say": "busy"}, {"say": "other"}
    )
    assert tally == Tally(parked=1, retried=2, done=2)
    test.assert_parked("orders", times=1, reason="hopeless", exhausted=False, attempt=1)
    test.assert_retried("orders", times=1, reason="busy", tier="5m")
    test.assert_retried("orders", times=1, reason="other", tier="30s")


@in_virtual_time
async def test_snooze_does_not_count_as_attempt() -> None:
    seen: list[int] = []

    async def behave(context: Context) -> object:
        seen.append(context.attempt)
        return Snooze(10) if len(seen) <= 6 else Retry("now it fails")

    tally, _ = await _play(_app(behave))
    assert seen == [1] * 6 + [1, 2, 3, 4]
    assert tally == Tally(snoozed=6, retried=3, parked=1)


_WAIT = "a reason that is a text, and a wait like 30s, 5m or 1h30m"


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        *((value, MENU) for value in (True, "ok", 0, Retry)),
        *((value, _WAIT) for value in (Retry(5), Snooze(-1), Snooze(float("nan")))),  # type: ignore[arg-type]
    ],
)
@in_virtual_time
async def test_invalid_return_value_parks_with_allowed_values(
    returned: object, expected: str
) -> None:
    async def behave() -> object:
        return returned

    tally, test = await _play(_app(behave))
    assert tally == Tally(parked=1)
    test.assert_parked("orders", reason=f"expected {expected}")


@in_virtual_time
async def test_unawaited_coroutine_parks() -> None:
    """A sync wrapper of an async handler has not handled the message."""

    async def inner() -> None: ...

    def wrapper() -> object:
        return inner()

    tally, _ = await _play(_app(wrapper))
    assert tally == Tally(parked=1)


@in_virtual_time
async def test_undecodable_message_parks_at_once_with_position() -> None:
    seen: list[int] = []

    async def behave(payload: dict[str, int]) -> None:
        seen.append(payload["id"])

    tally, test = await _play(_app(behave), b"{", {"id": "x"}, {"id": 3})
    assert seen == [3]
    assert tally == Tally(parked=2, done=1)
    test.assert_parked("orders", times=1, reason="undecodable payload: .id: expected an integer")


@in_virtual_time
async def test_handler_past_deadline_is_cancelled_and_retried() -> None:
    ended: list[str] = []

    async def behave(context: Context) -> None:
        if context.attempt == 1:
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append("cleaned up")

    tally, test = await _play(_app(behave, deadline=5))
    assert ended == ["cleaned up"]
    assert tally == Tally(retried=1, done=1)
    test.assert_retried("orders", reason="did not finish within its deadline of 5 s")
    assert [one.fields["stopped"] for one in test.find_events("handler.overdue")] == [True]


@in_virtual_time
async def test_timeout_error_of_handler_is_not_its_deadline() -> None:
    async def behave() -> None:
        raise TimeoutError("the database")

    _, test = await _play(_app(behave, deadline=5))
    test.assert_retried("orders", reason="TimeoutError: the database")
    assert not test.find_events("handler.overdue")


async def test_overdue_thread_is_reported_and_settles_when_it_returns() -> None:
    """A thread cannot be stopped."""
    overdue, release = asyncio.Event(), threading.Event()
    names: list[str] = []

    def listen(name: str, fields: Mapping[str, Any]) -> None:
        names.append(name)
        if name == "handler.overdue":
            assert fields["stopped"] is False
            overdue.set()

    app = _app(lambda: release.wait(10) and None, deadline=0.01)
    broker = EmbeddedBroker()
    service = Service(app, broker, environment=Environment(bus=Bus(listen)))
    running = asyncio.create_task(service.run())
    await service.ready.wait()
    await app.publish("orders", {})
    await overdue.wait()
    assert broker.snapshot().queue("orders").unacked
    assert not [name for name in names if name.startswith("delivery.")]
    release.set()
    service.stop()
    report = await running
    assert report.handled == 1
    assert [name for name in names if name.startswith("delivery.")] == ["delivery.done"]


@pytest.mark.parametrize(
    "raised",
    [SystemExit(1), asyncio.CancelledError(), GeneratorExit(), StopIteration(), MemoryError()],
)
@pytest.mark.parametrize("in_thread", [False, True])
@in_virtual_time
async def test_no_exception_ends_service(raised: BaseException, in_thread: bool) -> None:
    """The message is retried, and the next one is handled."""
    runs: list[int] = []

    def fail(context: Context) -> None:
        runs.append(context.attempt)
        if context.attempt == 1:
            raise raised

    async def fail_async(context: Context) -> None:
        fail(context)

    tally, _ = await _play(_app(fail if in_thread else fail_async, concurrency=1), {}, {})
    assert sorted(runs) == [1, 1, 2, 2]
    assert tally == Tally(retried=2, done=2)


@in_virtual_time
async def test_awaiting_cancelled_task_is_a_failure() -> None:
    """Only a cancellation of the worker means shutdown."""

    async def behave(context: Context) -> None:
        if context.attempt == 1:
            waiting = asyncio.get_running_loop().create_future()
            waiting.cancel()
            await waiting

    tally, _ = await _play(_app(behave, concurrency=1), {}, {})
    assert tally == Tally(retried=2, done=2)


@in_virtual_time
async def test_handler_that_cancels_its_own_task_leaves_message_unsettled() -> None:
    """It cannot be distinguished from a shutdown.

    An event reports it, and other messages are handled.
    """
    seen: list[int] = []

    async def behave(payload: dict[str, int]) -> None:
        seen.append(payload["id"])
        if payload["id"] == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    async with AppTest(_app(behave, concurrency=1)) as test:
        for number in (1, 2, 3):
            await test.publish("orders", {"id": number})
        await test.advance(1)
        assert seen == [1, 2, 3]
        assert len(test.find_events("delivery.abandoned", reason="interrupted")) == 1
        report = await test.stop()
    assert [(one.kept, one.interrupted) for one in report.left] == [(1, 0)]
    assert not report.clean


TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


@pytest.mark.parametrize("fails", [False, True])
@in_virtual_time
async def test_context_variables_do_not_reach_next_message(fails: bool) -> None:
    found: list[str] = []

    async def behave(payload: dict[str, int], context: Context) -> None:
        found.append(TENANT.get())
        TENANT.set(f"tenant of {payload['id']}")
        await asyncio.sleep(0.1)
        if fails and context.attempt == 1:
            raise ValueError("once")

    await _play(_app(behave, concurrency=1), *({"id": n} for n in range(5)))
    assert set(found) == {"nobody"}
    assert len(found) == (10 if fails else 5)


@in_virtual_time
async def test_sync_handlers_run_in_threads_with_context_of_message() -> None:
    found: list[tuple[str, bool]] = []

    def behave(payload: str) -> None:
        found.append((TENANT.get(), threading.current_thread() is threading.main_thread()))
        TENANT.set(payload)

    tally, _ = await _play(_app(behave, concurrency=1), "a", "b")
    assert found == [("nobody", False)] * 2
    assert tally == Tally(done=2)


@in_virtual_time
async def test_context_has_headers_ids_and_first_routing_key() -> None:
    """A message without an id gets a stable one."""
    seen: list[tuple[Any, ...]] = []

    async def behave(context: Context) -> None:
        seen.append(
            (
                context.queue,
                context.attempt,
                context.message_id,
                context.correlation_id,
                context.routing_key,
                context.headers.get("shop"),
            )
        )
        if context.attempt == 1:
            raise ValueError("once")

    app = App("shop")
    app.handler("orders", retry=["1s"], bind={"events": "order.*"})(behave)
    async with AppTest(app) as test:
        await test.publish(
            "order.new",
            {},
            exchange="events",
            message_id="m1",
            correlation_id="c1",
            headers={"shop": 5},
        )
        await test.drain()
    assert seen == [("orders", n, "m1", "c1", "order.new", 5) for n in (1, 2)]


def test_recursion_error_in_handler_is_a_failure() -> None:
    async def dive(depth: int) -> None:
        await dive(depth + 1)

    @in_virtual_time
    async def play() -> None:
        async def behave(context: Context) -> None:
            if context.attempt == 1:
                await dive(0)

        tally, _ = await _play(_app(behave))
        assert tally == Tally(retried=1, done=1)

    limit = sys.getrecursionlimit()
    play()
    assert sys.getrecursionlimit() == limit


@in_virtual_time
async def test_returned_park_carries_its_reason() -> None:
    async def behave() -> Park:
        return Park("unknown customer")

    tally, test = await _play(_app(behave))
    assert tally == Tally(parked=1)
    test.assert_parked("orders", reason="unknown customer", exhausted=False)


@in_virtual_time
async def test_context_now_follows_virtual_time() -> None:
    """This holds in middleware, in `app.on_error` and in threads."""
    app, seen = App("shop", reply_queues=["answers"]), []

    @app.middleware
    async def watch(context: Context, run: NextRun) -> object:
        seen.append(context.now())
        return await run()

    @app.on_error
    def report(_error: BaseException, context: Context) -> None:
        seen.append(context.now())

    @app.handler("orders", retry=["30s"])
    def handle(context: Context) -> None:
        seen.append(context.now())
        if context.attempt == 1:
            raise ValueError("no")

    before = datetime.fromtimestamp(asyncio.get_running_loop().time(), UTC)
    tally, _ = await _play(app)
    assert tally == Tally(retried=1, done=1)
    after = [round((one - before).total_seconds()) for one in seen]
    assert after == [0, 0, 0, 30, 30]
