"""Queues and exchanges that are deleted, migrated or replaced while an application runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Park, Retry, ServiceOptions
from hopback.broker import EmbeddedBroker
from hopback.broker.declare import Ownership, declare
from hopback.broker.embedded import EmbeddedManagement
from hopback.broker.migrate import migrate, migration
from hopback.designs import DESIGNS
from hopback.message import Message
from hopback.runtime.consumer import ConsumerState
from hopback.runtime.health import Health
from hopback.testing import AppTest, Tally, in_virtual_time
from hopback.topology.expand import NO_DELIVERY_LIMIT, SHADOW
from hopback.topology.model import Exchange, ExchangeType, Queue, QueueType, Topology

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback.broker.port import Channel

RAFFLE = DESIGNS["raffle"].build(hardened=True)
QUEUE = "raffle_queue"
OLD = replace(
    RAFFLE,
    queues=tuple(
        replace(queue, arguments={**queue.arguments, "x-delivery-limit": 7})
        if queue.name == QUEUE
        else queue
        for queue in RAFFLE.queues
    ),
)
"""The same but for the main queue, which a migration has to replace."""


def _app_that_parks(outcome: Park | Retry, **options: Any) -> App:
    app = App("shop")

    @app.handler("orders", retry=["30s"], concurrency=2, prefetch=4, **options)
    async def handle() -> Park | Retry:
        return outcome

    return app


async def _as_operator(broker: EmbeddedBroker, act: Callable[[Channel], Awaitable[object]]) -> None:
    connection = await broker.connect("operator")
    await act(await connection.open_channel())
    await connection.close()


def _reasons(test: AppTest) -> tuple[str, ...]:
    health = Health(test.service, time=asyncio.get_running_loop().time)
    assert health.alive().ok, health.alive().reasons
    return health.ready().reasons


@pytest.mark.parametrize(
    ("outcome", "queue", "counted"),
    [
        (Park("no"), "orders.dlq", Tally(parked=20, held=20)),
        (Retry("later"), "orders.retry.30s", Tally(retried=20, held=20, parked=20)),
    ],
)
@in_virtual_time
async def test_deleted_queue_is_recreated_by_first_missing_message(
    outcome: Park | Retry, queue: str, counted: Tally
) -> None:
    async with AppTest(_app_that_parks(outcome)) as test:
        await _as_operator(test.broker, lambda channel: channel.delete_queue(queue))
        for _ in range(20):
            await test.publish("orders", {})
        tally = await test.drain()
        assert [one.fields["object"] for one in test.find_events("topology.restored")] == [queue]
        assert _reasons(test) == ()
        assert len(test.dead_letters("orders")) == 20
    assert 0 < tally.held <= counted.held
    assert (tally.parked, tally.retried) == (counted.parked, counted.retried)


@pytest.mark.parametrize("exchange", ["raffle_retry_exchange", "raffle_exchange"])
@in_virtual_time
async def test_deleted_exchange_is_restored_with_its_bindings(exchange: str) -> None:
    """Both a 404 that closes the channel and a NO_ROUTE return trigger it."""
    app = App("raffle", topology=RAFFLE)

    @app.handler("raffle_queue")
    async def handle() -> Retry:
        return Retry("no")

    async with AppTest(app) as test:
        await _as_operator(test.broker, lambda channel: channel.delete_exchange(exchange))
        for _ in range(5):
            await test.publish("raffle_queue", {})
        await test.drain()
        parked = len(test.dead_letters("raffle_queue"))
        back = test.find_events("topology.restored", object=exchange)
    assert parked == 5
    # The hardened form returns by the default exchange and does not miss the other one.
    assert len(back) == (1 if exchange == "raffle_retry_exchange" else 0)


@in_virtual_time
async def test_removed_binding_is_restored() -> None:
    app = App("raffle", topology=RAFFLE)

    @app.handler("raffle_queue")
    async def handle() -> Retry:
        return Retry("no")

    (binding,) = [one for one in RAFFLE.bindings if one.source == "raffle_retry_exchange"]
    async with AppTest(app) as test:
        await _as_operator(test.broker, lambda channel: channel.unbind(binding))
        await test.publish("raffle_queue", {})
        tally = await test.drain()
    assert (tally.retried, tally.parked) == (3, 1)


@pytest.mark.parametrize("deleted", ["exchange", "binding", "queue"])
@in_virtual_time
async def test_deleted_object_is_restored_by_periodic_check(deleted: str) -> None:
    """Another system publishes, so no publish of the service fails."""
    app = App("shop")
    app.queue("orders", bind={"events": ["order.*"]}, retry=["30s"])
    app.handler("orders")(lambda context: None)
    (binding,) = [one for one in app.topology.bindings if one.source == "events"]
    act: dict[str, Callable[[Channel], Awaitable[object]]] = {
        "exchange": lambda channel: channel.delete_exchange("events"),
        "binding": lambda channel: channel.unbind(binding),
        "queue": lambda channel: channel.delete_queue("orders.dlq"),
    }
    async with AppTest(app, options=ServiceOptions()) as test:
        await _as_operator(test.broker, act[deleted])
        await test.advance(45)
        assert "orders.dlq" in test.broker.node.queues
        await test.publish("order.new", {}, exchange="events")
        assert (await test.drain()).done == 1


@in_virtual_time
async def test_periodic_check_leaves_queue_in_migration_unbound() -> None:
    app = App("shop")
    app.queue("orders", bind={"events": ["order.*"]}, retry=["30s"])
    app.handler("orders")(lambda context: None)
    (binding,) = [one for one in app.topology.bindings if one.source == "events"]
    async with AppTest(app, options=ServiceOptions()) as test:
        shadow = Queue("orders" + SHADOW, QueueType.QUORUM)
        await _as_operator(test.broker, lambda channel: channel.declare_queue(shadow))
        await _as_operator(test.broker, lambda channel: channel.unbind(binding))
        await test.advance(120)
        bound = [one for one in test.broker.snapshot().bindings if one.source == "events"]
        assert bound == []


@in_virtual_time
async def test_readiness_fails_while_all_deliveries_are_held() -> None:
    """With ownership `check` no queue is created.

    When the queue exists again, the deliveries are settled.
    """
    app = _app_that_parks(Park("no"))
    broker = EmbeddedBroker()
    connection = await broker.connect()
    await declare(connection, app.topology)
    async with AppTest(
        app, broker=broker, options=ServiceOptions(ownership=Ownership.CHECK)
    ) as test:
        await _as_operator(broker, lambda channel: channel.delete_queue("orders.dlq"))
        await test.publish("orders", {})
        await test.advance(300)
        assert _reasons(test) == ()  # one of two workers still takes messages
        for _ in range(9):
            await test.publish("orders", {})
        await test.advance(600)
        (reason,) = _reasons(test)
        assert "orders does not progress: all deliveries (2) are held" in reason
        assert "'orders.dlq' (312 NO_ROUTE)" in reason
        (said,) = test.find_events("topology.unusable", object="orders.dlq")
        assert "does not create objects (ownership `check`)" in said.fields["reason"]
        await declare(connection, app.topology)
        tally = await test.drain()
        assert _reasons(test) == ()
        await connection.close()
    assert tally.parked == 10


@in_virtual_time
async def test_ownership_external_reports_missing_queue_at_first_message() -> None:
    app = _app_that_parks(Park("no"))
    broker = EmbeddedBroker()
    connection = await broker.connect()
    await declare(connection, app.topology)
    options = ServiceOptions(ownership=Ownership.EXTERNAL)
    async with AppTest(app, broker=broker, options=options) as test:
        await _as_operator(broker, lambda channel: channel.delete_queue("orders.dlq"))
        await test.publish("orders", {})
        await test.advance(300)
        (said,) = test.find_events("topology.unusable", object="orders.dlq")
        assert "ownership `external`" in said.fields["reason"]
        await declare(connection, app.topology)
        assert (await test.drain()).parked == 1
        await connection.close()


@in_virtual_time
async def test_object_with_other_arguments_is_left_alone_and_retried_slowly() -> None:
    """Another application created an exchange of the same name. It is reported once."""
    app = App("raffle", topology=RAFFLE)

    @app.handler("raffle_queue")
    async def handle() -> Retry:
        return Retry("no")

    exchange = "raffle_retry_exchange"
    other = Exchange(exchange, ExchangeType.HEADERS)
    async with AppTest(app) as test:
        await _as_operator(test.broker, lambda channel: channel.delete_exchange(exchange))
        await _as_operator(test.broker, lambda channel: channel.declare_exchange(other))
        await test.publish("raffle_queue", {})
        await test.advance(600)
        (said,) = test.find_events("topology.unusable", object=exchange)
        assert 'type: "direct" desired, "headers" on the broker' in said.fields["reason"]
        assert 10 < len(test.find_events("delivery.held")) < 60
        assert test.find_events("topology.restored") == ()
        await _as_operator(test.broker, lambda channel: channel.delete_exchange(exchange))
        tally = await test.drain()
    assert tally.parked == 1


def _app_of_raffle(name: str, topology: Topology, runs: list[bytes]) -> App:
    app = App(name, topology=topology)

    @app.handler(QUEUE)
    async def handle(body: bytes) -> None:
        runs.append(body)

    return app


@in_virtual_time
async def test_waiting_consumers_do_not_recreate_queue_in_migration() -> None:
    """Afterwards only the new form is consumed."""
    broker, runs = EmbeddedBroker(), dict[str, list[bytes]](old=[], new=[])
    connection = await broker.connect("migration")
    channel = await connection.open_channel()
    old = AppTest(_app_of_raffle("old", OLD, runs["old"]), broker=broker)
    new = AppTest(_app_of_raffle("new", RAFFLE, runs["new"]), broker=broker)
    async with old:
        # As far as an interrupted migration has come: everything is in the shadow, the queue is gone.
        shadow = Queue(
            QUEUE + SHADOW, QueueType.QUORUM, arguments={"x-delivery-limit": NO_DELIVERY_LIMIT}
        )
        await channel.declare_queue(shadow)
        for number in range(20):
            await channel.publish(Message("", shadow.name, str(number).encode()))
        await channel.delete_queue(QUEUE)
        starting = asyncio.ensure_future(new.__aenter__())
        await old.advance(600)
        assert QUEUE not in broker.node.queues
        assert not starting.done()
        (reason,) = _reasons(old)
        assert "is being migrated" in reason
        assert len(old.find_events("consumer.lost", reason="is being migrated")) == 1
        live = Topology("live", queues=(*OLD.queues, shadow), bindings=OLD.bindings)
        planned = migration(RAFFLE, live)
        await migrate(connection, planned, management=EmbeddedManagement(broker))
        await starting
        await new.drain()
        await old.advance(120)
        (reason,) = _reasons(old)
        assert "cannot be used" in reason
        assert "x-delivery-limit" in reason
        assert old.service.consumer(QUEUE).state is ConsumerState.STARTING
        assert _reasons(new) == ()
        await new.stop()
        await connection.close()
    assert runs["old"] == []
    assert sorted(map(int, runs["new"])) == list(range(20))


@in_virtual_time
async def test_queue_replaced_at_once_keeps_its_new_form() -> None:
    """A consumer that lost its queue waits before it creates anything."""
    broker, runs = EmbeddedBroker(), list[bytes]()
    connection = await broker.connect("operator")
    channel = await connection.open_channel()
    async with AppTest(_app_of_raffle("old", OLD, runs), broker=broker) as old:
        (form,) = [queue for queue in RAFFLE.queues if queue.name == QUEUE]
        await channel.delete_queue(QUEUE)
        await asyncio.sleep(0.1)
        await channel.declare_queue(form)
        await old.advance(60)
        assert "cannot be used" in _reasons(old)[0]
        await channel.declare_queue(form)  # 406 if it had been created in its old form
        await connection.close()
