"""When the broker fails in the middle: nothing is settled early, nothing twice, nothing is lost."""

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


def _failing_once() -> App:
    app = App("shop")

    @app.handler("orders", retry=["30s"])
    async def handle(context: Context) -> None:
        await asyncio.sleep(1)
        if context.attempt == 1:
            raise ValueError("once")

    return app


@pytest.mark.parametrize("fault", [Fault.RETURN, Fault.NACK, Fault.LOSE_CONFIRM])
@in_virtual_time
async def test_a_retry_that_finds_no_home_is_held_and_tried_again(fault: Fault) -> None:
    """Nothing is settled while the publish fails; then the message is settled once."""
    async with AppTest(_failing_once()) as test:
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
async def test_a_publishing_line_that_breaks_is_replaced(fault: Fault) -> None:
    """The retry is sent once more. The delivery is held when that connection is lost as well."""
    async with AppTest(_failing_once()) as test:
        await test.publish("orders", {})
        test.faults.inject(fault, 2)
        tally = await test.drain()
    assert tally.held == 1
    assert tally.retried == 1
    assert tally.done == (1 if fault is Fault.CUT_BEFORE_PUBLISH else 3)
    assert tally.parked == 0


@in_virtual_time
async def test_a_held_delivery_whose_channel_dies_is_abandoned_and_comes_again() -> None:
    """The retry queue is away and so is the channel: the broker has the message, nobody else."""
    async with AppTest(_failing_once()) as test:
        await test.publish("orders", {})
        test.faults.inject(Fault.NACK, 2)
        await test.advance(1.1)
        assert test.find_events("delivery.held")
        test.broker.cut()
        tally = await test.drain()
    assert (tally.abandoned, tally.retried, tally.done) == (1, 1, 1)


@in_virtual_time
async def test_a_cut_in_the_middle_abandons_what_runs_and_settles_nothing_stale() -> None:
    """The handler ends, finds its channel gone, and the message is handled again on the new one."""
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
async def test_what_waited_for_a_worker_is_not_started_after_its_channel_died() -> None:
    """It would only be run twice."""
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
async def test_a_cut_at_settlement_loses_nothing(fault: Fault) -> None:
    """Before it, the message comes again; after it, it is done."""
    async with AppTest(_failing_once()) as test:
        test.faults.inject(fault)
        await test.publish("orders", {})
        await test.drain()
        await test.advance(120)
        assert test.dead_letters("orders") == ()
        assert test.find_events("delivery.done")


@in_virtual_time
async def test_a_consumer_that_the_broker_cancels_is_restored_and_its_queue_declared_anew() -> None:
    """Deleting a queue cancels its consumers; the declared topology comes back with them."""
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
async def test_what_runs_when_the_consumer_is_cancelled_settles_on_its_channel() -> None:
    """The channel outlives its consumer: the handler's work is not done twice."""
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
    """Make the broker forget its consumers without a word, as bugs and failovers do."""
    for session in broker.node.sessions:
        for channel in session.channels.values():
            for consumer in broker.node.queues[queue].ring.consumers.copy():
                channel.cancel(consumer.tag)


@in_virtual_time
async def test_a_consumer_that_the_broker_does_not_know_any_more_is_restored() -> None:
    """The watch asks the broker; liveness says `starting` until it consumes again."""
    app = _failing_once()
    async with AppTest(app, options=ServiceOptions(watch=10)) as test:
        _forget(test.broker, "orders")
        await test.publish("orders", {})
        await test.advance(5)
        assert not test.find_events("delivery.retried")
        tally = await test.drain()
        assert test.find_events("consumer.lost", reason="does not know the consumer any more")
    assert tally == Tally(retried=1, done=1)


@in_virtual_time
async def test_messages_that_are_not_brought_to_an_idle_consumer_give_it_away() -> None:
    """Another process consumes the queue and is stuck: counting consumers would not tell."""
    app = _failing_once()
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
async def test_a_busy_or_quiet_consumer_is_left_alone_by_the_watch() -> None:
    """Ready messages behind a full prefetch, and an empty queue, are no sign of anything."""
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
async def test_a_message_that_can_be_moved_nowhere_is_kept_and_said() -> None:
    """Its headers fill a frame: nothing safe can be done, so nothing is done, and it is counted."""
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
        raise AssertionError("nothing may be published")

    settling = Settling(plan, publish, environment)
    assert not await settling.conclude(HeldDelivery(delivery, session), Answer(Park("no")), 0.0)
    assert said == [("delivery.held", None)]
    assert settling.kept == 1
    assert len(broker.snapshot().queue(plan.queue).unacked) == 1
    session.ended.set()
    assert settling.kept == 0
    await connection.close()


@in_virtual_time
async def test_an_unexpected_error_before_settlement_leaves_the_message_where_it_was() -> None:
    """Even a mistake of our own settles nothing, and is said."""
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
        raise ZeroDivisionError("a mistake of ours")

    settling = Settling(plan, publish, environment)
    taken = HeldDelivery(found, ConsumeSession(channel, connection.version))
    assert not await settling.conclude(taken, Answer(Retry("no")), 0.0)
    mistake = "ZeroDivisionError: a mistake of ours"
    assert said == [("delivery.held", f"not rewritten: {mistake}, not parked: {mistake}")]
    assert len(broker.snapshot().queue(plan.queue).unacked) == 1
    await connection.close()


@in_virtual_time
async def test_a_blocked_broker_holds_retries_back_and_loses_none() -> None:
    """A memory alarm: the retry waits in our hands until the broker reads again."""
    async with AppTest(_failing_once()) as test:
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
async def test_a_restart_of_the_broker_is_survived() -> None:
    """Durable queues and persistent messages; consumers come back by themselves."""
    async with AppTest(_failing_once()) as test:
        for _ in range(5):
            await test.publish("orders", {})
        await test.advance(5)
        test.broker.restart()
        tally = await test.drain()
    assert tally.done == 5
