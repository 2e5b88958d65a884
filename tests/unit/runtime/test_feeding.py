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
async def test_queue_is_bound_to_exchanges_of_every_type() -> None:
    """One exchange is bound to another one."""
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


def test_topology_with_bindings_round_trips_through_toml() -> None:
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
def test_invalid_feed_is_refused_with_allowed_forms(bind: Any, told: str) -> None:
    with pytest.raises(InvalidDeclaration, match=told):
        App("shop").queue("orders", bind=bind)


def test_feed_without_key_or_header_is_refused() -> None:
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


def test_exchange_with_two_types_is_refused() -> None:
    app, _ = _app({"events": "#"})
    with pytest.raises(InvalidDeclaration, match="expected a topic exchange, got fanout"):
        app.queue("mails", bind=Feed.fanout("events"))


@in_virtual_time
async def test_first_failure_parks_without_retry() -> None:
    """`retry=None` declares only the queue and its dead-letter queue."""
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


def test_empty_retry_list_is_refused_with_remedy() -> None:
    with pytest.raises(InvalidDeclaration, match="None for no retry"):
        App("shop").queue("orders", retry=[])
    App("shop").queue("orders", bind=[])  # only the default exchange routes to it


@in_virtual_time
async def test_equal_waits_share_one_retry_queue() -> None:
    """The third failure parks."""
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
async def test_priority_is_kept_through_retry_queue() -> None:
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
