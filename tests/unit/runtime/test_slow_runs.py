"""Handlers that never return: they cost their own slot, on the embedded broker in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from hopback import App
from hopback.broker import BrokerVersion, EmbeddedBroker
from hopback.headers import read_history
from hopback.runtime.health import Health
from hopback.testing import AppTest, in_virtual_time

VERSIONS = [BrokerVersion(3, 10), BrokerVersion(4, 0), BrokerVersion(4, 3)]


def _shop(runs: Counter[int], *, concurrency: int = 10, attempts: int = 2, **more: Any) -> App:
    """Negative numbers never return, others take a second."""
    app = App("shop")

    @app.handler("orders", retry=["10s"], attempts=attempts, concurrency=concurrency, **more)
    async def handle(number: int) -> None:
        runs[number] += 1
        if number < 0:
            await asyncio.Event().wait()
        await asyncio.sleep(1)

    return app


async def _feed(test: AppTest, numbers: range, every: float) -> None:
    for number in numbers:
        await test.publish("orders", number, message_id=str(number))
        await test.advance(every)


@pytest.mark.parametrize("timeout_s", [60.0, 1800.0])
@pytest.mark.parametrize("version", VERSIONS, ids=str)
@in_virtual_time
async def test_hanging_handler_costs_its_slot_and_no_other_message(
    version: BrokerVersion, timeout_s: float
) -> None:
    """The broker takes back its message alone.

    Each time counts as a failed attempt, then it is parked.
    """
    runs = Counter[int]()
    broker = EmbeddedBroker(version=version, consumer_timeout=timeout_s)
    async with AppTest(_shop(runs), broker=broker) as test:
        await test.publish("orders", -1, message_id="-1")
        await _feed(test, range(500), timeout_s / 100)
        await test.drain()
        (parked,) = test.broker.snapshot().queue("orders.dlq").messages
        taken_back = test.find_events("delivery.taken_back")
        assert not test.find_events("quarantine.begun")
        assert not test.find_events("consumer.lost")
    assert runs == Counter(range(500)) + Counter({-1: 2})
    failure = read_history(parked.properties.headers, "orders").failure
    assert failure is not None
    assert failure.message.startswith("the broker took the message back (consumer timeout): ")
    assert [one.fields["stopped"] for one in taken_back] == [True, True]
    assert "await asyncio.Event().wait()" in taken_back[0].fields["stack"]


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@in_virtual_time
async def test_consumer_timeout_that_closes_channel_is_learned(
    version: BrokerVersion,
) -> None:
    """A timeout of 5 s returns the whole window once.

    From then on it returns the slow message alone.
    """
    runs = Counter[int]()
    broker = EmbeddedBroker(version=version, consumer_timeout=5.0)
    async with AppTest(_shop(runs, attempts=4), broker=broker) as test:
        await test.publish("orders", -1, message_id="-1")
        await _feed(test, range(900), 0.5)
        await test.drain()
        (parked,) = test.broker.snapshot().queue("orders.dlq").messages
        assert not test.find_events("quarantine.begun")
    assert parked.body == b"-1"
    assert runs.pop(-1) == 4
    assert set(runs) == set(range(900))
    assert sum(runs.values()) <= 900 + 10


@in_virtual_time
async def test_handler_is_cancelled_before_declared_consumer_timeout() -> None:
    """It fails in time, so no message is redelivered."""
    runs = Counter[int]()
    bare = _shop(Counter()).topology
    queues = tuple(
        replace(one, arguments={**one.arguments, "x-consumer-timeout": 600_000})
        if one.name == "orders"
        else one
        for one in bare.queues
    )
    app = App("shop", topology=replace(bare, queues=queues))

    @app.handler("orders", concurrency=2)
    async def handle(number: int) -> None:
        runs[number] += 1
        await asyncio.Event().wait()

    async with AppTest(app, broker=EmbeddedBroker(version=BrokerVersion(4, 3))) as test:
        await test.publish("orders", 1)
        await test.advance(520)
        (retried,) = test.find_events("delivery.retried")
        assert not test.find_events("delivery.abandoned")
        assert "The consumer timeout of its queue is 600 s" in retried.fields["reason"]
        await test.advance(520)
        assert [one.body for one in test.broker.snapshot().queue("orders.dlq").messages] == [b"1"]
    assert runs == {1: 2}


@in_virtual_time
async def test_queue_without_free_handler_is_not_ready_and_names_its_messages() -> None:
    runs = Counter[int]()
    broker = EmbeddedBroker(consumer_timeout=None)
    async with AppTest(_shop(runs, concurrency=2), broker=broker) as test:
        health = Health(test.service, time=asyncio.get_running_loop().time)
        await _feed(test, range(-1, 0), 400)
        assert health.ready().ok
        assert [one.fields["message_id"] for one in test.find_events("handler.slow")] == ["-1"]
        await _feed(test, range(-2, -1), 400)
        assert health.ready().reasons == (
            "orders has no free handler, because these calls have not returned for minutes: -1, -2",
        )
        assert health.alive().ok
        assert len(test.find_events("handler.slow")) == 2


@in_virtual_time
async def test_channels_of_slow_handlers_are_closed_when_they_return() -> None:
    """Handlers take a minute. Several channels are opened, and one remains."""
    app = App("shop")
    done = 0

    @app.handler("orders", retry=["1s"], concurrency=4)
    async def handle() -> None:
        nonlocal done
        await asyncio.sleep(60)
        done += 1

    async with AppTest(app) as test:
        for number in range(40):
            await test.publish("orders", number)
        await test.advance(5)
        most, retired = 0, test.service.consumer("orders").retired
        for _ in range(130):
            await test.advance(5)
            most = max(most, len(retired))
        assert done == 40
        assert 1 <= most <= 4
        await test.advance(60)
        assert not retired
        assert len(test.broker.snapshot().queue("orders").consumers) == 1
        assert not test.find_events("delivery.abandoned")
        assert len(test.find_events("delivery.done")) == 40


@in_virtual_time
async def test_suspect_that_hangs_stops_no_queue() -> None:
    """It runs alone for half a minute, then the others run concurrently."""
    runs = Counter[int]()
    app = _shop(runs)

    @app.handler("mails", retry=["1s"])
    async def send(number: int) -> None:
        runs[1000 + number] += 1

    async with AppTest(app) as test:
        await test.publish("orders", -1)
        for _ in range(4):
            await test.advance(5)
            test.broker.cut()
        await test.advance(60)
        assert test.find_events("quarantine.begun")
        for number in range(100):
            await test.publish("orders", number)
            await test.publish("mails", number)
        await test.advance(30)
        assert set(range(100)) | set(range(1000, 1100)) <= set(runs)


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@in_virtual_time
async def test_hanging_batch_costs_its_own_messages(version: BrokerVersion) -> None:
    runs = Counter[int]()
    app = App("shop")

    @app.batch("users", retry=["1s"], attempts=2, size=2, wait="1s", batchers=2)
    async def insert(rows: list[int]) -> None:
        runs.update(rows)
        if min(rows) < 0:
            await asyncio.Event().wait()

    async with AppTest(app, broker=EmbeddedBroker(version=version)) as test:
        await test.publish("users", -1)
        await test.publish("users", -2)
        for number in range(100):
            await test.publish("users", number)
            await test.advance(60)
        assert len(test.broker.snapshot().queue("users.dlq").messages) == 2
        assert not test.find_events("quarantine.begun")
    assert (runs.pop(-1), runs.pop(-2)) == (2, 2)
    assert set(runs) == set(range(100))
    assert sum(runs.values()) <= 102  # one may have been in a batch with each of them
