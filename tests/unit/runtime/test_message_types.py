"""Several message types on one queue with one handler each, and a rule for unhandled types."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Context, Done, Router, Rule, Verdict, by_header
from hopback.errors import InvalidDeclaration
from hopback.runtime import Health, by_cloudevents
from hopback.testing import AppTest, Tally, in_virtual_time

if TYPE_CHECKING:
    from hopback import Delivery


def _declare(target: App | Router, seen: list[object], queue: str = "events") -> None:
    @target.handler(queue, message_type="order.created", retry=["1s"])
    async def created(order: dict[str, int]) -> None:
        seen.append(("created", order))

    @target.handler(queue, message_type="order.paid", rules=[Rule(ValueError, Verdict.PARK)])
    def paid(order: bytes, context: Context) -> None:
        seen.append(("paid", order))
        if order == b"bad":
            raise ValueError("bad")


@in_virtual_time
async def test_message_type_selects_handler_payload_and_rules() -> None:
    """The property `type` selects it. A coroutine and a thread share the queue."""
    app, seen = App("shop"), list[object]()
    _declare(app, seen)
    async with AppTest(app) as test:
        await test.publish("events", {"id": 1}, message_type="order.created")
        await test.publish("events", b"x", message_type="order.paid")
        assert await test.drain() == Tally(done=2)
        await test.publish("events", b"bad", message_type="order.paid")
        assert await test.drain() == Tally(parked=1)
    assert seen == [("created", {"id": 1}), ("paid", b"x"), ("paid", b"bad")]


@in_virtual_time
async def test_unhandled_type_is_parked() -> None:
    """So is a message without a type."""
    app = App("shop")
    _declare(app, [])
    async with AppTest(app) as test:
        await test.publish("events", {}, message_type="order.lost")
        await test.publish("events", {})
        assert await test.drain() == Tally(parked=2)
        test.assert_parked("events", reason="its type is 'order.lost'", times=1)
        test.assert_parked(
            "events", reason="it has no type. Handled types: 'order.created'", times=1
        )


@in_virtual_time
async def test_unhandled_type_may_have_another_outcome() -> None:
    """The option may be set before or after the handlers."""
    app = App("shop")
    app.types("events", by_header("event"), unhandled=Done())
    _declare(app, [])
    async with AppTest(app) as test:
        await test.publish("events", {}, headers={"event": "order.lost"})
        await test.publish("events", {}, headers={"event": ["a", "list"]})
        await test.publish("events", {}, headers={"event": "order.created"})
        assert await test.drain() == Tally(done=3)
    later = App("shop")
    _declare(later, [])
    later.types("events", unhandled=Done())
    async with AppTest(later) as test:
        await test.publish("events", {})
        assert await test.drain() == Tally(done=1)


def _event(type_: str) -> dict[str, str]:
    return {"specversion": "1.0", "type": type_, "source": "/shop", "id": "1"}


@in_virtual_time
async def test_cloudevents_type_is_read_from_header_or_body() -> None:
    """Binary mode with either prefix, structured mode by content type.

    Invalid bodies are parked.
    """
    app, seen = App("shop"), list[object]()
    app.types("events", by_cloudevents)

    @app.handler("events", message_type="order.created", retry=None)
    async def created(event: Any) -> None:
        seen.append(event)

    structured = "application/cloudevents+json; charset=UTF-8"
    async with AppTest(app) as test:
        await test.publish("events", 1, headers={"cloudEvents:type": "order.created"})
        await test.publish("events", 2, headers={"cloudEvents_type": "order.created"})
        await test.publish("events", _event("order.created"), content_type=structured)
        assert await test.drain() == Tally(done=3)
        for body in (b"{", b"[]", b"[" * 100_000, json.dumps({"type": 5}).encode()):
            await test.publish("events", body, content_type=structured)
        await test.publish("events", _event("order.created"))
        assert await test.drain() == Tally(parked=5)
    assert seen == [1, 2, _event("order.created")]


@in_virtual_time
async def test_type_function_that_raises_fails_run() -> None:
    app = App("shop")

    def first_word(delivery: Delivery) -> str:
        return delivery.routing_key.split(".")[1]

    app.types("events", first_word)
    app.handler("events", message_type="created", retry=None, bind={"shop": "#"})(_nothing)
    async with AppTest(app) as test:
        await test.publish("order.created", b"", exchange="shop")
        await test.publish("order", b"", exchange="shop")
        assert await test.drain() == Tally(done=1, parked=1)
        test.assert_parked("events", reason="IndexError")


async def _nothing(payload: bytes) -> None: ...


@pytest.mark.parametrize("types", [("quick", "long"), ("long", "quick")], ids=" ".join)
@in_virtual_time
async def test_handler_is_not_slow_before_longest_deadline(types: tuple[str, str]) -> None:
    """All types share the slots of the queue. The order of declaration does not matter."""
    app, deadlines = App("shop"), {"quick": "5s", "long": "25m"}

    for name in types:

        @app.handler("events", message_type=name, concurrency=1, deadline=deadlines[name])
        async def handle() -> None:
            await asyncio.sleep(1200)

    app.queue("events")
    async with AppTest(app) as test:
        await test.publish("events", {}, message_type="long")
        await test.advance(1100)
        assert not test.find_events("handler.slow")
        assert Health(test.service, time=asyncio.get_running_loop().time).ready().ok
        assert await test.drain() == Tally(done=1)


@in_virtual_time
async def test_types_declared_in_router_are_dispatched() -> None:
    """They may be declared before or after its inclusion."""
    app, router, seen = App("shop"), Router("eu."), list[object]()
    _declare(router, seen)
    app.include(router)
    router.handler("events", message_type="late")(_nothing)
    async with AppTest(app) as test:
        await test.publish("eu.events", {}, message_type="order.created")
        await test.publish("eu.events", {}, message_type="late")
        assert await test.drain() == Tally(done=2)


def test_conflicting_handlers_of_queue_are_refused() -> None:
    """Two for one type, one for all types in addition, or different queue options."""
    app = App("shop")
    _declare(app, [])
    with pytest.raises(
        InvalidDeclaration, match=r"'order.paid': expected one handler, got another"
    ):
        app.handler("events", message_type="order.paid")(_nothing)
    with pytest.raises(InvalidDeclaration, match="expected one handler"):
        app.handler("events")(_nothing)
    with pytest.raises(InvalidDeclaration, match=r"concurrency: expected 10, as in .*, got 3"):
        app.handler("events", message_type="order.lost", concurrency=3)(_nothing)
    app.handler("mails", retry=None)(_nothing)
    with pytest.raises(InvalidDeclaration, match=r"in addition to _nothing"):
        app.handler("mails", message_type="mail.sent")(_nothing)
