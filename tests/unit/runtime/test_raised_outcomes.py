"""Outcomes that are raised, from any depth below a handler, have the effect of returned ones."""

from __future__ import annotations

import asyncio
import copy
import pickle
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from hopback import App, Context, Depends, Done, NextRun, Park, Retry, Snooze, by_header
from hopback.testing import AppTest, Tally, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from hopback import Delivery

WAITS = ["30s", "5m"]
OUTCOMES = [Done(), Park("unknown customer"), Retry("bank busy", after="2m"), Snooze("1m")]
SHARED = Park("a constant of the module")


def _deep(depth: int, outcome: BaseException) -> None:
    """Raise below code that handles every Exception."""
    if not depth:
        raise outcome
    with suppress(Exception):
        try:
            _deep(depth - 1, outcome)
        except Exception:
            return


async def _play(app: App, messages: int = 1) -> tuple[Tally, AppTest]:
    async with AppTest(app) as test:
        for number in range(messages):
            await test.publish("orders", number)
        tally = await test.drain()
    return tally, test


def _once(outcome: BaseException) -> Callable[[Context], None]:
    """Raise at the first delivery only. A snoozed message comes again with the same attempt."""
    left = [outcome]

    def run(_context: Context) -> None:
        if left:
            _deep(5, left.pop())

    return run


def _async(outcome: BaseException) -> App:
    app, run = App("shop"), _once(outcome)

    @app.handler("orders", retry=WAITS)
    async def handle(context: Context) -> None:
        run(context)

    return app


def _with_deadline(outcome: BaseException) -> App:
    app, run = App("shop"), _once(outcome)

    @app.handler("orders", retry=WAITS, deadline="10s")
    async def handle(context: Context) -> None:
        run(context)

    return app


def _thread(outcome: BaseException) -> App:
    app = App("shop")
    app.handler("orders", retry=WAITS)(_once(outcome))
    return app


def _task_group(outcome: BaseException) -> App:
    app, run = App("shop"), _once(outcome)

    async def child(context: Context) -> None:
        run(context)

    @app.handler("orders", retry=WAITS)
    async def handle(context: Context) -> None:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(asyncio.sleep(60))
            outer.create_task(child(context))

    return app


def _context_manager(outcome: BaseException) -> App:
    app, run = App("shop"), _once(outcome)

    @contextmanager
    def plain() -> Iterator[None]:
        yield

    @asynccontextmanager
    async def awaited() -> AsyncIterator[None]:
        yield

    @app.handler("orders", retry=WAITS)
    async def handle(context: Context) -> None:
        with plain():
            async with awaited():
                run(context)

    return app


_LEFT: list[BaseException] = []


def _find_customer() -> int:
    if _LEFT:
        raise _LEFT.pop()
    return 1


def _provider(outcome: BaseException) -> App:
    app = App("shop")
    _LEFT[:] = [outcome]

    @app.handler("orders", retry=WAITS)
    async def handle(number: int, customer: Annotated[int, Depends(_find_customer)]) -> None: ...

    return app


def _middleware(outcome: BaseException) -> App:
    app, run = App("shop"), _once(outcome)

    @app.middleware
    async def check(context: Context, inside: NextRun) -> object:
        run(context)
        return await inside()

    @app.handler("orders", retry=WAITS)
    async def handle(number: int) -> None: ...

    return app


def _prepare(outcome: BaseException) -> App:
    app, run = App("shop"), _once(outcome)

    async def prepare(number: int, context: Context) -> int:
        run(context)
        return number

    @app.batch("orders", retry=WAITS, prepare=prepare)
    async def handle(rows: list[int]) -> None: ...

    return app


def _batch(outcome: BaseException) -> App:
    app, left = App("shop"), [outcome]

    @app.batch("orders", retry=WAITS)
    async def handle(rows: list[int]) -> None:
        if left:
            raise left.pop()

    return app


def _key(outcome: BaseException) -> App:
    app, left = App("shop"), [outcome]

    def key(_delivery: Delivery) -> str:
        if left:
            raise left.pop()
        return "one"

    @app.handler("orders", retry=WAITS, key=key)
    async def handle(number: int) -> None: ...

    return app


