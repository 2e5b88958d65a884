"""Middleware around every run, and routers with prefixes."""

from __future__ import annotations

import asyncio
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Context, Done, Park, Retry, Router
from hopback.errors import InvalidDeclaration
from hopback.testing import AppTest, Tally, in_virtual_time

if TYPE_CHECKING:
    from hopback import NextRun
    from hopback.runtime.middleware import Middleware


def _note_middleware(diary: list[str], name: str) -> Middleware:
    async def middleware(context: Context, run: NextRun) -> None:
        diary.append(f"{name} before {context.queue}")
        try:
            await run()
        finally:
            diary.append(f"{name} after")

    return middleware


@in_virtual_time
async def test_middleware_of_application_wraps_that_of_router() -> None:
    """The first added is the outermost."""
    diary: list[str] = []
    app, router = App("shop"), Router("orders.")

    @router.handler("new", retry=None)
    async def handle(order: dict[str, Any]) -> None:
        diary.append("handled")

    @app.handler("mails", retry=None)
    def mail(text: str) -> None:
        diary.append(text)

    app.include(router)
    app.middleware(_note_middleware(diary, "first"))
    router.middleware(_note_middleware(diary, "router's"))
    app.middleware(_note_middleware(diary, "second"))
    async with AppTest(app) as test:
        await test.publish("orders.new", {})
        await test.drain()
        await test.publish("mails", "mail")
        assert await test.drain() == Tally(done=1)
    assert diary == [
        "first before orders.new",
        "second before orders.new",
        "router's before orders.new",
        "handled",
        "router's after",
        "second after",
        "first after",
        "first before mails",
        "second before mails",
        "mail",
        "second after",
        "first after",
    ]


def _app(middleware: Middleware, outcome: object = None) -> tuple[App, list[int]]:
    app, runs = App("shop"), list[int]()
    app.middleware(middleware)

    @app.handler("orders", retry=["1s"])
    async def handle(context: Context) -> Any:
        runs.append(context.attempt)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return app, runs


async def _forgets_to_return(context: Context, run: NextRun) -> None:
    await run()


async def _swallows(context: Context, run: NextRun) -> None:
    with suppress(ValueError):
        await run()


async def _says_done(context: Context, run: NextRun) -> Done:
    with suppress(ValueError):
        await run()
    return Done()


async def _skips(context: Context, run: NextRun) -> Park:
    return Park("not today")


async def _does_nothing(context: Context, run: NextRun) -> None: ...


async def _runs_twice(context: Context, run: NextRun) -> None:
    await run()
    await run()


@pytest.mark.parametrize(
    ("middleware", "outcome", "tally", "runs"),
    [
        (_forgets_to_return, Park("bad"), Tally(parked=1), [1]),
        (_forgets_to_return, None, Tally(done=1), [1]),
        (_swallows, ValueError("bad"), Tally(retried=1, parked=1), [1, 2]),
        (_says_done, ValueError("bad"), Tally(done=1), [1]),
        (_says_done, Retry("later"), Tally(done=1), [1]),
        (_skips, None, Tally(parked=1), []),
        (_does_nothing, None, Tally(retried=1, parked=1), []),
        (_runs_twice, None, Tally(retried=1, parked=1), [1, 2]),
    ],
)
@in_virtual_time
async def test_middleware_changes_outcome_only_by_returning_one(
    middleware: Middleware, outcome: object, tally: Tally, runs: list[int]
) -> None:
    """A missing return, raise or run never makes a message done."""
    app, run = _app(middleware, outcome)
    async with AppTest(app) as test:
        await test.publish("orders", {})
        assert await test.drain() == tally
    assert run == runs


def test_invalid_middleware_signature_is_refused() -> None:
    expected = (
        r"expected async def \(context: Context, run: NextRun\), got def sync\(.*\) -> 'None',"
        " which is not async$"
    )
    with pytest.raises(InvalidDeclaration, match=expected):

        @App("shop").middleware  # type: ignore[type-var]
        def sync(context: Context, run: NextRun) -> None: ...


