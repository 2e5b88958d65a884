"""A second copy of a message is dropped once the first has ended, and nothing else ever is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hopback import App, Context, Outcome, Retry
from hopback.broker import EmbeddedBroker
from hopback.headers.names import ATTEMPTS, COPY_ID, QUEUE
from hopback.message import Message, Properties
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import RedriveRequest, Selection
from hopback.ops.operations import Operations
from hopback.testing import AppTest, Fault, in_virtual_time

if TYPE_CHECKING:
    from hopback.fields import FieldValue

_UNTIL = 11
"""Seconds from one run to the next: the handler takes 1, the wait 10."""


def _failing(runs: list[int], failures: int, *, batch: bool = False) -> App:
    """An application whose plan allows four runs, and whose handler fails so many times."""
    app = App("shop")
    app.queue("orders", retry=["10s"], attempts=4)

    async def handle(context: Context) -> Outcome | None:
        runs.append(context.attempt)
        await asyncio.sleep(1)
        return Retry("as ordered") if context.attempt <= failures else None

    if batch:

        async def insert(rows: list[object]) -> None: ...

        app.batch("orders", size=1, prepare=handle)(insert)
    else:
        app.handler("orders", concurrency=1)(handle)
    return app


@pytest.mark.parametrize("batch", [False, True], ids=["one by one", "batches"])
@pytest.mark.parametrize("attempt", [2, 3, 4])
@in_virtual_time
async def test_a_run_that_ended_is_not_run_again_when_its_ack_is_lost(
    attempt: int, batch: bool
) -> None:
    """The next home was confirmed and the line broke before the ack: the delivery is only acked."""
    runs: list[int] = []
    async with AppTest(_failing(runs, 4, batch=batch)) as test:
        await test.publish("orders", 1, message_id="m")
        await test.advance(_UNTIL * (attempt - 1) + 0.5)
        test.faults.inject(Fault.CUT_BEFORE_SETTLE)
        await test.drain()
        assert len(test.find_events("delivery.copy")) == 1
        assert len(test.broker.snapshot().queue("orders.dlq").messages) == 1
    assert runs == [1, 2, 3, 4]


@in_virtual_time
async def test_a_done_run_whose_ack_is_lost_is_not_run_again() -> None:
    """What the handler was done with needs nothing but its ack."""
    runs: list[int] = []
    async with AppTest(_failing(runs, 1)) as test:
        await test.publish("orders", 1, message_id="m")
        await test.advance(_UNTIL + 0.5)
        test.faults.inject(Fault.CUT_BEFORE_SETTLE)
        await test.drain()
        assert not any(queue.messages for queue in test.broker.snapshot().queues)
    assert runs == [1, 2]


async def _die_before_the_ack(runs: list[int], broker: EmbeddedBroker, attempt: int) -> None:
    """A process that ends, and all it knew with it, between a stored retry and its ack."""
    async with AppTest(_failing(runs, 4), broker=broker) as doomed:
        await doomed.publish("orders", 1, message_id="m")
        await doomed.advance(_UNTIL * (attempt - 1) + 0.5)
        doomed.faults.inject(Fault.CUT_BEFORE_SETTLE)
        doomed.faults.inject(Fault.REFUSE_CONNECTION, 1000)
        await doomed.advance(5)
    broker.faults.clear()


@in_virtual_time
async def test_a_process_that_dies_after_a_second_failure_costs_one_run_more() -> None:
    """Its successor runs the delivery again, gets two copies of the next attempt, and runs one."""
    runs: list[int] = []
    broker = EmbeddedBroker()
    await _die_before_the_ack(runs, broker, 2)
    async with AppTest(_failing(runs, 4), broker=broker) as test:
        await test.drain()
        assert len(test.find_events("delivery.copy")) == 1
        assert len(broker.snapshot().queue("orders.dlq").messages) == 1
    assert sorted(runs) == [1, 2, 2, 3, 4]


@in_virtual_time
async def test_a_process_that_dies_after_a_first_failure_leaves_two_lives() -> None:
    """Nothing tells its redelivery from another message: both copies run what is left of the plan."""
    runs: list[int] = []
    broker = EmbeddedBroker()
    await _die_before_the_ack(runs, broker, 1)
    async with AppTest(_failing(runs, 4), broker=broker) as test:
        await test.drain()
        assert not test.find_events("delivery.copy")
        assert len(broker.snapshot().queue("orders.dlq").messages) == 2
    assert sorted(runs) == [1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize("fault", [Fault.LOSE_CONFIRM, Fault.CUT_AFTER_PUBLISH])
@in_virtual_time
async def test_a_retry_that_was_stored_twice_runs_once(fault: Fault) -> None:
    """Its confirm was lost, so it was published again: the second copy is dropped."""
    runs: list[int] = []
    async with AppTest(_failing(runs, 1)) as test:
        test.faults.inject(fault)
        await test.publish("orders", 1, message_id="m")
        await test.drain()
        assert len(test.find_events("delivery.copy")) == 1
    assert runs == [1, 2]


@pytest.mark.parametrize("message_id", ["same", None])
@in_virtual_time
async def test_equal_messages_that_both_fail_once_all_run(message_id: str | None) -> None:
    """Equal ids and equal bodies make no copies: the producer sent both, and sends a third."""
    runs: list[int] = []
    async with AppTest(_failing(runs, 1)) as test:
        producer = await test.broker.connect("producer")
        channel = await producer.open_channel()
        message = Message("", "orders", b"1", Properties(message_id=message_id, delivery_mode=2))
        for _ in range(2):
            await channel.publish(message)
        await test.drain()
        await channel.publish(message)
        await test.drain()
        assert not test.find_events("delivery.copy")
        await producer.close()
    assert sorted(runs) == [1, 1, 1, 2, 2, 2]


@in_virtual_time
async def test_an_equal_message_whose_process_died_is_not_the_copy_of_another() -> None:
    """One failed and ended, its equal was in hand at a crash and fails later: both have all attempts."""
    runs: list[int] = []
    broker = EmbeddedBroker()
    async with AppTest(_failing(runs, 4), broker=broker) as test:
        for _ in range(2):
            await test.publish("orders", 1, message_id="m")
            test.broker.cut()
        await test.drain()
        assert len(broker.snapshot().queue("orders.dlq").messages) >= 2
    assert all(runs.count(attempt) >= 2 for attempt in (1, 2, 3, 4))


@in_virtual_time
async def test_a_message_without_id_is_never_taken_for_a_copy() -> None:
    """Its retry is stored twice, and both run."""
    runs: list[int] = []
    async with AppTest(_failing(runs, 1)) as test:
        producer = await test.broker.connect("producer")
        channel = await producer.open_channel()
        await channel.publish(Message("", "orders", b"1", Properties(delivery_mode=2)))
        test.faults.inject(Fault.LOSE_CONFIRM)
        await test.drain()
        await producer.close()
    assert runs == [1, 2, 2]


@in_virtual_time
async def test_a_message_re_driven_right_after_parking_runs_with_all_its_attempts() -> None:
    """It is no copy of what was parked, however often it goes round."""
    runs: list[int] = []
    async with AppTest(_failing(runs, 4)) as test:
        await test.publish("orders", 1, message_id="m")
        await test.drain()
        for _ in range(2):
            (parked,) = test.broker.snapshot().queue("orders.dlq").messages
            assert COPY_ID not in parked.properties.headers
            async with Operations(
                ManagedBroker(test.broker, topologies=[test.app.topology])
            ) as operations:
                request = RedriveRequest(queue="orders.dlq", selection=Selection(), reason="again")
                await operations.wait((await operations.start(request)).id)
            await test.drain()
        assert not test.find_events("delivery.copy")
    assert runs == [1, 2, 3, 4] * 3


@in_virtual_time
async def test_forged_lineage_drops_only_the_equal_message_of_the_forger_and_says_so() -> None:
    """A producer that writes the lineage itself has to repeat it with id, attempt and body."""
    runs: list[int] = []
    async with AppTest(_failing(runs, 0)) as test:
        producer = await test.broker.connect("producer")
        channel = await producer.open_channel()

        def forged(body: bytes, copy_id: str) -> Message:
            headers: dict[str, FieldValue] = {COPY_ID: copy_id, ATTEMPTS: 1, QUEUE: "orders"}
            properties = Properties(message_id="m", delivery_mode=2, headers=headers)
            return Message("", "orders", body, properties)

        for message in (forged(b"1", "a"), forged(b"1", "b"), forged(b"2", "a")):
            await channel.publish(message)
            await test.drain()
        assert not test.find_events("delivery.copy")
        await channel.publish(forged(b"1", "a"))
        await test.drain()
        (said,) = test.find_events("delivery.copy")
        assert said.fields["message_id"] == "m"
        await producer.close()
    assert len(runs) == 3
