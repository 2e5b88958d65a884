"""The runtime on a real RabbitMQ: the main flows, a line that breaks, and the end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Context, Park, RabbitMQ, Service, ServiceOptions, Snooze, compose
from hopback.broker.declare import Ownership, declare
from hopback.broker.management import Management, ManagementAddress
from hopback.broker.migrate import migrate, migration
from hopback.broker.supervise import Backoff
from hopback.designs import DESIGNS
from hopback.errors import NotFound, TopologyConflict
from hopback.observe.events import Bus
from hopback.runtime import Environment
from hopback.topology.expand import NO_DELIVERY_LIMIT, SHADOW
from hopback.topology.model import Queue, QueueType
from tests.integration.proxy import Proxy
from tests.integration.waiting import until, until_read

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from hopback.broker.port import Channel
    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker


class _Running:
    """A running service and its events."""

    def __init__(self, app: App, url: str, **options: Any) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        environment = Environment(
            bus=Bus(lambda name, fields: self.events.append((name, fields))),
            backoff=Backoff(first=0.05, most=0.2),
        )
        self.service = Service(
            app, RabbitMQ(url), options=ServiceOptions(**options), environment=environment
        )

    def count(self, name: str) -> int:
        """Number of events with this name."""
        return sum(1 for found, _ in self.events if found == name)


@asynccontextmanager
async def _run(app: App, url: str, **options: Any) -> AsyncIterator[_Running]:
    running = _Running(app, url, **options)
    task = asyncio.create_task(running.service.run())
    await asyncio.wait(
        {task, asyncio.ensure_future(running.service.ready.wait())},
        return_when=asyncio.FIRST_COMPLETED,
        timeout=20,
    )
    try:
        yield running
    finally:
        running.service.stop()
        await asyncio.wait_for(task, 20)


@asynccontextmanager
async def _channel(url: str) -> AsyncIterator[Channel]:
    connection = await RabbitMQ(url).connect("test")
    try:
        yield await connection.open_channel()
    finally:
        await connection.close()


async def _messages(url: str, queue: str) -> int:
    async with _channel(url) as channel:
        return (await channel.declare_queue(Queue(queue), passive=True)).messages


async def test_outcomes_done_retried_parked_and_snoozed_on_rabbitmq(amqp_url: str) -> None:
    runs: dict[str, list[int]] = {}
    app = App("shop")

    @app.handler("orders", retry=["50ms", "100ms"])
    async def handle(payload: dict[str, str], context: Context) -> Park | Snooze | None:
        runs.setdefault(payload["do"], []).append(context.attempt)
        match payload["do"]:
            case "fail":
                raise LookupError("no such customer")
            case "park":
                return Park("hopeless")
            case "snooze" if len(runs["snooze"]) == 1:
                return Snooze(0.01)
        return None

    async with _run(app, amqp_url) as running:
        for what in ("work", "fail", "park", "snooze"):
            await app.publish("orders", {"do": what})
        await app.publish("orders", b"{")
        await until(lambda: running.count("delivery.parked") == 3)
        await until(lambda: running.count("delivery.done") == 2)
    assert runs == {"work": [1], "fail": [1, 2, 3], "park": [1], "snooze": [1, 1]}
    assert await _messages(amqp_url, "orders.dlq") == 3
    assert await _messages(amqp_url, "orders") == 0


@pytest.mark.parametrize("hardened", [False, True], ids=["faithful", "hardened"])
async def test_raffle_has_documented_number_of_attempts(amqp_url: str, hardened: bool) -> None:
    topology = DESIGNS["raffle"].build({"retry_ttl_ms": "50"}, hardened=hardened)
    plan = topology.plans[0]
    app, runs = App("raffle", topology=topology), list[int]()

    @app.handler(plan.queue)
    async def handle(context: Context) -> None:
        runs.append(context.attempt)
        raise ValueError("always")

    async with _run(app, amqp_url) as running:
        await app.publish(plan.queue, {})
        await until(lambda: running.count("delivery.parked") == 1)
    assert runs == [1, 2, 3, 4]
    assert await _messages(amqp_url, plan.parking.queue) == 1


async def test_batch_bisection_parks_only_bad_rows_on_rabbitmq(amqp_url: str) -> None:
    """98 of 100 rows are inserted once."""
    rows: list[int] = []
    app = App("raffle")

    @app.batch("users", size=25, wait="100ms", retry=["50ms"])
    async def insert(batch: list[int]) -> None:
        bad = {7, 77} & set(batch)
        if bad:
            raise ValueError(f"bad row {min(bad)}")
        rows.extend(batch)

    async with _run(app, amqp_url) as running:
        await asyncio.gather(*(_publish(app, number) for number in range(100)))
        await until(lambda: running.count("delivery.parked") == 2)
        await until(lambda: len(rows) == 98)
    assert sorted(rows) == sorted(set(range(100)) - {7, 77})
    assert await _messages(amqp_url, "users.dlq") == 2


async def _publish(app: App, number: int) -> None:
    await app.publish("users", number)


async def test_cut_connections_are_survived_without_stale_settlement(amqp_url: str) -> None:
    done: set[int] = set()
    app = App("shop")

    @app.handler("orders", retry=["50ms"], concurrency=20)
    async def handle(number: int) -> None:
        await asyncio.sleep(0.01)
        done.add(number)

    async with Proxy(amqp_url) as proxy, _run(app, proxy.url) as running:
        async with _channel(amqp_url) as channel:
            for number in range(300):
                await channel.room()
                channel.publish(compose("orders", number))
            for _ in range(3):
                await asyncio.sleep(0.05)
                proxy.cut()
        await until(lambda: len(done) == 300)
        await until(lambda: running.service.consumers[0].in_flight == 0)
        assert not [fields for name, fields in running.events if "PRECONDITION" in str(fields)]
    assert await _messages(amqp_url, "orders") == 0


async def test_broker_that_does_not_answer_does_not_delay_shutdown(amqp_url: str) -> None:
    """No further handler starts meanwhile, because its ack would be lost."""
    started: list[str] = []
    app = App("shop")

    @app.handler("orders", retry=["50ms"], concurrency=1, prefetch=10)
    async def handle(number: int) -> None:
        started.append(f"order {number}")
        await asyncio.sleep(1)

    @app.handler("mails", retry=["50ms"], concurrency=1, prefetch=10)
    async def mail(number: int) -> None:
        started.append(f"mail {number}")
        await asyncio.sleep(1)

    async with Proxy(amqp_url) as proxy:
        running = _Running(app, proxy.url, grace=3)
        task = asyncio.create_task(running.service.run())
        await running.service.ready.wait()
        for number in range(5):
            await app.publish("orders", number)
            await app.publish("mails", number)
        await until(lambda: len(started) == 2)
        await asyncio.sleep(0.2)
        proxy.stall()
        before, began = len(started), asyncio.get_running_loop().time()
        running.service.stop()
        report = await task
        # the grace time, one channel and two connections
        assert asyncio.get_running_loop().time() - began < 3 + 2 + 2 * 5 + 5
        assert len(started) == before
        assert {one.queue for one in report.left} == {"orders", "mails"}
        proxy.resume()


async def test_deleted_queue_is_declared_again_with_consumer(amqp_url: str) -> None:
    seen: list[int] = []
    app = App("shop")

    @app.handler("orders", retry=["50ms"])
    async def handle(number: int) -> None:
        seen.append(number)

    async with _run(app, amqp_url) as running:
        async with _channel(amqp_url) as channel:
            await channel.delete_queue("orders")
        await until(lambda: running.count("consumer.started") == 2)
        await app.publish("orders", 1)
        await until(lambda: seen == [1])


@pytest.mark.parametrize("queue", ["orders.dlq", "orders.retry.50ms"])
async def test_deleted_dead_letter_or_retry_queue_is_restored(amqp_url: str, queue: str) -> None:
    """Held deliveries fill the prefetch until then."""
    app = App("shop")

    @app.handler("orders", retry=["50ms"], concurrency=5)
    async def handle() -> None:
        raise ValueError("always")

    async with _run(app, amqp_url) as running:
        async with _channel(amqp_url) as channel:
            await channel.delete_queue(queue)
        await asyncio.gather(*(app.publish("orders", number) for number in range(50)))
        await until(lambda: running.count("delivery.parked") == 50)
        assert ("topology.restored", {"object": queue}) in running.events
    assert await _messages(amqp_url, "orders.dlq") == 50


async def test_deleted_exchange_is_restored_with_bindings(amqp_url: str) -> None:
    """A 404 reveals it."""
    topology = DESIGNS["raffle"].build({"retry_ttl_ms": "50"}, hardened=True)
    app = App("raffle", topology=topology)

    @app.handler("raffle_queue")
    async def handle() -> None:
        raise ValueError("always")

    async with _run(app, amqp_url) as running:
        async with _channel(amqp_url) as channel:
            await channel.delete_exchange("raffle_retry_exchange")
        await app.publish("raffle_queue", {})
        await until(lambda: running.count("delivery.parked") == 1)
        assert ("topology.restored", {"object": "raffle_retry_exchange"}) in running.events
    assert await _messages(amqp_url, "raffle_dlq") == 1


@pytest.mark.parametrize("form", ["old", "new"])
@pytest.mark.waits(12)
async def test_consumers_do_not_recreate_queue_in_migration(
    rabbitmq: SharedNode, vhost: str, amqp_url: str, form: str
) -> None:
    """Afterwards only the new form is consumed."""
    new = App("shop")
    new.queue("orders", retry=["50ms"])
    old_form = replace(
        new.topology,
        queues=tuple(
            replace(queue, arguments={**queue.arguments, "x-delivery-limit": 7})
            if queue.name == "orders"
            else queue
            for queue in new.topology.queues
        ),
    )
    app = App("shop", topology=old_form if form == "old" else new.topology)
    seen: list[int] = []

    @app.handler("orders")
    async def handle(number: int) -> None:
        seen.append(number)

    connection = await RabbitMQ(amqp_url).connect("migration")
    channel = await connection.open_channel()
    async with _run(app, amqp_url) as running:
        limit = {"x-delivery-limit": NO_DELIVERY_LIMIT}
        shadow = Queue("orders" + SHADOW, QueueType.QUORUM, arguments=limit)
        await channel.declare_queue(shadow)
        await asyncio.gather(
            *(channel.publish(compose(shadow.name, number)) for number in range(20))
        )
        await channel.delete_queue("orders")
        await until(lambda: any("being migrated" in str(one) for one in running.events))
        await asyncio.sleep(2)  # ten more tries to return, none of which may create the queue
        with pytest.raises(NotFound):
            await (await connection.open_channel()).declare_queue(Queue("orders"), passive=True)
        live = replace(old_form, queues=(*old_form.queues, shadow))
        # The node's tick is short, so its statistics are younger than the watched time.
        async with Management(ManagementAddress.derive(None, rabbitmq.management_url)) as told:
            planned = migration(new.topology, live)
            await migrate(connection, planned, management=told, vhost=vhost, watch_s=3)
        if form == "new":
            await until(lambda: sorted(seen) == list(range(20)))
        else:
            await until(lambda: "cannot be used" in running.service.consumer("orders").trouble)
            assert await _messages(amqp_url, "orders") == 20
    await connection.close()


async def test_shutdown_requeues_messages_that_were_not_started(amqp_url: str) -> None:
    """Running handlers finish. The report equals the queue."""
    begun, release = list[int](), asyncio.Event()
    app = App("shop")

    @app.handler("orders", retry=["50ms"], concurrency=2)
    async def handle(number: int) -> None:
        begun.append(number)
        await release.wait()

    running = _Running(app, amqp_url)
    task = asyncio.create_task(running.service.run())
    await running.service.ready.wait()
    for number in range(5):
        await app.publish("orders", number)
    await until(lambda: len(begun) == 2)
    running.service.stop()
    await until(lambda: running.count("shutdown.step") == 2)
    release.set()
    report = await task
    assert report.handled == 2
    assert [one.not_started for one in report.left] == [3]
    assert report.clean
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await until_read(lambda: _messages(amqp_url, "orders"), 3)


async def test_topology_conflict_ends_run_with_both_values(amqp_url: str) -> None:
    connection = await RabbitMQ(amqp_url).connect("test")
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("orders"))
    app = App("shop")

    @app.handler("orders", retry=["50ms"])
    async def handle() -> None: ...

    with pytest.raises(TopologyConflict, match='type: "quorum" desired, "classic"'):
        await Service(app, RabbitMQ(amqp_url)).run()
    await connection.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_retry_without_its_queue_is_held_until_queue_returns(amqp_url: str) -> None:
    app = App("shop")

    @app.handler("orders", retry=["50ms"])
    async def handle(context: Context) -> None:
        if context.attempt == 1:
            raise ValueError("once")

    operator = await RabbitMQ(amqp_url).connect("operator")
    await declare(operator, app.topology)
    async with _run(app, amqp_url, ownership=Ownership.CHECK) as running:
        async with _channel(amqp_url) as channel:
            await channel.delete_queue("orders.retry.50ms")
        await app.publish("orders", 1)
        await until(lambda: running.count("delivery.held") >= 2)
        assert running.count("delivery.retried") == 0
        await declare(operator, app.topology)
        await until(lambda: running.count("delivery.done") == 1)
    await operator.close()
    assert running.count("delivery.retried") == 1


async def test_consumer_start_neither_requeues_nor_reorders_messages(amqp_url: str) -> None:
    """The first message is acked when the second subscription exists and the first is not yet
    cancelled.
    """
    app = App("shop")
    got: list[int] = []
    redelivered: list[int] = []
    subscriptions = 0
    subscribed_twice = asyncio.Event()

    @app.handler("orders", retry=None)
    async def handle(number: int, context: Context) -> None:
        got.append(number)
        if context.delivery.redelivered:
            redelivered.append(number)
        await subscribed_twice.wait()

    def notice_consume_ok(data: bytes) -> None:
        nonlocal subscriptions
        subscriptions += data.count(b"\0\x3c\0\x15")  # class and method of basic.consume-ok
        if subscriptions >= 2:
            subscribed_twice.set()

    connection = await RabbitMQ(amqp_url).connect("test")
    await declare(connection, app.topology)
    channel = await connection.open_channel()
    expected = list(range(30))
    await asyncio.gather(*(channel.publish(compose("orders", one)) for one in expected))
    async with Proxy(amqp_url) as proxy:
        proxy.delay_s = 0.01  # ack and cancel reach the broker together
        proxy.on_bytes = notice_consume_ok
        async with _run(app, proxy.url):
            await until(lambda: len(set(got)) == len(expected))
    await connection.close()
    assert redelivered == []
    assert got == expected