@in_virtual_time
async def test_nested_routers_join_their_prefixes() -> None:
    """Queues, dead-letter queues, batches and pushes get them, also if declared after the
    inclusion.
    """
    app, outer, inner = App("shop"), Router("eu."), Router("orders.")
    app.include(outer)
    outer.include(inner)
    diary: list[str] = []
    outer.middleware(_note_middleware(diary, "outer"))
    inner.middleware(_note_middleware(diary, "inner"))

    async def prepare(row: int) -> int:
        return row

    @inner.batch("rows", size=1, prepare=prepare, retry=["1s"], bind={"events": "row"})
    async def insert(rows: list[int]) -> None:
        diary.append(f"inserted {rows}")

    inner.queue("events", retry=None)
    inner.push("events", "http://localhost/events")
    assert list(app.handlers) == ["eu.orders.rows", "eu.orders.events"]
    names = [queue.name for queue in app.topology.queues]
    assert names[:3] == ["eu.orders.rows", "eu.orders.rows.retry.1s", "eu.orders.rows.dlq"]
    async with AppTest(app) as test:
        await test.publish("row", 5, exchange="events")
        assert await test.drain() == Tally(done=1)
    assert diary == [
        "outer before eu.orders.rows",
        "inner before eu.orders.rows",
        "inserted [5]",
        "inner after",
        "outer after",
    ]


@in_virtual_time
async def test_push_runs_inside_middleware() -> None:
    """The service it pushes to is unreachable."""
    app, seen = App("shop"), list[object]()
    app.queue("events", retry=None)
    app.push("events", "http://127.0.0.1:9/events")

    @app.middleware
    async def look(context: Context, run: NextRun) -> object:
        outcome = await run()
        seen.append(outcome)
        return Done() if context.headers.get("optional") else outcome

    async with AppTest(app) as test:
        await test.publish("events", {})
        await test.publish("events", {}, headers={"optional": True})
        assert await test.drain() == Tally(done=1, parked=1)
        test.assert_parked("events", reason="connect")
    assert all(isinstance(one, Retry) for one in seen)


def test_router_included_twice_is_refused() -> None:
    """So are two declarations of one queue."""
    app, router = App("shop"), Router("orders.")
    app.include(router)
    assert router.is_included
    with pytest.raises(InvalidDeclaration, match="each router once"):
        app.include(router)
    with pytest.raises(InvalidDeclaration, match="never itself"):
        router.include(router)
    router.queue("new")
    with pytest.raises(InvalidDeclaration, match=r"queues.orders.new: expected one failure plan"):
        app.queue("orders.new")


def _batches(
    middleware: Middleware, *, prepared: bool = False, **options: Any
) -> tuple[App, list[list[int]]]:
    """An application that inserts rows.

    Row 13 cannot be inserted, and `prepare` has no row for 7.
    """
    app, calls = App("raffle"), list[list[int]]()
    app.middleware(middleware)

    async def prepare(row: int) -> int | Park:
        return row if row != 7 else Park("no row")

    @app.batch("rows", retry=["1s"], prepare=prepare if prepared else None, **options)
    async def insert(rows: list[int]) -> None:
        calls.append(rows)
        if 13 in rows:
            raise ValueError("row 13 violates a constraint")

    return app, calls


@pytest.mark.parametrize("prepared", [False, True])
@in_virtual_time
async def test_middleware_sees_outcome_of_each_batch_message(prepared: bool) -> None:
    seen: list[object] = []

    async def look(context: Context, run: NextRun) -> object:
        try:
            outcome = await run()
        except ValueError as error:
            seen.append((context.attempt, str(error)))
            raise
        seen.append(outcome)
        return outcome

    app, calls = _batches(look, prepared=prepared, size=3)
    async with AppTest(app) as test:
        for row in (12, 13, 14):
            await test.publish("rows", row)
        assert await test.drain() == Tally(done=2, retried=1, parked=1)
    assert calls[0] == [12, 13, 14]
    failed = "row 13 violates a constraint"
    assert sorted(seen, key=str) == [(1, failed), (2, failed), None, None]


