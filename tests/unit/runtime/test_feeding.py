"""Declaring queues in code: feeds of every exchange type, no retry, equal waits, priorities."""

from __future__ import annotations

from typing import Any

import pytest

from hopback import App, Context, Feed, Snooze
from hopback.broker import EmbeddedBroker
from hopback.errors import InvalidDeclaration
from hopback.testing import AppTest, in_virtual_time
from hopback.topology import read_toml, write_toml
from hopback.version import BrokerVersion


def _app(bind: Any) -> tuple[App, list[str]]:
    app, seen = App("shop"), list[str]()

    @app.handler("orders", retry=["1s"], bind=bind)
    async def handle(payload: str) -> None:
        seen.append(payload)

    return app, seen


@in_virtual_time
async def test_a_queue_is_fed_by_exchanges_of_every_type() -> None:
    """Topic, direct, fanout and headers, and an exchange that is fed by another one."""
    app, seen = _app(
        [
            Feed.topic("by-pattern", "order.*"),
            Feed.direct("by-key", "order"),
            Feed.fanout("to-all"),
            Feed.headers("by-header", {"kind": "order", "urgent": True}, match="any"),
            Feed.topic("shop", "order.#", source=Feed.direct("company", "order.new")),
        ]
    )
    async with AppTest(app) as test:
        await test.publish("order.new", "topic", exchange="by-pattern")
        await test.publish("order", "direct", exchange="by-key")
        await test.publish("whatever", "fanout", exchange="to-all")
        await test.publish("", "headers", exchange="by-header", headers={"kind": "order"})
        await test.publish("order.new", "through another exchange", exchange="company")
        with pytest.raises(Exception, match="NO_ROUTE"):
            await test.publish("", "nobody's", exchange="by-header", headers={"kind": "mail"})
        await test.drain()
    assert seen == ["topic", "direct", "fanout", "headers", "through another exchange"]


def test_a_topology_with_feeds_can_be_written_and_read_back() -> None:
    """What code declares, a file can say."""
    app, _ = _app([Feed.headers("h", {"kind": "order"}), Feed.fanout("f", source=Feed.fanout("g"))])
    app.queue("mails", retry=None)
    app.queue("texts", retry=["1s", "1s"])
    assert read_toml(write_toml(app.topology)) == app.topology


@pytest.mark.parametrize(
    ("bind", "told"),
    [
        ("orders", "Feed.fanout"),
        ([("orders", "#")], "Feed.fanout"),
    ],
)
def test_what_is_no_feed_is_refused(bind: Any, told: str) -> None:
    """The error shows what can be written."""
    with pytest.raises(InvalidDeclaration, match=told):
        App("shop").queue("orders", bind=bind)


def test_feeds_that_want_nothing_are_refused() -> None:
    """A binding without a key or a header takes nothing, or everything: neither was meant."""
    with pytest.raises(InvalidDeclaration, match="at least one pattern"):
        Feed.topic("events")
    with pytest.raises(InvalidDeclaration, match="at least one routing key"):
        Feed.direct("events")
    with pytest.raises(InvalidDeclaration, match="at least one header"):
        Feed.headers("events", {})
    with pytest.raises(InvalidDeclaration, match='"all" or "any"'):
        Feed.headers("events", {"a": 1}, match="some")  # type: ignore[arg-type]
    with pytest.raises(InvalidDeclaration, match="a name"):
        Feed.fanout("")


def test_an_exchange_has_one_type() -> None:
    """Two feeds that disagree about it are refused before a broker does."""
    app, _ = _app({"events": "#"})
    with pytest.raises(InvalidDeclaration, match="expected a topic exchange, got fanout"):
        app.queue("mails", bind=Feed.fanout("events"))


@in_virtual_time
async def test_without_retry_the_first_failure_parks() -> None:
    """`retry=None` declares the queue and its dead-letter queue, and nothing to wait in."""
    app = App("shop")

    @app.handler("orders", retry=None)
    async def handle(order: dict[str, Any]) -> Snooze | None:
        if order:
            return Snooze(5)
        raise ValueError("no")

    async with AppTest(app) as test:
        await test.publish("orders", {})
        await test.publish("orders", {"id": 1})
        tally = await test.drain()
        test.assert_parked("orders", reason="no", times=2)
        test.assert_parked("orders", reason="no retry queue to wait in", times=1)
    assert (tally.parked, tally.retried) == (2, 0)


def test_no_waits_at_all_is_a_question_back() -> None:
    """An empty list may be an accident: the error says how to mean it."""
    with pytest.raises(InvalidDeclaration, match="None for no retry"):
        App("shop").queue("orders", retry=[])
    App("shop").queue("orders", bind=[])  # nothing feeds it but the default exchange


@in_virtual_time
async def test_equal_waits_are_two_rounds_of_one_queue() -> None:
    """Each failure waits the same second; the third parks."""
    app = App("shop")

    @app.handler("orders", retry=["1s", "1s"])
    async def handle(order: dict[str, Any], context: Context) -> None:
        raise ValueError(f"attempt {context.attempt}")

    async with AppTest(app) as test:
        await test.publish("orders", {})
        await test.drain()
        test.assert_retried("orders", times=2, tier="1s")
        test.assert_parked("orders", times=1, reason="attempt 3")


@in_virtual_time
async def test_a_priority_is_kept_on_its_way_through_a_retry_queue() -> None:
    """The message that comes back has the priority it was published with."""
    app, seen = App("shop"), list[int | None]()

    @app.handler("orders", retry=["1s"])
    async def handle(context: Context) -> None:
        seen.append(context.delivery.properties.priority)
        if context.attempt == 1:
            raise ValueError("again")

    async with AppTest(app, broker=EmbeddedBroker(version=BrokerVersion(4, 3))) as test:
        await test.publish("orders", {}, priority=7)
        await test.drain()
    assert seen == [7, 7]
