"""Several types of message on one queue: each to its handler, and a rule for what nobody handles."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Context, Done, Router, Rule, Verdict
from hopback.errors import InvalidDeclaration
from hopback.runtime import by_cloudevents, by_header
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
async def test_each_type_has_its_handler_its_payload_and_its_rules() -> None:
    """The property `type` says it; a coroutine and a thread share the queue."""
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
async def test_what_nobody_handles_is_parked_with_its_type() -> None:
    """Also what has no type at all."""
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
async def test_what_nobody_handles_may_have_another_outcome() -> None:
    """Said before or after the handlers."""
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
async def test_cloudevents_say_their_type_in_a_header_or_in_the_body() -> None:
    """Binary mode with either prefix, structured mode by content type; hostile bodies are parked."""
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
async def test_a_function_may_tell_the_type_and_may_fail() -> None:
    """What it raises is a failed run."""
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


@in_virtual_time
async def test_routers_share_nothing_but_the_application() -> None:
    """Types declared in a router, before and after it was included."""
    app, router, seen = App("shop"), Router("eu."), list[object]()
    _declare(router, seen)
    app.include(router)
    router.handler("events", message_type="late")(_nothing)
    async with AppTest(app) as test:
        await test.publish("eu.events", {}, message_type="order.created")
        await test.publish("eu.events", {}, message_type="late")
        assert await test.drain() == Tally(done=2)


def test_handlers_of_one_queue_that_do_not_fit_together_are_refused() -> None:
    """Two for a type, one for all beside one for a type, and options that are the queue's."""
    app = App("shop")
    _declare(app, [])
    with pytest.raises(
        InvalidDeclaration, match=r"'order.paid': expected one handler, got another"
    ):
        app.handler("events", message_type="order.paid")(_nothing)
    with pytest.raises(InvalidDeclaration, match="expected one handler"):
        app.handler("events")(_nothing)
    with pytest.raises(InvalidDeclaration, match="the same concurrency"):
        app.handler("events", message_type="order.lost", concurrency=3)(_nothing)
    app.handler("mails", retry=None)(_nothing)
    with pytest.raises(InvalidDeclaration, match=r"in addition to _nothing"):
        app.handler("mails", message_type="mail.sent")(_nothing)