@pytest.mark.parametrize("prepared", [False, True])
@in_virtual_time
async def test_middleware_removes_message_from_batch_or_changes_outcome(
    prepared: bool,
) -> None:
    async def only_ours(context: Context, run: NextRun) -> Park | Done | None:
        if context.headers.get("tenant") != "ours":
            return Park("not our tenant")
        with suppress(ValueError):
            await run()
        return Done() if context.headers.get("optional") else None

    app, calls = _batches(only_ours, prepared=prepared, size=3)
    async with AppTest(app) as test:
        await test.publish("rows", 1, headers={"tenant": "theirs"})
        await test.publish("rows", 2, headers={"tenant": "ours"})
        await test.publish("rows", 13, headers={"tenant": "ours", "optional": True})
        await test.publish("rows", "no number", headers={"tenant": "theirs"})
        assert await test.drain() == Tally(done=2, parked=2)
        test.assert_parked("rows", reason="not our tenant", times=1)
        test.assert_parked("rows", reason="undecodable", times=1)
    assert all(1 not in rows for rows in calls)


@in_virtual_time
async def test_middleware_that_times_out_settles_its_message_outside_batch() -> None:
    async def limit_time(context: Context, run: NextRun) -> None:
        async with asyncio.timeout(0.5 if context.attempt == 1 else None):
            await run()

    app, calls = _batches(limit_time, size=10, wait="2s")
    async with AppTest(app) as test:
        await test.publish("rows", 1)
        assert await test.drain() == Tally(done=1, retried=1)
        assert test.find_events("delivery.retried")[0].fields["reason"] == "TimeoutError"
    assert calls == [[1]]


@in_virtual_time
async def test_middleware_sees_outcome_of_prepare() -> None:
    seen: list[object] = []

    async def look(context: Context, run: NextRun) -> None:
        seen.append(await run())

    app, calls = _batches(look, prepared=True)
    async with AppTest(app) as test:
        await test.publish("rows", 7)
        assert await test.drain() == Tally(parked=1)
    assert seen == [Park("no row")]
    assert calls == []


@in_virtual_time
async def test_exception_of_large_batch_keeps_traceback_short() -> None:
    """It is raised through the middleware of each message."""
    lengths: list[int] = []

    async def nothing_special(context: Context, run: NextRun) -> None:
        await run()

    app, calls = _batches(nothing_special, size=100, isolates=lambda _error: False)

    @app.on_error
    def note(error: BaseException, context: Context) -> None:
        lengths.append(len(traceback.extract_tb(error.__traceback__)))

    async with AppTest(app) as test:
        for row in range(100):
            await test.publish("rows", row)
        await test.advance(0)
    assert len(calls[0]) == len(lengths) == 100
    assert set(lengths) == {lengths[0]}
    assert lengths[0] < 10


@in_virtual_time
async def test_middleware_waiting_for_batch_ends_at_shutdown() -> None:
    ended: list[int] = []

    async def note(context: Context, run: NextRun) -> None:
        try:
            await run()
        finally:
            ended.append(1)

    app, calls = _batches(note, size=10, wait="5m")
    async with AppTest(app) as test:
        await test.publish("rows", 1)
        await test.advance(1)
        assert calls == []
    assert (calls, ended) == ([[1]], [1])


@in_virtual_time
async def test_middleware_of_batch_on_closed_channel_is_cancelled() -> None:
    """The message is redelivered and runs from the beginning."""
    diary: list[str] = []

    async def note(context: Context, run: NextRun) -> None:
        diary.append("before")
        try:
            await run()
        except asyncio.CancelledError:
            diary.append("cancelled")
            raise
        diary.append("after")

    app, calls = _batches(note, size=10, wait="10s")
    async with AppTest(app) as test:
        await test.publish("rows", 1)
        await test.advance(1)
        test.broker.cut()
        await test.drain()
    assert calls == [[1]]
    assert sorted(diary) == ["after", "before", "before", "cancelled"]
