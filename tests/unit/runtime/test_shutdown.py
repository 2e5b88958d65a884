"""Shutdown: numbered steps, a second signal, and complete reports."""

from __future__ import annotations

import asyncio

import pytest

from hopback import App, Service, ServiceOptions
from hopback.broker import EmbeddedBroker
from hopback.broker.embedded import Fault
from hopback.runtime.consumer import Leftover
from hopback.testing import AppTest, in_virtual_time
from tests.unit.runtime.slow import alone, slow_app


@in_virtual_time
async def test_shutdown_finishes_running_handlers_in_numbered_steps() -> None:
    """Messages that were not started are requeued and reported."""
    app, told = slow_app(5, concurrency=2)
    async with AppTest(app) as test:
        for number in range(5):
            await test.publish("orders", str(number))
        await test.advance(1)
        report = await test.stop()
    steps = [(one.fields["step"], one.fields["left"]) for one in test.find_events("shutdown.step")]
    assert steps == [(1, 2), (2, 2), (3, 0), (4, 0), (5, 0)]
    assert told == ["begin 0", "begin 1", "end 0", "end 1"]
    assert report.handled == 2
    assert report.left == (Leftover("orders", not_started=3, interrupted=0),)
    assert report.clean
    assert len(test.broker.snapshot().queue("orders").ready) == 3
    alone()


@in_virtual_time
async def test_handler_beyond_grace_is_interrupted_and_reported() -> None:
    app, told = slow_app(1000, concurrency=2)
    began = asyncio.get_running_loop().time()
    async with AppTest(app, options=ServiceOptions(grace=20)) as test:
        for number in range(3):
            await test.publish("orders", str(number))
        await test.advance(1)
        report = await test.stop()
    assert round(asyncio.get_running_loop().time() - began) == 21
    assert told == ["begin 0", "begin 1"]
    assert report.left == (Leftover("orders", not_started=1, interrupted=2),)
    assert not report.clean
    assert len(test.find_events("delivery.abandoned", reason="the handler was interrupted")) == 2
    assert len(test.broker.snapshot().queue("orders").ready) == 3
    alone()


@pytest.mark.parametrize("after", [0.5, 1.5])
@in_virtual_time
async def test_stop_during_consumer_start_loses_and_repeats_no_message(after: float) -> None:
    """Each answer of the broker takes a second, so the service stops while the window opens, and
    after.
    """
    app, told = slow_app(0)
    async with AppTest(app) as test:
        test.faults.latency = 1.0
        for number in range(5):
            await test.publish("orders", str(number))
        await test.advance(after)
        report = await test.stop()
    left = test.broker.snapshot().queue("orders").ready
    begun = [one for one in told if one.startswith("begin")]
    assert begun == [f"begin {number}" for number in range(report.handled)]
    assert [one.body for one in left] == [b"%d" % one for one in range(report.handled, 5)]
    alone()


@in_virtual_time
async def test_stop_while_consumer_restarts_takes_no_delivery() -> None:
    """Each answer of the broker takes a second, so the restart takes about 40 s. The handler of
    another queue delays the end of the service.
    """
    for after in range(41):
        app, told = slow_app(0)

        @app.handler("reports", retry=["1s"])
        async def write() -> None:
            await asyncio.sleep(120)

        async with AppTest(app, options=ServiceOptions(grace=200)) as test:
            await test.publish("reports", {})
            test.faults.latency = 1.0
            test.service.consumer("orders").restore("lost")
            await test.advance(0.1)
            await test.publish("orders", "x")
            await test.advance(after)
            test.service.stop()
            await test.advance(50)
            assert told == [], f"after {after} s"
            await test.stop()
        assert len(test.broker.snapshot().queue("orders").ready) == 1
        alone()


@in_virtual_time
async def test_second_stop_interrupts_running_handlers() -> None:
    app, told = slow_app(1000)
    began = asyncio.get_running_loop().time()
    async with AppTest(app) as test:
        await test.publish("orders", "x")
        await test.advance(1)
        test.service.stop()
        await test.advance(1)
        test.service.stop()
        report = await test.stop()
    assert asyncio.get_running_loop().time() - began < 3
    assert told == ["begin x"]
    assert report.left == (Leftover("orders", not_started=0, interrupted=1),)
    alone()


@in_virtual_time
async def test_cancelled_run_closes_connections_and_tasks() -> None:
    """Ctrl-C under `asyncio.run` cancels like this."""
    app, told = slow_app(1000)
    broker = EmbeddedBroker()
    service = Service(app, broker)
    running = asyncio.create_task(service.run())
    await service.ready.wait()
    await app.publish("orders", "x")
    await asyncio.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert told == ["begin x"]
    assert broker.connections == ()
    assert len(broker.snapshot().queue("orders").ready) == 1
    alone()


@in_virtual_time
async def test_service_can_be_stopped_while_it_cannot_connect() -> None:
    app, _ = slow_app(1)
    broker = EmbeddedBroker()
    broker.faults.chance(Fault.REFUSE_CONNECTION, 1.0)
    service = Service(app, broker)
    running = asyncio.create_task(service.run())
    await asyncio.sleep(100)
    service.stop()
    assert (await running).left == ()
    alone()


@in_virtual_time
async def test_held_delivery_is_reported_at_shutdown() -> None:
    """Its retry cannot be published. After the grace period it is requeued."""
    app = App("shop")

    @app.handler("orders", retry=["30s"])
    async def handle() -> None:
        await asyncio.sleep(1)
        raise ValueError("no")

    async with AppTest(app, options=ServiceOptions(grace=60)) as test:
        await test.publish("orders", {})
        test.faults.chance(Fault.NACK, 1.0)
        await test.advance(5)
        report = await test.stop()
    assert report.left == (Leftover("orders", not_started=0, interrupted=1),)
    assert len(test.broker.snapshot().queue("orders").ready) == 1
    assert not test.find_events("delivery.retried")
    alone()
