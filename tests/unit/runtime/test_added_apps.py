"""Applications that are added to a running service and removed from it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, BrokerError, Context, Service, ServiceOptions
from hopback.broker import EmbeddedBroker
from hopback.broker.declare import Ownership
from hopback.designs import DESIGNS
from hopback.errors import InvalidDeclaration, TopologyConflict, UnsafeOperation
from hopback.runtime.depths import Depths, queues_to_watch
from hopback.runtime.health import Health
from hopback.testing import AppTest, in_virtual_time
from hopback.topology.model import Queue, QueueType
from tests.unit.runtime.slow import alone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def _tenant(name: str, diary: list[Any], pause: float = 0.0) -> App:
    """A queue `name` bound to the exchange `news`. Its handler writes into the diary."""

    @asynccontextmanager
    async def lifespan(_app: App) -> AsyncIterator[None]:
        diary.append(f"open {name}")
        yield
        diary.append(f"close {name}")

    app = App(name, lifespan=lifespan)
    app.queue(name, retry=["1s"], bind={"news": "#"})

    @app.handler(name)
    async def handle(text: str, context: Context) -> None:
        await asyncio.sleep(pause)
        diary.append(f"{name} {text}")
        if text == "forward":
            await app.publish("orders", f"from {context.queue}")

    return app


def _shop(diary: list[Any]) -> App:
    app = App("shop")

    @app.handler("orders", retry=["1s"])
    async def handle(order: str) -> None:
        diary.append(order)

    return app


def _reasons(test: AppTest) -> str:
    health = Health(test.service, time=asyncio.get_running_loop().time)
    return "\n".join(health.ready().reasons)


def _texts(test: AppTest, queue: str) -> list[bytes]:
    return [one.body for one in test.broker.snapshot().queue(queue).messages]


@in_virtual_time
async def test_added_app_is_declared_and_consumed_and_removed_app_is_unbound() -> None:
    diary: list[Any] = []
    tenant = _tenant("north", diary)
    options = ServiceOptions(upkeep=1.0)
    async with AppTest(_shop(diary), options=options) as test:
        await test.service.add(tenant)
        await test.advance(1)
        assert _reasons(test) == ""
        await test.publish("today", "forward", exchange="news")
        await test.drain()
        assert diary == ["open north", "north forward", "from north"]

        await test.service.remove(tenant)
        assert [one.queue for one in test.service.consumers] == ["orders"]
        assert test.find_events("consumer.removed", queue="north")
        await test.advance(10)  # the periodic check does not bind it again
        await test.publish("north", "kept")
        with pytest.raises(BrokerError, match="news"):
            await test.publish("today", "missed", exchange="news")
        assert _texts(test, "north") == [b"kept"]

        await test.service.add(tenant)
        await test.drain()
        await test.publish("today", "again", exchange="news")
        await test.drain()
    assert diary[3:] == ["close north", "open north", "north kept", "north again", "close north"]
    assert test.report is not None
    assert test.report.handled == 4


@in_virtual_time
async def test_running_handler_finishes_while_its_app_is_removed() -> None:
    diary: list[Any] = []
    tenant = _tenant("north", diary, pause=5)
    async with AppTest(_shop(diary)) as test:
        await test.service.add(tenant)
        await test.advance(1)
        await test.publish("today", "last", exchange="news")
        await test.advance(1)
        await test.service.remove(tenant)
        assert diary == ["open north", "north last", "close north"]
        assert _texts(test, "north") == []


@in_virtual_time
async def test_message_of_slow_handler_is_requeued_when_its_app_is_removed() -> None:
    """The slow delivery is on a channel that does not consume any more."""
    tenant = _tenant("north", [], pause=3600)
    async with AppTest(_shop([])) as test:
        await test.service.add(tenant)
        await test.advance(1)
        await test.publish("today", "slow", exchange="news")
        await test.advance(60)
        assert test.service.consumer("north").retired
        await test.service.remove(tenant)
        await test.advance(1)
        assert len(test.broker.snapshot().queue("north").ready) == 1


@in_virtual_time
async def test_removed_app_sends_no_more_periodic_messages() -> None:
    """They would fill its queue, which has no consumer any more."""
    tenant, calls = App("north"), list[float]()

    @tenant.every("10s", name="north")
    async def poll() -> None:
        calls.append(asyncio.get_running_loop().time())

    async with AppTest(_shop([])) as test:
        await test.service.add(tenant)
        await test.advance(35)
        assert len(calls) >= 3
        await test.service.remove(tenant)
        await test.advance(60)
        test.broker.cut()
        await test.advance(60)
        assert _texts(test, "north") == []

        calls.clear()
        await test.service.add(tenant)
        await test.advance(35)
        assert len(calls) >= 3


@in_virtual_time
async def test_added_app_delays_messages_by_its_own_delay_queues() -> None:
    diary: list[Any] = []
    tenant = _tenant("north", diary)
    tenant.delays("1h")
    async with AppTest(_shop(diary)) as test:
        await test.service.add(tenant)
        await test.advance(1)
        await tenant.publish("north", "later", delay="10s")
        await test.advance(9)
        assert diary == ["open north"]
        await test.advance(2)
        assert diary[1:] == ["north later"]

        await test.service.remove(tenant, unbind=False)
        with pytest.raises(InvalidDeclaration, match="no queues for delays"):
            await test.service.app.publish("orders", "late", delay="10s")


@in_virtual_time
async def test_readiness_names_added_queue_that_cannot_be_consumed() -> None:
    """The other queues are consumed. The queue is consumed as soon as it can be."""
    diary: list[Any] = []
    broker = EmbeddedBroker()
    connection = await broker.connect("operator")
    operator = await connection.open_channel()
    await operator.declare_queue(Queue("north", QueueType.CLASSIC))
    async with AppTest(_shop(diary), broker=broker) as test:
        await test.service.add(_tenant("north", diary))
        await test.service.add(_tenant("south", diary))
        await test.advance(5)
        assert "north is starting: queue 'north' cannot be used" in _reasons(test)
        assert "south" not in _reasons(test)
        assert test.find_events("topology.unusable", object="north")
        await test.publish("today", "hello", exchange="news")
        await test.advance(1)
        assert diary[-1] == "south hello"
        await operator.delete_queue("north")
        await test.advance(60)
        assert _reasons(test) == ""
        await test.publish("today", "again", exchange="news")
        await test.drain()
        assert sorted(diary[-2:]) == ["north again", "south again"]
    await connection.close()


@in_virtual_time
async def test_app_added_before_connection_is_consumed_after_it() -> None:
    diary: list[Any] = []
    tenant = _tenant("north", diary)

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        await app.running_service.add(tenant)
        yield

    async with AppTest(App("host", lifespan=lifespan)) as test:
        await test.advance(1)
        await test.publish("today", "hello", exchange="news")
        await test.drain()
        test.broker.cut()
        await test.advance(30)
        await test.publish("today", "after the reconnect", exchange="news")
        await test.drain()
    assert diary == ["open north", "north hello", "north after the reconnect", "close north"]


@in_virtual_time
async def test_app_that_cannot_be_unbound_still_runs() -> None:
    diary: list[Any] = []
    tenant = _tenant("north", diary)
    async with AppTest(_shop(diary)) as test:
        await test.service.add(tenant)
        await test.advance(1)
        test.broker.cut()
        await asyncio.sleep(0)
        with pytest.raises(BrokerError):
            await test.service.remove(tenant)
        await test.advance(30)
        await test.publish("today", "hello", exchange="news")
        await test.drain()
        assert diary == ["open north", "north hello"]
        await test.service.remove(tenant, unbind=False)
        await test.publish("today", "kept", exchange="news")
        assert _texts(test, "north") == [b"kept"]


@in_virtual_time
async def test_cancelled_removal_can_be_repeated() -> None:
    """The first call gives up while a handler is running."""
    diary: list[Any] = []
    tenant = _tenant("north", diary, pause=15)
    async with AppTest(_shop(diary)) as test:
        await test.service.add(tenant)
        await test.advance(1)
        await test.publish("today", "last", exchange="news")
        await test.advance(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await test.service.remove(tenant)
        with pytest.raises(InvalidDeclaration, match="north"):
            await test.service.add(tenant)
        await test.service.remove(tenant)
        assert diary == ["open north", "north last", "close north"]
        assert test.service.consumers == (test.service.consumer("orders"),)
        assert len(test.find_events("consumer.removed", queue="north")) == 1

        await test.service.add(tenant)
        await test.advance(1)
        await test.publish("today", "again", exchange="news")
        await test.drain()
    assert diary[3:] == ["open north", "north again", "close north"]
    assert test.report is not None
    assert test.report.handled == 2


@pytest.mark.parametrize("after", [0.5, 1.5, 2.5])
@in_virtual_time
async def test_app_whose_unbinding_is_cancelled_still_runs(after: float) -> None:
    """Each answer of the broker takes a second. The binding is restored."""
    diary: list[Any] = []
    tenant = _tenant("north", diary)
    async with AppTest(_shop(diary)) as test:
        await test.service.add(tenant)
        await test.advance(1)
        test.faults.latency = 1.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(after):
                await test.service.remove(tenant)
        test.faults.clear()
        await test.advance(5)
        await test.publish("today", "hello", exchange="news")
        await test.drain()
        assert diary == ["open north", "north hello"]
        await test.service.remove(tenant)
        assert diary[2:] == ["close north"]


@in_virtual_time
async def test_concurrent_removals_wait_for_each_other() -> None:
    diary: list[Any] = []
    tenant = _tenant("north", diary, pause=5)
    async with AppTest(_shop(diary)) as test:
        await test.service.add(tenant)
        await test.advance(1)
        await test.publish("today", "last", exchange="news")
        await test.advance(1)
        await asyncio.gather(test.service.remove(tenant), test.service.remove(tenant))
        assert diary == ["open north", "north last", "close north"]
    assert test.report is not None
    assert test.report.handled == 1


@in_virtual_time
async def test_app_that_cannot_be_added_or_removed_is_refused() -> None:
    diary: list[Any] = []
    raffle = App("raffle", topology=DESIGNS["raffle"].build())

    @raffle.handler("raffle_queue")
    async def handle(order: str) -> None:
        diary.append(order)

    async with AppTest(_shop(diary)) as test:
        with pytest.raises(InvalidDeclaration, match="orders"):
            await test.service.add(_shop(diary))
        await test.service.add(raffle)
        with pytest.raises(UnsafeOperation, match="raffle_queue is not unbound"):
            await test.service.remove(raffle)
        with pytest.raises(KeyError):
            await test.service.remove(_shop(diary))
        assert test.service.consumer("raffle_queue").queue == "raffle_queue"


@in_virtual_time
async def test_app_is_refused_while_its_lifespan_opens() -> None:
    """Otherwise its queue would have two consumers, and only one of them could be removed."""
    diary: list[str] = []

    @asynccontextmanager
    async def lifespan(_app: App) -> AsyncIterator[None]:
        await asyncio.sleep(1)
        diary.append("open")
        yield
        diary.append("close")

    tenant = App("north", lifespan=lifespan)

    @tenant.handler("north", retry=["1s"])
    async def handle(text: str) -> None:
        diary.append(text)

    async with AppTest(_shop([])) as test:
        first = asyncio.create_task(test.service.add(tenant))
        await asyncio.sleep(0)
        with pytest.raises(InvalidDeclaration, match="north"):
            await test.service.add(tenant)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await test.service.add(tenant)  # the cancelled call does not reserve its queue any more
        await test.advance(1)
        assert len(test.broker.snapshot().queue("north").consumers) == 1
        await test.service.remove(tenant)
        assert test.broker.snapshot().queue("north").consumers == ()
    assert diary == ["open", "close"]


@in_virtual_time
async def test_messages_of_app_that_is_removed_during_shutdown_are_counted_once() -> None:
    tenant = _tenant("north", [], pause=5)
    async with AppTest(_shop([])) as test:
        await test.service.add(tenant)
        await test.advance(1)
        await test.publish("today", "last", exchange="news")
        removing = asyncio.create_task(test.service.remove(tenant))
        await test.advance(1)
        report = await test.stop()
        await removing
    assert report.handled == 1


@in_virtual_time
async def test_failed_end_of_lifespan_does_not_keep_others_open() -> None:
    diary: list[Any] = []

    @asynccontextmanager
    async def lifespan(_app: App) -> AsyncIterator[None]:
        yield
        raise OSError("the disk is full")

    broker = EmbeddedBroker()
    service = Service(_shop(diary), broker)
    running = asyncio.create_task(service.run())
    await service.add(_tenant("north", diary))
    await service.add(App("south", lifespan=lifespan))
    await service.add(_tenant("west", diary))
    await service.ready.wait()
    service.stop()
    with pytest.raises(OSError, match="the disk is full"):
        await running
    assert diary == ["open north", "open west", "close west", "close north"]
    assert broker.connections == ()
    alone()


@in_virtual_time
async def test_app_that_opens_while_service_fails_is_not_added() -> None:
    diary: list[Any] = []

    @asynccontextmanager
    async def lifespan(_app: App) -> AsyncIterator[None]:
        await asyncio.sleep(60)
        diary.append("open")
        yield
        diary.append("close")

    broker = EmbeddedBroker()
    connection = await broker.connect("operator")
    await (await connection.open_channel()).declare_queue(Queue("orders", QueueType.CLASSIC))
    service = Service(_shop(diary), broker)
    adding = asyncio.create_task(service.add(App("north", lifespan=lifespan)))
    with pytest.raises(TopologyConflict):
        await service.run()
    with pytest.raises(RuntimeError, match="north was not added"):
        await adding
    assert diary == ["open", "close"]
    await connection.close()


async def _refuse(test: AppTest) -> weakref.ref[App]:
    """Add an application whose lifespan fails."""

    @asynccontextmanager
    async def lifespan(_app: App) -> AsyncIterator[None]:
        int("a missing port")
        yield

    app = App("south", lifespan=lifespan)

    @app.handler("south", retry=["1s"])
    async def handle(text: str) -> None:
        await app.publish("orders", text)

    with pytest.raises(ValueError, match="missing port"):
        await test.service.add(app)
    return weakref.ref(app)


@in_virtual_time
async def test_app_whose_lifespan_fails_is_released() -> None:
    """A caller may try to add it again and again."""
    async with AppTest(_shop([])) as test:
        refused = await _refuse(test)
        gc.collect()
        assert refused() is None


@in_virtual_time
async def test_removed_queue_stays_bound_without_ownership() -> None:
    diary: list[Any] = []
    broker = EmbeddedBroker()
    async with AppTest(_tenant("north", diary), broker=broker):
        pass
    options = ServiceOptions(ownership=Ownership.CHECK)
    async with AppTest(App("host"), broker=broker, options=options) as test:
        tenant = _tenant("north", diary)
        await test.service.add(tenant)
        await test.advance(1)
        await test.service.remove(tenant)
        await test.publish("today", "kept", exchange="news")
        assert _texts(test, "north") == [b"kept"]


@in_virtual_time
async def test_depths_follow_added_and_removed_apps() -> None:
    told: list[tuple[str, str, int | None]] = []
    tenant = _tenant("north", [])
    async with AppTest(_shop([])) as test:
        service = test.service
        depths = Depths(
            lambda: queues_to_watch(service.topology, [one.queue for one in service.consumers]),
            lambda *row: told.append(row),
            every=5,
        )
        connection = await test.broker.connect("depths")
        counting = asyncio.create_task(depths.attend(connection))
        await test.advance(1)
        assert {queue for queue, _, _ in told} == {"orders", "orders.retry.1s", "orders.dlq"}
        await service.add(tenant)
        await test.advance(6)
        assert ("north.dlq", "dead-letter", 0) in told
        await service.remove(tenant)
        await test.advance(6)
        assert ("north", "main", None) in told
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
        await connection.close()
