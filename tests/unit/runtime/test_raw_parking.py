"""A message that cannot be rewritten is parked unchanged and does not occupy the prefetch."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hopback import App, Context, Snooze
from hopback.broker.embedded import EmbeddedBroker
from hopback.fields import table_size
from hopback.headers import FRAME_BYTES
from hopback.message import Message, Properties
from hopback.policy.effects import effects
from hopback.testing import AppTest, in_virtual_time
from tests.harness.seeded import publish

if TYPE_CHECKING:
    import pytest

_PROPERTIES = Properties(
    app_id="\udcff", headers={"own": 1, "CC": ["elsewhere"]}, further_headers=((b"\xff", "x"),)
)


def _app() -> App:
    app = App("shop")

    @app.handler("orders", retry=["1s"])
    async def handle() -> None:
        raise LookupError("always")

    return app


@in_virtual_time
async def test_message_that_cannot_be_rewritten_is_parked_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An internal error occurs while the retry is written.

    Forty messages are parked, and others run.
    """

    def fails(*_: object, **__: object) -> Properties:
        raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "a test failure")

    monkeypatch.setitem(effects.__globals__, "retry_properties", fails)
    broker = EmbeddedBroker()
    async with AppTest(_app(), broker=broker) as test:
        for number in range(40):
            await publish(broker, Message("", "orders", b"%d" % number, _PROPERTIES))
        tally = await test.drain()
        parked = test.dead_letters("orders")
    assert (tally.parked, len(parked)) == (40, 40)
    for message in parked:
        kept = message.properties
        assert (kept.app_id, kept.headers["own"]) == ("\udcff", 1)
        assert kept.further_headers == ((b"\xff", "x"),)
        assert "CC" not in kept.headers
        assert "a test failure" in str(kept.headers["hopback-failure"])


@in_virtual_time
async def test_header_that_a_handler_made_unsendable_holds_no_delivery() -> None:
    """NaN and large numbers pass all checks of sizes. Only the encoder refuses them."""
    app, ring = App("shop"), dict[str, object]()
    ring["ring"] = ring
    unsendable = (float("nan"), 2**70, object(), "\ud800", ring, "x" * 200_000, Decimal("1e99"))

    @app.handler("orders", retry=["1s"], concurrency=2)
    async def handle(context: Context) -> None:
        headers: Any = context.headers
        number = int(context.delivery.body)
        if number < len(unsendable):
            headers["score"] = unsendable[number]
            raise LookupError("always")
        if number == len(unsendable):
            headers[5] = "a name that is not text"
            raise LookupError("always")

    broker = EmbeddedBroker()
    bad = len(unsendable) + 1
    async with AppTest(app, broker=broker) as test:
        for number in range(bad + 20):
            properties = Properties(message_id=f"m-{number}", headers={"own": 1})
            await publish(broker, Message("", "orders", b"%d" % number, properties))
        tally = await test.drain()
        parked = {int(one.body): one.properties for one in test.dead_letters("orders")}
    assert (tally.done, tally.parked) == (20, bad)
    assert {number: one.message_id for number, one in parked.items()} == {
        number: f"m-{number}" for number in range(bad)
    }


@in_virtual_time
async def test_body_beyond_a_lowered_limit_is_dead_lettered_by_the_broker() -> None:
    """RabbitMQ 3.10 takes 128 MiB, RabbitMQ 4.0 takes 16 MiB."""
    broker = EmbeddedBroker()
    async with AppTest(_app(), broker=broker) as test:
        for number in range(40):
            await publish(broker, Message("", "orders", b"%03d" % number + bytes(500)))
        broker.node.intake._max_body = 500
        await publish(broker, Message("", "orders", b"small"))
        tally = await test.drain()
        parked = test.dead_letters("orders")
        reasons = {one.fields["reason"] for one in test.find_events("delivery.parked")}
    assert (tally.parked, len(parked)) == (41, 41)
    assert sorted(one.body[:3] for one in parked) == [*(b"%03d" % n for n in range(40)), b"sma"]
    assert any("message size" in reason for reason in reasons)


@in_virtual_time
async def test_headers_that_nearly_fill_a_frame_never_hold_delivery() -> None:
    """There is room for the attempt count but not for the delay header, so the message is parked."""
    app = App("shop")
    app.delays("1d")

    @app.handler("orders", retry=["1s"])
    async def handle() -> Snooze:
        return Snooze("2h")

    broker = EmbeddedBroker()
    sizes = range(FRAME_BYTES - 600, FRAME_BYTES - 40, 40)
    async with AppTest(app, broker=broker) as test:
        for size in sizes:
            properties = Properties(delivery_mode=2, headers={"own": "x" * size})
            await publish(broker, Message("", "orders", b"%d" % size, properties))
        await test.advance(60)
        waiting = sum(
            len(queue.ready) for queue in broker.snapshot().queues if "delay" in queue.name
        )
        parked = test.dead_letters("orders")
        held = sum(len(queue.unacked) for queue in broker.snapshot().queues)
        assert (held, waiting + len(parked)) == (0, len(sizes))
        assert 0 < len(parked) < len(sizes)
        assert all(table_size(message.properties.headers) > int(message.body) for message in parked)
