"""A second copy of a message is dropped once the first has ended.

Other messages are never dropped.
"""

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


def _app_failing(runs: list[int], failures: int, *, batch: bool = False) -> App:
    """An application whose plan allows four runs and whose handler fails the given number of times."""
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
async def test_failed_run_whose_ack_is_lost_is_not_repeated(attempt: int, batch: bool) -> None:
    """The retry was confirmed before the connection was lost, so the redelivery is only acked."""
    runs: list[int] = []
    async with AppTest(_app_failing(runs, 4, batch=batch)) as test:
        await test.publish("orders", 1, message_id="m")
        await test.advance(_UNTIL * (attempt - 1) + 0.5)
        test.faults.inject(Fault.CUT_BEFORE_SETTLE)
        await test.drain()
        assert len(test.find_events("delivery.copy")) == 1
        assert len(test.broker.snapshot().queue("orders.dlq").messages) == 1
    assert runs == [1, 2, 3, 4]


@in_virtual_time
async def test_done_run_whose_ack_is_lost_is_not_repeated() -> None:
    runs: list[int] = []
    async with AppTest(_app_failing(runs, 1)) as test:
        await test.publish("orders", 1, message_id="m")
        await test.advance(_UNTIL + 0.5)
        test.faults.inject(Fault.CUT_BEFORE_SETTLE)
        await test.drain()
        assert not any(queue.messages for queue in test.broker.snapshot().queues)
    assert runs == [1, 2]


async def _die_before_the_ack(runs: list[int], broker: EmbeddedBroker, attempt: int) -> None:
    """A process that ends, and all it knew with it, between a stored retry and its ack."""
    async with AppTest(_app_failing(runs, 4), broker=broker) as doomed:
        await doomed.publish("orders", 1, message_id="m")
        await doomed.advance(_UNTIL * (attempt - 1) + 0.5)
        doomed.faults.inject(Fault.CUT_BEFORE_SETTLE)
        doomed.faults.inject(Fault.REFUSE_CONNECTION, 1000)
        await doomed.advance(5)
    broker.faults.clear()


@in_virtual_time
async def test_process_killed_after_second_failure_costs_one_more_run() -> None:
    """Its successor runs the delivery again, gets two copies of the next attempt, and runs one."""
    runs: list[int] = []
    broker = EmbeddedBroker()
    await _die_before_the_ack(runs, broker, 2)
    async with AppTest(_app_failing(runs, 4), broker=broker) as test:
        await test.drain()
        assert len(test.find_events("delivery.copy")) == 1
        assert len(broker.snapshot().queue("orders.dlq").messages) == 1
    assert sorted(runs) == [1, 2, 2, 3, 4]


@in_virtual_time
async def test_process_killed_after_first_failure_runs_both_copies() -> None:
    """Its redelivery cannot be distinguished from another message."""
    runs: list[int] = []
    broker = EmbeddedBroker()
    await _die_before_the_ack(runs, broker, 1)
    async with AppTest(_app_failing(runs, 4), broker=broker) as test:
        await test.drain()
        assert not test.find_events("delivery.copy")
        assert len(broker.snapshot().queue("orders.dlq").messages) == 2
    assert sorted(runs) == [1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize("fault", [Fault.LOSE_CONFIRM, Fault.CUT_AFTER_PUBLISH])
@in_virtual_time
async def test_retry_stored_twice_runs_once(fault: Fault) -> None:
    """Its confirm was lost, so it was published again."""
    runs: list[int] = []
    async with AppTest(_app_failing(runs, 1)) as test:
        test.faults.inject(fault)
        await test.publish("orders", 1, message_id="m")
        await test.drain()
        assert len(test.find_events("delivery.copy")) == 1
    assert runs == [1, 2]


@pytest.mark.parametrize("message_id", ["same", None])
@in_virtual_time
async def test_equal_messages_that_both_fail_once_all_run(message_id: str | None) -> None:
    """Equal ids and bodies are not copies if the producer sent them."""
    runs: list[int] = []
    async with AppTest(_app_failing(runs, 1)) as test:
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
async def test_equal_message_of_killed_process_is_not_dropped_as_copy() -> None:
    """One of them had failed and ended before. Both have all attempts."""
    runs: list[int] = []
    broker = EmbeddedBroker()
    async with AppTest(_app_failing(runs, 4), broker=broker) as test:
        for _ in range(2):
            await test.publish("orders", 1, message_id="m")
            test.broker.cut()
        await test.drain()
        assert len(broker.snapshot().queue("orders.dlq").messages) >= 2
    assert all(runs.count(attempt) >= 2 for attempt in (1, 2, 3, 4))


@in_virtual_time
async def test_message_without_id_is_never_dropped_as_copy() -> None:
    runs: list[int] = []
    async with AppTest(_app_failing(runs, 1)) as test:
        producer = await test.broker.connect("producer")
        channel = await producer.open_channel()
        await channel.publish(Message("", "orders", b"1", Properties(delivery_mode=2)))
        test.faults.inject(Fault.LOSE_CONFIRM)
        await test.drain()
        await producer.close()
    assert runs == [1, 2, 2]


@in_virtual_time
async def test_message_redriven_after_parking_has_all_attempts() -> None:
    """It is not a copy of the parked message."""
    runs: list[int] = []
    async with AppTest(_app_failing(runs, 4)) as test:
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
async def test_forged_lineage_drops_only_equal_message_of_forger() -> None:
    """The producer has to repeat id, attempt and body. An event reports it."""
    runs: list[int] = []
    async with AppTest(_app_failing(runs, 0)) as test:
        producer = await test.broker.connect("producer")
        channel = await producer.open_channel()

        def forge(body: bytes, copy_id: str) -> Message:
            headers: dict[str, FieldValue] = {COPY_ID: copy_id, ATTEMPTS: 1, QUEUE: "orders"}
            properties = Properties(message_id="m", delivery_mode=2, headers=headers)
            return Message("", "orders", body, properties)

        for message in (forge(b"1", "a"), forge(b"1", "b"), forge(b"2", "a")):
            await channel.publish(message)
            await test.drain()
        assert not test.find_events("delivery.copy")
        await channel.publish(forge(b"1", "a"))
        await test.drain()
        (said,) = test.find_events("delivery.copy")
        assert said.fields["message_id"] == "m"
        await producer.close()
    assert len(runs) == 3
