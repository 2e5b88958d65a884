"""The lifespan of an application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator  # noqa: TC003 - read at run time
from contextlib import asynccontextmanager
from typing import Annotated

import pytest

from hopback import App, Depends, Service, compose
from hopback.broker import EmbeddedBroker
from hopback.broker.embedded import Fault
from hopback.errors import InvalidDeclaration
from hopback.testing import AppTest, in_virtual_time


def _app(diary: list[str], *, fails: bool = False) -> App:
    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        diary.append("opened")
        if fails:
            raise ConnectionError("no database")
        try:
            yield
        finally:
            await app.send(compose("farewells", "bye"))
            diary.append("closed")

    app = App("shop", lifespan=lifespan)
    app.queue("farewells", retry=["1s"])

    @app.handler("orders", retry=["1s"])
    async def handle(order: str) -> None:
        diary.append(order)

    return app


@in_virtual_time
async def test_lifespan_spans_all_deliveries() -> None:
    """It can still publish at the end."""
    diary: list[str] = []
    async with AppTest(_app(diary)) as shop:
        await shop.publish("orders", "first")
        await shop.publish("orders", "second")
        await shop.drain()
    assert diary == ["opened", "first", "second", "closed"]
    assert len(shop.broker.snapshot().queue("farewells").messages) == 1


@in_virtual_time
async def test_second_stop_request_cancels_a_lifespan_that_does_not_end() -> None:
    @asynccontextmanager
    async def lifespan(_app: App) -> AsyncIterator[None]:
        yield
        await asyncio.sleep(3600)

    app = App("shop", lifespan=lifespan)

    @app.handler("orders", retry=["1s"])
    async def handle() -> None: ...

    service = Service(app, EmbeddedBroker())
    running = asyncio.create_task(service.run())
    await service.ready.wait()
    await app.publish("orders", {})
    await asyncio.sleep(1)
    service.stop()
    await asyncio.sleep(60)
    assert not running.done()
    service.stop()
    await asyncio.sleep(5)
    assert running.done()
    assert (await running).handled == 1


@in_virtual_time
async def test_lifespan_that_raises_ends_run() -> None:
    """No delivery is taken."""
    diary: list[str] = []
    app = _app(diary, fails=True)
    with pytest.raises(ConnectionError, match="no database"):
        async with AppTest(app):
            pytest.fail("it must not run")
    assert diary == ["opened"]
    with pytest.raises(RuntimeError, match="not running"):
        await app.publish("orders", "late")


async def test_waiter_for_readiness_gets_error_of_run() -> None:
    """`await service.ready.wait()` raises it instead of waiting."""

    service = Service(_app([], fails=True), EmbeddedBroker())
    running = asyncio.create_task(service.run())
    with pytest.raises(ConnectionError, match="no database"):
        await service.ready.wait()
    await asyncio.gather(running, return_exceptions=True)


async def test_waiter_for_readiness_of_stopped_service_gets_error() -> None:
    broker = EmbeddedBroker()
    broker.faults.inject(Fault.REFUSE_CONNECTION, times=1000)
    service = Service(App("shop"), broker)
    running = asyncio.create_task(service.run())
    waiting = asyncio.create_task(service.ready.wait())
    await asyncio.sleep(0)
    service.stop()
    await running
    with pytest.raises(RuntimeError, match="shop was stopped before it was ready"):
        await waiting


_DIARY: list[str] = []


async def _open_pool() -> AsyncIterator[str]:
    _DIARY.append("pool opened")
    yield "the pool"
    _DIARY.append("pool closed")


async def _open_cache() -> AsyncIterator[str]:
    _DIARY.append("cache opened")
    yield "the cache"
    _DIARY.append("cache closed")


Pool = Annotated[str, Depends(_open_pool, scope="application")]
Cache = Annotated[str, Depends(_open_cache, scope="application")]


@in_virtual_time
async def test_lifespan_gets_application_dependencies_and_shares_them_with_handlers() -> None:
    """The lifespan's dependencies are opened before it, the others after it."""
    _DIARY.clear()

    @asynccontextmanager
    async def lifespan(app: App, pool: Pool) -> AsyncGenerator[None]:
        _DIARY.append(f"{app.name} began with {pool}")
        yield
        _DIARY.append("ended")

    app = App("shop", lifespan=lifespan)

    @app.handler("orders", retry=["1s"])
    async def handle(order: str, pool: Pool, cache: Cache) -> None:
        _DIARY.append(f"{order} with {pool} and {cache}")

    @app.handler("refunds", retry=["1s"])
    async def refund(order: str, pool: Annotated[str, Depends(_open_pool)]) -> None:
        """The same provider for each delivery is another value."""

    async with AppTest(app) as test:
        await test.publish("orders", "tea")
        await test.drain()
        await test.publish("refunds", "tea")
        await test.drain()
    assert _DIARY == [
        "pool opened",
        "shop began with the pool",
        "cache opened",
        "tea with the pool and the cache",
        "pool opened",
        "pool closed",
        "cache closed",
        "ended",
        "pool closed",
    ]

    _DIARY.clear()
    with app.override(_open_pool, lambda: "a fake"):
        async with AppTest(app):
            pass
    assert _DIARY[:2] == ["shop began with a fake", "cache opened"]


def test_lifespan_with_a_dependency_of_a_run_is_refused() -> None:
    @asynccontextmanager
    async def lifespan(app: App, pool: Annotated[str, Depends(_open_pool)]) -> AsyncGenerator[None]:
        yield

    with pytest.raises(
        InvalidDeclaration, match='lifespan: pool: expected scope="application", got delivery'
    ):
        App("shop", lifespan=lifespan)
