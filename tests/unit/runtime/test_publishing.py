"""Publishing from handlers with confirms, correlation and trace headers, and its errors."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Context, Publisher, RequestClient, compose
from hopback.broker import EmbeddedBroker
from hopback.errors import ConnectionFailed, PublishRefused, Returned
from hopback.testing import AppTest, Fault, Tally, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.runtime import PublishOptions

TRACE = {"traceparent": "00-1-2-01", "tracestate": "a=b", "baggage": "k=v", "private": "x"}


def _app(*, sync: bool = False, through_app: bool = False) -> App:
    """Orders cause invoices."""
    app = App("shop")
    app.queue("invoices", retry=["1s"])

    def handle(context: Context) -> None:
        target = app if through_app else context
        target.publish_sync("invoices", {"id": 1}, headers={"own": 1})

    async def handle_async(context: Context) -> None:
        target = app if through_app else context
        await target.publish("invoices", {"id": 1}, headers={"own": 1})

    app.handler("orders", retry=["30s"])(handle if sync else handle_async)
    return app


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("through_app", [False, True])
@in_virtual_time
async def test_published_message_carries_correlation_and_trace(
    sync: bool, through_app: bool
) -> None:
    """Other headers are not copied.

    The context and the app behave the same, in coroutines and threads.
    """
    async with AppTest(_app(sync=sync, through_app=through_app)) as test:
        await test.publish("orders", {}, correlation_id="c1", headers=TRACE)
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
async def test_message_id_becomes_correlation_id_if_none_is_set() -> None:
    async with AppTest(_app()) as test:
        await test.publish("orders", {}, message_id="m1")
        await test.drain()
        [invoice] = test.broker.snapshot().queue("invoices").ready
    assert invoice.properties.correlation_id == "m1"


@pytest.mark.parametrize("sync", [False, True])
@in_virtual_time
async def test_failed_publish_fails_its_handler(sync: bool) -> None:
    async with AppTest(_app(sync=sync)) as test:
        connection = await test.broker.connect("operator")
        channel = await connection.open_channel()
        await channel.delete_queue("invoices")
        await connection.close()
        await test.publish("orders", {})
        await test.advance(1)
        test.assert_retried(
            "orders", reason="Returned: returned by the broker: no queue 'invoices'"
        )
        failed = test.find_events("publish.failed", routing_key="invoices")
        assert len(failed) == 1
        with pytest.raises(Returned):
            raise test.failures[0]


@in_virtual_time
async def test_publish_without_running_app_is_refused_with_remedy() -> None:
    app = _app()
    with pytest.raises(RuntimeError, match="not running"):
        await app.publish("invoices", {})
    async with AppTest(app):
        await app.publish("invoices", {})
    with pytest.raises(RuntimeError, match="not running"):
        await app.publish("invoices", {})


@in_virtual_time
async def test_publisher_works_without_app() -> None:
    broker = EmbeddedBroker()
    async with AppTest(_app(), broker=broker), Publisher(broker) as publisher:
        await publisher.publish("invoices", {"id": 2})
        assert len(broker.snapshot().queue("invoices").ready) == 1
        with pytest.raises(Returned, match="no queue 'nowhere'"):
            await publisher.publish("nowhere", {"id": 2})


@in_virtual_time
async def test_publisher_without_broker_raises_connection_failed() -> None:
    broker = EmbeddedBroker()
    broker.faults.chance(Fault.REFUSE_CONNECTION, 1.0)
    publisher = Publisher(broker, timeout=5)
    publisher.start()
    with pytest.raises(ConnectionFailed, match=r"not sent.*refused the connection"):
        await publisher.publish("invoices", {})
    await publisher.close()


@in_virtual_time
async def test_publish_keywords_are_equal_in_app_handler_and_test_kit() -> None:
    app = App("shop")
    app.queue("invoices", retry=["1s"])
    said: PublishOptions = {
        "message_id": "m1",
        "message_type": "invoice.wanted",
        "correlation_id": "c1",
        "headers": {"own": 1},
        "priority": 7,
        "expiration": "30s",
        "reply_to": "answers",
        "content_type": "application/vnd.invoice+json",
    }

    @app.handler("orders", retry=["30s"])
    async def handle(context: Context) -> None:
        await context.publish("invoices", {}, **said)
        await app.publish("invoices", {}, **said)

    async with AppTest(app) as test:
        await test.publish("orders", {}, headers=TRACE)
        await test.drain()
        await test.publish("invoices", {}, **said)
        ready = test.broker.snapshot().queue("invoices").ready
    expected = compose("invoices", {}, **said).properties
    assert expected.expiration == "30000"
    inherited = {name: TRACE[name] for name in ("traceparent", "tracestate", "baggage")}
    caused = replace(expected, headers={**inherited, "own": 1})
    assert [one.properties for one in ready] == [caused, caused, expected]


def test_invalid_priority_or_expiration_is_refused() -> None:
    with pytest.raises(ValueError, match="from 0 to 255, got 256"):
        compose("invoices", {}, priority=256)
    with pytest.raises(ValueError, match="a duration like"):
        compose("invoices", {}, expiration="soon")


@in_virtual_time
async def test_unroutable_message_with_mandatory_false_raises_no_error() -> None:
    """A direct reply is always sent like this."""
    app = App("shop")

    @app.handler("orders", retry=["30s"])
    async def handle(context: Context) -> None:
        await context.publish("nowhere", {}, mandatory=False)
        await context.publish("amq.rabbitmq.reply-to.g1h2", {})

    async with AppTest(app) as test:
        await test.publish("orders", {})
        assert await test.drain() == Tally(done=1)
    assert compose("orders", {}).mandatory
    assert compose("amq.rabbitmq.reply-to.g1h2", {}, exchange="events").mandatory


@pytest.mark.parametrize("through_app", [False, True])
@in_virtual_time
async def test_unawaited_publish_parks_its_message(through_app: bool) -> None:
    """The publish did not happen, so the message is not done."""
    app = App("shop")
    app.queue("invoices", retry=["1s"])

    @app.handler("orders", retry=["30s"])
    async def handle(context: Context) -> None:
        target = app if through_app else context
        target.publish("invoices", {})  # type: ignore[unused-coroutine]

    async with AppTest(app) as test:
        await test.publish("orders", {})
        assert await test.drain() == Tally(parked=1)
        test.assert_parked("orders", reason="a publish was not awaited")
        assert not test.broker.snapshot().queue("invoices").ready


@in_virtual_time
async def test_publish_in_separate_task_is_sent() -> None:
    app = App("shop")
    app.queue("invoices", retry=["1s"])
    tasks: set[asyncio.Task[None]] = set()

    @app.handler("orders", retry=["30s"])
    async def handle(context: Context) -> None:
        tasks.add(asyncio.create_task(context.publish("invoices", {})))

    async with AppTest(app) as test:
        await test.publish("orders", {})
        assert await test.drain() == Tally(done=1)
        await asyncio.gather(*tasks)
        assert len(test.broker.snapshot().queue("invoices").ready) == 1


@in_virtual_time
async def test_refused_publish_names_cause_and_remedy() -> None:
    """By publisher, application, request and test kit. The message was not stored."""
    broker = EmbeddedBroker()
    async with (
        AppTest(app := _app(), broker=broker) as test,
        Publisher(broker) as publisher,
        RequestClient(broker) as client,
    ):
        missing = r"exchange 'nope', routing key 'k': 404 NOT_FOUND .*Declare the exchange"
        large = r"queue 'orders': 406 PRECONDITION_FAILED .*`max_message_size` of the broker"
        ways: list[Callable[..., Any]] = [
            publisher.publish,
            app.publish,
            client.request,
            test.publish,
        ]
        for publish in ways:
            with pytest.raises(PublishRefused, match=missing):
                await publish("k", {}, exchange="nope")
            with pytest.raises(PublishRefused, match=large):
                await publish("orders", bytes(17 << 20))
        assert await test.drain() == Tally()


@pytest.mark.parametrize("through_app", [False, True])
@in_virtual_time
async def test_publish_sync_returns_when_confirmed(
    through_app: bool,
) -> None:
    """It is refused on the event loop, and `publish` is refused in a thread."""
    app = App("shop")
    app.queue("invoices", retry=["1s"])

    def handle_without_await(context: Context) -> None:
        target = app if through_app else context
        _never_awaited = target.publish("invoices", {})

    def handle(context: Context) -> None:
        (app if through_app else context).publish_sync("invoices", {})

    async def handle_on_the_loop(context: Context) -> None:
        handle(context)

    app.handler("orders", retry=["30s"])(handle)
    app.handler("wrong", retry=None)(handle_on_the_loop)
    app.handler("unawaited", retry=None)(handle_without_await)
    async with AppTest(app) as test:
        await test.publish("orders", {})
        assert await test.drain() == Tally(done=1)
        assert len(test.broker.snapshot().queue("invoices").ready) == 1
        await test.publish("wrong", {})
        await test.drain()
        test.assert_parked("wrong", reason="publish_sync is for sync handlers")
        await test.publish("unawaited", {})
        await test.drain()
        test.assert_parked("unawaited", reason="expected `publish_sync(…)`")