def _type_of(outcome: BaseException) -> App:
    app, left, by_kind = App("shop"), [outcome], by_header("kind")

    def type_of(delivery: Delivery) -> str | None:
        if left:
            raise left.pop()
        return by_kind(delivery) or "order"

    app.types("orders", type_of)

    @app.handler("orders", retry=WAITS, message_type="order")
    async def handle(number: int) -> None: ...

    return app


@pytest.mark.parametrize("outcome", OUTCOMES, ids=repr)
@pytest.mark.parametrize(
    "app_of",
    [
        _async,
        _with_deadline,
        _thread,
        _task_group,
        _context_manager,
        _provider,
        _middleware,
        _prepare,
        _batch,
        _key,
        _type_of,
    ],
)
@in_virtual_time
async def test_raised_outcome_equals_returned_one(
    app_of: Callable[[BaseException], App], outcome: Any
) -> None:
    tally, test = await _play(app_of(outcome))
    match outcome:
        case Done():
            assert tally == Tally(done=1)
        case Park():
            assert tally == Tally(parked=1)
            test.assert_parked("orders", reason="unknown customer", exhausted=False)
        case Retry():
            assert tally == Tally(retried=1, done=1)
            test.assert_retried("orders", times=1, tier="5m", reason="bank busy")
        case Snooze():
            assert tally == Tally(snoozed=1, done=1)


@in_virtual_time
async def test_outcome_raised_by_batch_handler_settles_whole_batch() -> None:
    """A batch is not split: the outcome is a decision about the call, not a bad row."""
    app, sizes = App("shop"), []

    @app.batch("orders", retry=WAITS, size=10)
    async def handle(rows: list[int]) -> None:
        sizes.append(len(rows))
        if len(sizes) == 1:
            raise Retry("the database is down")

    tally, _ = await _play(app, 10)
    assert tally == Tally(retried=10, done=10)
    assert sizes[0] == 10


_SEEN: list[object] = []


async def _transaction() -> AsyncIterator[None]:
    try:
        yield
    except BaseException as error:
        _SEEN.append(f"rolled back: {error!r}")
        raise
    _SEEN.append("committed")


@in_virtual_time
async def test_middleware_and_providers_see_raised_outcome() -> None:
    """Providers see an exception, so that a transaction is rolled back.

    Middleware sees the value.
    """
    app = App("shop")
    _SEEN.clear()

    @app.middleware
    async def watch(_context: Context, run: NextRun) -> object:
        returned = await run()
        _SEEN.append(returned)
        return returned

    @app.handler("orders", retry=WAITS)
    async def handle(
        number: int, _open: Annotated[None, Depends(_transaction, scope="run")]
    ) -> Park:
        if number:
            return Park("returned")
        raise Park("raised")

    await _play(app, 2)
    raised, returned = Park("raised"), Park("returned")
    assert sorted(map(str, _SEEN)) == sorted(
        map(str, [f"rolled back: {raised!r}", raised, "committed", returned])
    )


@in_virtual_time
async def test_outcome_raised_in_reply_handler_is_not_a_reply() -> None:
    app = App("shop")

    @app.handler("orders", retry=WAITS, replies=True)
    async def handle(number: int) -> int:
        raise Park("no such order")

    tally, _ = await _play(app)
    assert tally == Tally(parked=1)


@in_virtual_time
async def test_shared_outcome_keeps_no_traceback_of_its_runs() -> None:
    app = App("shop")

    @app.handler("orders", retry=WAITS)
    async def handle(number: int) -> None:
        try:
            raise KeyError(number)
        except KeyError as error:
            raise SHARED from error

    tally, test = await _play(app, 3)
    assert tally == Tally(parked=3)
    assert (SHARED.__traceback__, SHARED.__context__, SHARED.__cause__) == (None, None, None)
    assert not test.find_events("handler.failed")


def test_outcomes_are_immutable_values() -> None:
    for outcome in OUTCOMES:
        assert copy.copy(outcome) == pickle.loads(pickle.dumps(outcome)) == outcome
        assert len({outcome, copy.copy(outcome)}) == 1
    assert Retry("x", after="2m") == Retry("x", 120) != Retry("x")
    assert Park("x") != Retry("x")
    assert repr(Retry("x", "5m")) == "Retry(reason='x', after=300.0)"
    assert repr(Done()) == "Done()"
    with pytest.raises(FrozenInstanceError):
        Park("x").reason = "y"
    assert not issubclass(Park, Exception)
