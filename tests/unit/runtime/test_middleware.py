"""Middleware and routers: around every run, in order; queues of a module under its prefix."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Context, Done, Park, Retry, Router
from hopback.errors import InvalidTopology
from hopback.testing import AppTest, Tally, in_virtual_time

if TYPE_CHECKING:
    from hopback import NextRun
    from hopback.runtime.middleware import Middleware


def _noting(diary: list[str], name: str) -> Middleware:
    async def middleware(context: Context, run: NextRun) -> None:
        diary.append(f"{name} before {context.queue}")
        try:
            await run()
        finally:
            diary.append(f"{name} after")

    return middleware


@in_virtual_time
async def test_the_applications_middleware_is_around_the_routers() -> None:
    """In the order in which it was added; the first is the outermost, whenever handlers came."""
    diary: list[str] = []
    app, router = App("shop"), Router("orders.")

    @router.handler("new", retry=None)
    async def handle(order: dict[str, Any]) -> None:
        diary.append("handled")

    @app.handler("mails", retry=None)
    def mail(text: str) -> None:
        diary.append(text)

    app.include(router)
    app.middleware(_noting(diary, "first"))
    router.middleware(_noting(diary, "router's"))
    app.middleware(_noting(diary, "second"))
    async with AppTest(app) as test:
        await test.publish("", "orders.new", {})
        await test.drain()
        await test.publish("", "mails", "mail")
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
async def test_only_an_outcome_that_a_middleware_returns_changes_anything(
    middleware: Middleware, outcome: object, tally: Tally, runs: list[int]
) -> None:
    """No message is done because somebody forgot to return, to raise or to run."""
    app, run = _app(middleware, outcome)
    async with AppTest(app) as test:
        await test.publish("", "orders", {})
        assert await test.drain() == tally
    assert run == runs


def test_a_middleware_is_an_async_function_of_two() -> None:
    """What it should look like is in the error."""
    with pytest.raises(InvalidTopology, match=r"async def \(context: Context, run: NextRun\)"):

        @App("shop").middleware  # type: ignore[type-var]
        def sync(context: Context, run: NextRun) -> None: ...


@in_virtual_time
async def test_routers_in_routers_add_their_prefixes() -> None:
    """Queues, dead-letter queues, batches and pushes; also what is declared after the inclusion."""
    app, outer, inner = App("shop"), Router("eu."), Router("orders.")
    app.include(outer)
    outer.include(inner)
    diary: list[str] = []
    outer.middleware(_noting(diary, "outer"))
    inner.middleware(_noting(diary, "inner"))

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
        await test.publish("events", "row", 5)
        assert await test.drain() == Tally(done=1)
    assert diary == [
        "outer before eu.orders.rows",
        "inner before eu.orders.rows",
        "inner after",
        "outer after",
        "inserted [5]",
    ]


@in_virtual_time
async def test_a_push_runs_inside_middleware_too() -> None:
    """It sees the outcome of the exchange, here with a service that is not there."""
    app, seen = App("shop"), list[object]()
    app.queue("events", retry=None)
    app.push("events", "http://127.0.0.1:9/events")

    @app.middleware
    async def look(context: Context, run: NextRun) -> object:
        outcome = await run()
        seen.append(outcome)
        return Done() if context.headers.get("optional") else outcome

    async with AppTest(app) as test:
        await test.publish("", "events", {})
        await test.publish("", "events", {}, headers={"optional": True})
        assert await test.drain() == Tally(done=1, parked=1)
        test.assert_parked("events", reason="connect")
    assert all(isinstance(one, Retry) for one in seen)


def test_a_router_is_included_once_and_its_queues_are_its_own() -> None:
    """Two declarations of one queue are refused wherever they meet."""
    app, router = App("shop"), Router("orders.")
    app.include(router)
    assert router.is_included
    with pytest.raises(InvalidTopology, match="each router once"):
        app.include(router)
    with pytest.raises(InvalidTopology, match="never itself"):
        router.include(router)
    router.queue("new")
    with pytest.raises(InvalidTopology, match=r"queues.orders.new: expected one failure plan"):
        app.queue("orders.new")
