"""Broker failures during a run: no early settlement, no double settlement, no loss."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hopback import App, Context, Park, Retry, ServiceOptions
from hopback.broker import EmbeddedBroker
from hopback.broker.embedded import EventKind
from hopback.designs import DESIGNS
from hopback.message import Message, Properties, Received
from hopback.observe.events import Bus
from hopback.runtime import Environment
from hopback.runtime.answer import Answer, ConsumeSession, HeldDelivery
from hopback.runtime.consumer import ConsumerState
from hopback.runtime.settling import Settling
from hopback.testing import AppTest, Fault, Tally, in_virtual_time
from hopback.topology.model import Queue


def _app_failing_once() -> App:
    app = App("shop")

    @app.handler("orders", retry=["30s"])
    async def handle(context: Context) -> None:
        await asyncio.sleep(1)
        if context.attempt == 1:
            raise ValueError("once")

    return app


@pytest.mark.parametrize("fault", [Fault.RETURN, Fault.NACK, Fault.LOSE_CONFIRM])
@in_virtual_time
async def test_unconfirmed_retry_holds_delivery_until_publish_succeeds(fault: Fault) -> None:
    async with AppTest(_app_failing_once()) as test:
        await test.publish("orders", {})
        acked: list[float] = []
        test.broker.node.listen(
            lambda event: (
                acked.append(event.at)
                if event.kind is EventKind.ACKED and event.queue == "orders"
                else None
            )
        )
        test.faults.inject(fault, 3)
        await test.advance(1.1)
        assert acked == []
        assert len(test.broker.snapshot().queue("orders").unacked) == 1
        await test.advance(100)
        assert len(test.find_events("delivery.held")) == 3
        assert len(test.find_events("delivery.retried")) == 1
        waited = [one.fields["retry_in"] for one in test.find_events("delivery.held")]
        assert waited == sorted(waited)
        assert waited[0] > 0
        await test.advance(60)
    # A lost confirm stores the message each time: duplicates, but never a loss.
    assert test.find_events("delivery.done")
    if fault is not Fault.LOSE_CONFIRM:
        assert len(acked) == 2
        assert len(test.find_events("delivery.done")) == 1


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE_PUBLISH, Fault.CUT_AFTER_PUBLISH])
@in_virtual_time
async def test_lost_publishing_connection_is_replaced(fault: Fault) -> None:
    """The retry is sent once more. The delivery is held if that connection is lost as well."""
    async with AppTest(_app_failing_once()) as test:
        await test.publish("orders", {})
        test.faults.inject(fault, 2)
        tally = await test.drain()
    assert tally.held == 1
    assert tally.retried == 1
    assert tally.done == (1 if fault is Fault.CUT_BEFORE_PUBLISH else 3)
    assert tally.parked == 0


@in_virtual_time
async def test_held_delivery_of_closed_channel_is_abandoned_and_redelivered() -> None:
    async with AppTest(_app_failing_once()) as test:
        await test.publish("orders", {})
        test.faults.inject(Fault.NACK, 2)
        await test.advance(1.1)
        assert test.find_events("delivery.held")
        test.broker.cut()
        tally = await test.drain()
    assert (tally.abandoned, tally.retried, tally.done) == (1, 1, 1)


@in_virtual_time
async def test_connection_lost_during_run_redelivers_and_settles_once() -> None:
    runs: list[str] = []
    app = App("shop")

    @app.handler("orders", retry=["30s"], concurrency=2)
    async def handle(payload: dict[str, int], context: Context) -> None:
        runs.append(f"{payload['id']}{'again' if context.delivery.redelivered else ''}")
        await asyncio.sleep(10)

    async with AppTest(app) as test:
        for number in range(2):
            await test.publish("orders", {"id": number})
        await test.advance(5)
        test.broker.cut()
        tally = await test.drain()
        assert test.service.consumers[0].state is ConsumerState.CONSUMING
        # A stale ack would close the new channel: there is one consumer and it was never lost.
        assert not test.find_events("consumer.lost")
    assert runs == ["0", "1", "0again", "1again"]
    assert tally == Tally(done=2, abandoned=2)
    assert test.report is not None
    assert test.report.handled == 2


@in_virtual_time
async def test_waiting_message_of_closed_channel_is_not_started() -> None:
    runs: list[int] = []
    app = App("shop")

    @app.handler("orders", retry=["30s"], concurrency=1)
    async def handle(payload: dict[str, int]) -> None:
        runs.append(payload["id"])
        await asyncio.sleep(1)

    async with AppTest(app) as test:
        for number in range(4):
            await test.publish("orders", {"id": number})
        await test.advance(0.5)
        test.broker.cut()
        await test.drain()
    assert sorted(runs) == [0, 0, 1, 2, 3]


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE_SETTLE, Fault.CUT_AFTER_SETTLE])
@in_virtual_time
async def test_connection_lost_at_settlement_loses_no_message(fault: Fault) -> None:
    async with AppTest(_app_failing_once()) as test:
        test.faults.inject(fault)
        await test.publish("orders", {})
        await test.drain()
        await test.advance(120)
        assert test.dead_letters("orders") == ()
        assert test.find_events("delivery.done")


@in_virtual_time
async def test_deleted_queue_is_declared_again_and_consumed() -> None:
    """The broker cancels its consumers."""
    runs: list[int] = []
    app = App("shop")

    @app.handler("orders", retry=["30s"], bind={"events": "#"})
    async def handle(payload: dict[str, int]) -> None:
        runs.append(payload["id"])

    async with AppTest(app) as test:
        connection = await test.broker.connect("operator")
        channel = await connection.open_channel()
        await channel.delete_queue("orders")
        await test.advance(5)
        assert test.find_events("consumer.lost", reason="the broker cancelled the consumer")
        assert test.service.consumer("orders").state is ConsumerState.CONSUMING
        await test.publish("order.new", {"id": 1}, exchange="events")
        await test.drain()
        await connection.close()
    assert runs == [1]


@in_virtual_time
async def test_running_message_of_cancelled_consumer_settles_on_its_channel() -> None:
    runs: list[int] = []
    app = App("shop")

    @app.handler("orders", retry=["30s"], concurrency=1)
    async def handle(payload: dict[str, int]) -> None:
        runs.append(payload["id"])
        await asyncio.sleep(5)

    async with AppTest(app) as test:
        for number in range(3):
            await test.publish("orders", {"id": number})
        await test.advance(1)
        test.service.consumer("orders").restore("for this test")
        tally = await test.drain()
    assert sorted(runs) == [0, 1, 2]
    assert tally == Tally(done=3)


def _forget(broker: EmbeddedBroker, queue: str) -> None:
    """Make the broker forget its consumers without a notice, as bugs and failovers do."""
    for session in broker.node.sessions:
        for channel in session.channels.values():
            for consumer in broker.node.queues[queue].ring.consumers.copy():
                channel.cancel(consumer.tag)


@in_virtual_time
async def test_consumer_unknown_to_broker_is_restored() -> None:
    """The watch checks the broker. Liveness reports `starting` meanwhile."""
    app = _app_failing_once()
    async with AppTest(app, options=ServiceOptions(watch=10)) as test:
        _forget(test.broker, "orders")
        await test.publish("orders", {})
        await test.advance(5)
        assert not test.find_events("delivery.retried")
        tally = await test.drain()
        assert test.find_events("consumer.lost", reason="does not know the consumer any more")
    assert tally == Tally(retried=1, done=1)


@in_virtual_time
async def test_idle_consumer_with_ready_messages_is_restored() -> None:
    """Another process consumes the queue and hangs, so the number of consumers does not reveal it."""
    app = _app_failing_once()
    async with AppTest(app, options=ServiceOptions(watch=10)) as test:
        _forget(test.broker, "orders")
        other = await test.broker.connect("another process")
        channel = await other.open_channel()
        await channel.qos(1)
        await channel.consume("orders", lambda _delivery: None)
        for _ in range(3):
            await test.publish("orders", {})
        await test.advance(25)
        assert test.find_events("consumer.lost", reason="does not know the consumer any more")
        await other.close()
        tally = await test.drain()
    assert tally.done == 3


@in_virtual_time
async def test_watch_ignores_busy_and_idle_consumers() -> None:
    app = App("shop")

    @app.handler("orders", retry=["30s"], concurrency=1, prefetch=1)
    async def handle() -> None:
        await asyncio.sleep(100)

    async with AppTest(app, options=ServiceOptions(watch=10)) as test:
        await test.advance(60)
        for _ in range(3):
            await test.publish("orders", {})
        tally = await test.drain()
        assert not test.find_events("consumer.lost")
    assert tally == Tally(done=3)


@in_virtual_time
async def test_message_that_cannot_be_moved_stays_unacked_and_is_counted() -> None:
    """Its headers fill a frame."""
    plan = DESIGNS["raffle"].build({}, hardened=True).plans[0]
    broker, said = EmbeddedBroker(), list[tuple[str, Any]]()
    connection = await broker.connect()
    channel = await connection.open_channel()
    await channel.declare_queue(Queue(plan.queue))
    await channel.publish(Message("", plan.queue, b"{}"))
    found = await channel.get(plan.queue)
    assert found is not None
    huge = Properties(headers={f"h{n}": "x" * 1000 for n in range(140)})
    delivery = Received(plan.queue, "", plan.queue, b"{}", huge, tag=found.tag)
    environment = Environment(bus=Bus(lambda name, fields: said.append((name, fields["retry_in"]))))
    session = ConsumeSession(channel, connection.version)

    async def publish(_message: Message, _ended: object = None, /) -> None:
        raise AssertionError("no publish is allowed")

    settling = Settling(plan, publish, environment)
    assert not await settling.conclude(HeldDelivery(delivery, session), Answer(Park("no")), 0.0)
    assert said == [("delivery.held", None)]
    assert settling.kept_count == 1
    assert len(broker.snapshot().queue(plan.queue).unacked) == 1
    session.ended.set()
    assert settling.kept_count == 0
    await connection.close()


@in_virtual_time
async def test_unexpected_error_before_settlement_keeps_message_unacked() -> None:
    """An event reports it."""
    plan = DESIGNS["raffle"].build({}, hardened=True).plans[0]
    broker, said = EmbeddedBroker(), list[tuple[str, str]]()
    connection = await broker.connect()
    channel = await connection.open_channel()
    await channel.declare_queue(Queue(plan.queue))
    await channel.publish(Message("", plan.queue, b"{}"))
    found = await channel.get(plan.queue)
    assert found is not None
    environment = Environment(bus=Bus(lambda name, fields: said.append((name, fields["reason"]))))

    async def publish(_message: Message, _ended: object = None, /) -> None:
        raise ZeroDivisionError("a test failure")

    settling = Settling(plan, publish, environment)
    taken = HeldDelivery(found, ConsumeSession(channel, connection.version))
    assert not await settling.conclude(taken, Answer(Retry("no")), 0.0)
    mistake = "ZeroDivisionError: a test failure"
    assert said == [("delivery.held", f"not rewritten: {mistake}, not parked: {mistake}")]
    assert len(broker.snapshot().queue(plan.queue).unacked) == 1
    await connection.close()


@in_virtual_time
async def test_blocked_broker_delays_retries_without_loss() -> None:
    async with AppTest(_app_failing_once()) as test:
        await test.publish("orders", {})
        test.broker.block()
        await test.advance(300)
        assert not test.find_events("delivery.retried")
        assert len(test.broker.snapshot().queue("orders").unacked) == 1
        test.broker.block(blocked=False)
        tally = await test.drain()
    assert tally.retried >= 1
    assert tally.done >= 1
    assert tally.parked == 0


@in_virtual_time
async def test_broker_restart_loses_no_message() -> None:
    async with AppTest(_app_failing_once()) as test:
        for _ in range(5):
            await test.publish("orders", {})
        await test.advance(5)
        test.broker.restart()
        tally = await test.drain()
    assert tally.done == 5
