"""Failed runs: the traceback is logged once per kind, and `on_error` sees each exception."""

from __future__ import annotations

from collections import Counter

import pytest

from hopback import App, Context, Park
from hopback.errors import InvalidDeclaration
from hopback.testing import AppTest, in_virtual_time


def _warehouse() -> None:
    raise ConnectionError("the warehouse does not answer")


def _shop() -> App:
    app = App("shop")

    @app.handler("orders", retry=["1s"], attempts=1)
    async def handle(order: str) -> Park | None:
        if order == "sold out":
            raise LookupError(order)
        if order == "hopeless":
            return Park("said so")
        _warehouse()
        return None

    @app.handler("mails", retry=["1s"], attempts=1)
    def send(mail: int) -> None:
        _warehouse()

    return app


@in_virtual_time
async def test_first_failure_of_kind_is_logged_with_traceback() -> None:
    """It starts at the application's first line. Further failures are counted."""
    async with AppTest(_shop()) as test:
        for _ in range(12):
            await test.publish("orders", "any")
        await test.publish("orders", "sold out")
        await test.publish("orders", "hopeless")
        await test.drain()
        told = test.find_events("handler.failed", queue="orders")
        assert [(one.fields["error"], one.fields["runs"]) for one in told] == [
            ("ConnectionError", 1),
            ("ConnectionError", 10),
            ("LookupError", 1),
        ]
        lines = told[0].fields["traceback"].splitlines()
        assert lines[0] == "Traceback (most recent call last):"
        assert __file__ in lines[1]
        assert "in handle" in lines[1]
        assert lines[-1] == "ConnectionError: the warehouse does not answer"


@in_virtual_time
async def test_traceback_of_sync_handler_starts_at_its_function() -> None:
    async with AppTest(_shop()) as test:
        await test.publish("mails", 1)
        await test.drain()
        (told,) = test.find_events("handler.failed", queue="mails")
        assert "in send" in told.fields["traceback"].splitlines()[1]


@in_virtual_time
async def test_undecodable_payload_has_no_traceback() -> None:
    async with AppTest(_shop()) as test:
        await test.publish("mails", "no number")
        await test.drain()
        test.assert_parked("mails", reason="undecodable payload")
        assert test.find_events("handler.failed") == ()


@in_virtual_time
async def test_on_error_sees_each_exception_with_its_context() -> None:
    """An exception raised by it does not affect the message."""
    app, seen = _shop(), list[tuple[str, str, int]]()

    @app.on_error
    def report(error: BaseException, context: Context) -> None:
        seen.append((type(error).__name__, context.queue, context.attempt))
        raise RuntimeError("the tracker is away")

    async with AppTest(app) as test:
        for order in ("any", "sold out", "hopeless", "any"):
            await test.publish("orders", order)
        assert (await test.drain()).parked == 4
    assert seen == [
        ("ConnectionError", "orders", 1),
        ("LookupError", "orders", 1),
        ("ConnectionError", "orders", 1),
    ]


class _Lookup(Exception):
    """Delegates attributes to a dict, as exceptions that wrap an answer do."""

    def __getattr__(self, name: str) -> object:
        empty: dict[str, object] = {}
        return empty[name]


class _Hidden(Exception):
    def __getattribute__(self, name: str) -> object:
        raise RuntimeError("no")


@in_virtual_time
async def test_exception_that_cannot_be_reported_settles_its_message_as_others() -> None:
    """The traceback module reads attributes of the exception, which may raise. The other messages
    of the queue are handled once."""
    app, runs = App("shop"), Counter[int]()

    @app.handler("orders", retry=["1s"], attempts=2, concurrency=2)
    async def handle(order: int) -> None:
        runs[order] += 1
        if order % 4 == 0:
            raise _Lookup
        if order % 4 == 1:
            raise _Hidden
        if order % 4 == 2:
            raise ValueError(order) from _Hidden()

    async with AppTest(app) as test:
        for order in range(40):
            await test.publish("orders", order)
        tally = await test.drain()
        told = test.find_events("handler.failed")
    assert (tally.done, tally.retried, tally.parked) == (10, 30, 30)
    assert runs == Counter({order: 1 if order % 4 == 3 else 2 for order in range(40)})
    assert {one.fields["error"].rpartition(".")[2] for one in told} >= {"_Lookup", "ValueError"}


def test_async_on_error_is_refused() -> None:
    async def report(error: BaseException, context: Context) -> None: ...

    with pytest.raises(InvalidDeclaration, match="a function that is not async"):
        App("shop").on_error(report)
