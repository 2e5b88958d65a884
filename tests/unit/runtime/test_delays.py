"""Messages that come later: held in the broker, unchanged, exact to the second."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hopback import App, Context
from hopback.broker.embedded import EmbeddedBroker
from hopback.broker.message_sender import MessageSender
from hopback.designs import DESIGNS
from hopback.durations import parse_wait_ms
from hopback.errors import InvalidDeclaration, Returned
from hopback.message import Message
from hopback.observe.metrics import Metrics
from hopback.ops import ManagedBroker, Operations, RedriveRequest, Selection
from hopback.testing import AppTest, Tally, in_virtual_time
from hopback.topology.delays import DUE, longest_delay_ms
from hopback.topology.model import Queue
from hopback.version import BrokerVersion


def _app(seen: list[tuple[float, Context]], *, longest: str = "30d") -> App:
    app = App("shop")
    app.delays(longest)

    @app.handler("reminders", retry=["1s"])
    async def remind(payload: dict[str, Any], context: Context) -> None:
        seen.append((asyncio.get_running_loop().time(), context))

    return app


@pytest.mark.parametrize("delay", ["1s", "13s", "2h", timedelta(days=3), 100, 0.1])
@in_virtual_time
async def test_delayed_message_arrives_at_most_1_1_s_late(delay: Any) -> None:
    seen: list[tuple[float, Context]] = []
    app = _app(seen)
    async with AppTest(app) as test:
        began = asyncio.get_running_loop().time()
        await app.publish("reminders", {"n": 1}, delay=delay)
        assert await test.drain(within=7 * 86_400) == Tally(done=1)
        ((moment, _),) = seen
        wait = parse_wait_ms(delay) / 1000
        assert wait <= moment - began < wait + 1.1


@in_virtual_time
async def test_publish_at_accepts_datetime_with_time_zone() -> None:
    """A time in the past means at once."""
    seen: list[tuple[float, Context]] = []
    app = _app(seen)
    async with AppTest(app) as test:
        began = asyncio.get_running_loop().time()
        now = datetime.fromtimestamp(began, UTC)
        await app.publish("reminders", {}, at=now + timedelta(minutes=90))
        await test.publish("reminders", {}, at=now - timedelta(days=1))
        assert await test.drain() == Tally(done=2)
        first, second = (moment - began for moment, _ in seen)
        assert first < 1
        assert 5400 <= second < 5401.1
        with pytest.raises(ValueError, match="with a time zone"):
            await app.publish("reminders", {}, at=datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(ValueError, match="`delay` or `at`, got both"):
            await app.publish("reminders", {}, at=now, delay="1s")


@in_virtual_time
async def test_delayed_message_arrives_unchanged() -> None:
    """Headers, properties and a long routing key are kept. Its expiration starts when it is due."""
    seen: list[tuple[float, Context]] = []
    app = _app(seen)
    key = "reminders." + "k" * 245
    app.queue("logs", bind={"events": ["#"]}, retry=None)
    app.handler("logs")(lambda context: seen.append((0.0, context)))
    async with AppTest(app) as test:
        await app.publish(
            key,
            {"n": 1},
            exchange="events",
            delay="1h",
            message_id="m-1",
            message_type="reminder",
            headers={"traceparent": "00-1", "n": 7, "BCC": ["reminders"]},
            priority=3,
            expiration="5s",
        )
        await test.advance(1800)
        waiting = [one for one in test.broker.snapshot().queues if one.messages]
        ((held,),) = [one.messages for one in waiting]
        assert set(held.properties.headers) <= {"hopback-delay", "x-death"} | {
            name for name in held.properties.headers if name.startswith(("x-first-", "x-last-"))
        }
        assert held.properties.expiration is None
        await test.drain()
    ((_, context),) = seen
    properties = context.delivery.properties
    assert context.routing_key == key
    assert properties.headers == {"traceparent": "00-1", "n": 7}
    assert (properties.message_id, properties.type, properties.priority) == ("m-1", "reminder", 3)
    assert properties.expiration == "5000"


@in_virtual_time
async def test_message_may_be_delayed_repeatedly() -> None:
    """Earlier entries of `x-death` do not form a cycle, even on an old broker."""
    count = 0
    app = App("shop")
    app.delays("1h")

    @app.handler("reminders", retry=None)
    async def remind(payload: dict[str, Any], context: Context) -> None:
        nonlocal count
        count += 1
        if count < 5:
            await context.publish("reminders", payload, delay="31s", headers=context.headers)

    broker = EmbeddedBroker(version=BrokerVersion(3, 10))
    async with AppTest(app, broker=broker) as test:
        await test.publish("reminders", {}, delay="31s")
        await test.drain()
    assert count == 5


@in_virtual_time
async def test_undeliverable_or_too_long_delay_is_refused_at_publish() -> None:
    app = _app([], longest="1h")
    async with AppTest(app) as test:
        with pytest.raises(Returned, match="404 missing"):
            await app.publish("remindres", {}, delay="1m")
        with pytest.raises(Returned, match="404 missing"):
            await app.publish("a", {}, exchange="evnets", delay="1m")
        with pytest.raises(InvalidDeclaration, match=r"at most 1h, .*longest=…"):
            await app.publish("reminders", {}, delay="2h")
        assert await test.drain() == Tally()
    other = App("other")
    other.handler("q", retry=None)(lambda context: None)
    async with AppTest(other):
        with pytest.raises(InvalidDeclaration, match=r"Declare them with `app\.delays\(\)`"):
            await other.publish("q", {}, delay="1s")


@in_virtual_time
async def test_due_message_without_queue_is_parked_with_reason() -> None:
    """Its queue was deleted meanwhile. Delivery is retried first."""
    app = _app([])
    async with AppTest(app) as test:
        channel = await (await test.broker.connect()).open_channel()
        await channel.declare_queue(Queue("elsewhere"))
        await app.publish("elsewhere", {"n": 1}, delay="1h")
        await channel.delete_queue("elsewhere")
        await test.drain()
        test.assert_parked(DUE, times=1, reason="elsewhere")
        (dead_letter,) = test.dead_letters(DUE)
        assert dead_letter.body == b'{"n":1}'


@in_virtual_time
async def test_parked_due_message_is_listed_counted_and_redriven() -> None:
    """The re-drive sends it to its original destination."""
    app, metrics = _app([]), Metrics()
    async with AppTest(app) as test:
        channel = await (await test.broker.connect()).open_channel()
        await channel.declare_queue(Queue("elsewhere"))
        await app.publish("elsewhere", {"n": 1}, delay="1h", message_id="m-1")
        await channel.delete_queue("elsewhere")
        await test.drain()
        for one in test.events:
            metrics(one.name, one.fields)
        assert b'hopback_parked_total{exhausted="true",queue="hopback.delay.due"} 1.0' in (
            metrics.render()
        )
        await channel.declare_queue(Queue("elsewhere"))
        async with Operations(ManagedBroker(test.broker, topologies=[app.topology])) as operations:
            (listed,) = [one for one in await operations.queues() if one.messages]
            assert (listed.queue, listed.messages) == (f"{DUE}.dlq", 1)
            session = await operations.open_session(f"{DUE}.dlq")
            (row,) = (await operations.messages(session.id)).dead_letters
            seen = await operations.message(session.id, row.id)
            assert "elsewhere" in str([one for one in seen.headers if one.name == "hopback-delay"])
            await operations.release(session.id)
            request = RedriveRequest(
                queue=f"{DUE}.dlq", selection=Selection(), reason="it is there"
            )
            await operations.wait((await operations.start(request)).id)
        await test.drain()
        sent = await channel.get("elsewhere")
        assert sent is not None
        assert (sent.body, sent.properties.message_id) == (b'{"n":1}', "m-1")
        assert not any(name.startswith("hopback-") for name in sent.properties.headers)


@in_virtual_time
async def test_message_without_destination_in_due_queue_is_parked() -> None:
    async with AppTest(_app([])) as test:
        await test.publish(DUE, {"n": 1})
        await test.drain()
        test.assert_parked(DUE, times=1, reason="not delayed by Hopback")


def test_documented_design_has_delay_queues_only_on_request() -> None:
    for name, design in DESIGNS.items():
        for hardened in (False, True) if name != "recommended" else (True,):
            topology = design.build({}, hardened=hardened)
            assert longest_delay_ms(topology) == 0
            asked = App(name, topology=topology)
            asked.delays("1h")
            assert longest_delay_ms(asked.topology) == 4_095_000


@in_virtual_time
async def test_publisher_without_app_refuses_delay() -> None:
    """It has no delay queues."""
    async with MessageSender(EmbeddedBroker()) as publisher:
        with pytest.raises(ValueError, match="delay: expected none"):
            await publisher.send(Message("", "q", delay=1000))
