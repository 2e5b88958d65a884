"""Publishing from handlers: confirmed, with correlation and trace, and errors that say why."""

from __future__ import annotations

import pytest

from hopback import App, Context, EmbeddedBroker, Publisher, compose
from hopback.errors import ConnectionFailed, Returned
from hopback.testing import AppTest, Fault, Tally, in_virtual_time

TRACE = {"traceparent": "00-1-2-01", "tracestate": "a=b", "baggage": "k=v", "private": "x"}


def _app(*, sync: bool = False, through_app: bool = False) -> App:
    """Orders cause invoices."""
    app = App("shop")
    app.queue("invoices", retry=["1s"])

    def publish(context: Context) -> object:
        target = app if through_app else context
        return target.publish("", "invoices", {"id": 1}, headers={"own": 1})

    def handle(context: Context) -> None:
        publish(context)

    async def handle_async(context: Context) -> None:
        await publish(context)  # type: ignore[misc]

    app.handler("orders", retry=["30s"])(handle if sync else handle_async)
    return app


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("through_app", [False, True])
@in_virtual_time
async def test_what_a_handler_publishes_carries_correlation_and_trace_on(
    sync: bool, through_app: bool
) -> None:
    """By the context or by the app, from a coroutine or a thread; other headers are not passed on."""
    async with AppTest(_app(sync=sync, through_app=through_app)) as test:
        await test.publish("", "orders", {}, correlation_id="c1", headers=TRACE)
        assert await test.drain() == Tally(done=1)
        [invoice] = test.broker.snapshot().queue("invoices").ready
    properties = invoice.properties
    assert properties.correlation_id == "c1"
    assert properties.delivery_mode == 2
    assert properties.message_id
    assert properties.headers == {
        "traceparent": "00-1-2-01",
        "tracestate": "a=b",
        "baggage": "k=v",
        "own": 1,
    }


@in_virtual_time
async def test_a_message_without_correlation_passes_its_own_id_on() -> None:
    """What was caused can always be traced back to its cause."""
    async with AppTest(_app()) as test:
        await test.publish("", "orders", {}, message_id="m1")
        await test.drain()
        [invoice] = test.broker.snapshot().queue("invoices").ready
    assert invoice.properties.correlation_id == "m1"


@pytest.mark.parametrize("sync", [False, True])
@in_virtual_time
async def test_a_publish_that_fails_fails_its_handler(sync: bool) -> None:
    """The handler hears it as an exception, so its own message is retried."""
    async with AppTest(_app(sync=sync)) as test:
        connection = await test.broker.connect("operator")
        channel = await connection.open_channel()
        await channel.delete_queue("invoices")
        await connection.close()
        await test.publish("", "orders", {})
        await test.advance(1)
        test.assert_retried("orders", reason="Returned: returned by the default exchange")
        failed = test.happened("publish.failed", routing_key="invoices")
        assert len(failed) == 1
        with pytest.raises(Returned):
            raise test.failures[0]


@in_virtual_time
async def test_an_application_that_is_not_running_says_how_to_publish() -> None:
    """Before and after a service, `app.publish` is a mistake that is told."""
    app = _app()
    with pytest.raises(RuntimeError, match="not running"):
        app.publish("", "invoices", {})
    async with AppTest(app):
        await app.publish("", "invoices", {})
    with pytest.raises(RuntimeError, match="not running"):
        app.publish("", "invoices", {})


@in_virtual_time
async def test_a_publisher_stands_alone() -> None:
    """Confirmed and mandatory without any application."""
    broker = EmbeddedBroker()
    async with AppTest(_app(), broker=broker), Publisher(broker) as publisher:
        await publisher.publish(compose("", "invoices", {"id": 2}))
        assert len(broker.snapshot().queue("invoices").ready) == 1
        with pytest.raises(Returned, match="routing key 'nowhere'"):
            await publisher.publish(compose("", "nowhere", {"id": 2}))


@in_virtual_time
async def test_a_publisher_without_a_broker_says_that_nothing_was_sent() -> None:
    """After its time it tells why there is no line."""
    broker = EmbeddedBroker()
    broker.faults.chance(Fault.REFUSE_CONNECTION, 1.0)
    async with Publisher(broker, timeout=5) as publisher:
        with pytest.raises(ConnectionFailed, match=r"nothing was sent.*refused the connection"):
            await publisher.publish(compose("", "invoices", {}))
