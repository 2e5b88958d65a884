"""Batches: windows of size and time, an outcome per message, bad rows found by bisection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopback import (
    App,
    BreakerPolicy,
    Context,
    Done,
    Park,
    Retry,
    Rule,
    ServiceOptions,
    Snooze,
    Verdict,
    compose,
)
from hopback.policy.breaker import BreakerState
from hopback.runtime.consumer import Leftover
from hopback.testing import AppTest, Tally, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable


class _Table:
    """A table that refuses a whole insert because of one bad row, as databases do."""

    def __init__(self, bad: set[int] | None = None, error: type[Exception] = ValueError) -> None:
        self.rows: list[int] = []
        self.calls: list[int] = []
        self.bad = bad or set()
        self.error = error

    async def insert(self, rows: list[int]) -> None:
        """Insert all or none."""
        self.calls.append(len(rows))
        await asyncio.sleep(0.1)
        found = self.bad & set(rows)
        if found:
            raise self.error(f"bad row {min(found)}")
        self.rows += rows


def _app(insert: Callable[..., Any], **options: Any) -> App:
    app = App("raffle")
    app.batch("users", retry=["10s"], **options)(insert)
    return app


async def _publish(test: AppTest, rows: range | list[int]) -> None:
    connection = await test.broker.connect("producer")
    channel = await connection.open_channel()
    for row in rows:
        await channel.publish(compose("users", row, message_id=str(row)))
    await connection.close()


@in_virtual_time
async def test_batch_runs_when_full_or_due() -> None:
    """Ten rows with size four: two full batches at once, the others after the wait."""
    table = _Table()
    async with AppTest(_app(table.insert, size=4, wait="5s")) as test:
        await _publish(test, range(10))
        await test.advance(1)
        assert table.calls == [4, 4]
        await test.advance(3.5)
        assert table.calls == [4, 4]
        await test.advance(1)
        assert table.calls == [4, 4, 2]
        tally = await test.drain()
    assert sorted(table.rows) == list(range(10))
    assert tally == Tally(done=10)
    sizes = [one.fields["size"] for one in test.find_events("batch.handled")]
    assert sizes == [4, 4, 2]


@in_virtual_time
async def test_batchers_run_concurrently_up_to_limit_and_prefetch_feeds_them() -> None:
    """One batch is filled while the others run."""
    at_once: list[int] = []
    running = 0

    async def insert(_rows: list[int]) -> None:
        nonlocal running
        running += 1
        at_once.append(running)
        await asyncio.sleep(10)
        running -= 1

    async with AppTest(_app(insert, size=5, batchers=3)) as test:
        await _publish(test, range(50))
        await test.advance(1)
        # Four batches, and the first delivery, which came before the window was opened.
        assert len(test.broker.snapshot().queue("users").unacked) == 21
        await test.drain()
    assert max(at_once) == 3


@given(
    rows=st.integers(1, 20),
    bad=st.sets(st.integers(0, 19)),
    size=st.integers(1, 8),
    batchers=st.integers(1, 3),
)
@settings(max_examples=25, deadline=None)
def test_bisection_parks_only_bad_rows(rows: int, bad: set[int], size: int, batchers: int) -> None:
    """Good rows are inserted once."""

    @in_virtual_time
    async def play() -> None:
        table = _Table(bad)
        app = _app(table.insert, size=size, batchers=batchers)
        async with AppTest(app) as test:
            await _publish(test, range(rows))
            await test.drain()
            resting = {int(one.body) for one in test.dead_letters("users")}
        assert sorted(table.rows) == sorted(set(range(rows)) - bad)
        assert resting == bad & set(range(rows))

    play()


@in_virtual_time
async def test_bisection_of_64_rows_takes_13_calls() -> None:
    """One call for the whole batch, then two for each halving."""
    table = _Table({17})
    async with AppTest(_app(table.insert, size=64)) as test:
        await _publish(test, range(64))
        await test.advance(5)
        assert len(table.calls) == 13
        [event] = test.find_events("batch.handled")
        assert (event.fields["splits"], event.fields["failed"]) == (6, 1)
        await test.drain()
        test.assert_parked("users", times=1, message_id="17", reason="ValueError: bad row 17")


@pytest.mark.parametrize("error", [OSError, TimeoutError, ConnectionResetError])
@in_virtual_time
async def test_unavailable_database_fails_whole_batch_in_one_call(
    error: type[Exception],
) -> None:
    """The rows are not the cause, so the batch is not split."""
    table = _Table({3}, error)
    async with AppTest(_app(table.insert, size=8)) as test:
        await _publish(test, range(8))
        await test.advance(1)
        assert table.calls == [8]
        assert len(test.find_events("delivery.retried")) == 8
        table.bad = set()
        await test.drain()
    assert sorted(table.rows) == list(range(8))


@in_virtual_time
async def test_batch_handler_returns_one_outcome_per_message() -> None:
    """They are in order. An exception in the list is treated by the rules."""
    said: dict[int, object] = {
        0: None,
        1: Done(),
        2: Retry("later"),
        3: Park("never"),
        4: Snooze(5),
        5: KeyError("by rule"),
        6: ValueError("plain"),
        7: "nonsense",
    }
    seen: set[int] = set()

    async def insert(rows: list[int]) -> list[object]:
        first = [said[row] if row not in seen else None for row in rows]
        seen.update(rows)
        return first

    app = _app(insert, size=8, rules=[Rule(KeyError, Verdict.PARK)])
    async with AppTest(app) as test:
        await _publish(test, range(8))
        tally = await test.drain()
        test.assert_parked("users", message_id="3", reason="never")
        test.assert_parked("users", message_id="5", reason="KeyError", error="KeyError")
        test.assert_parked("users", message_id="7", reason="nonsense")
        test.assert_retried("users", message_id="6", reason="ValueError: plain")
    assert tally == Tally(done=5, retried=2, parked=3, snoozed=1)


@pytest.mark.parametrize("returned", [[None], "ok", {}, [None] * 5])
@in_virtual_time
async def test_outcome_list_of_wrong_length_parks_batch_with_allowed_values(
    returned: object,
) -> None:
    async def insert(_rows: list[int]) -> object:
        return returned

    async with AppTest(_app(insert, size=3)) as test:
        await _publish(test, range(3))
        assert await test.drain() == Tally(parked=3)
        test.assert_parked("users", times=3, reason="expected None, or a list of 3 of")


@in_virtual_time
async def test_undecodable_message_of_batch_is_parked_alone() -> None:
    table = _Table()
    async with AppTest(_app(table.insert, size=3)) as test:
        await test.publish("users", b"{")
        await _publish(test, range(3))
        assert await test.drain() == Tally(done=3, parked=1)
        test.assert_parked("users", reason="undecodable payload")
    assert table.calls == [3]


@pytest.mark.parametrize("raised", [SystemExit(1), asyncio.CancelledError()])
@in_virtual_time
async def test_base_exception_retries_batch_and_next_batch_runs(raised: BaseException) -> None:
    calls = 0

    async def insert(_rows: list[int]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise raised

    async with AppTest(_app(insert, size=3, batchers=1)) as test:
        await _publish(test, range(6))
        tally = await test.drain()
    assert tally.done == 6
    assert 3 <= tally.retried <= 6


@in_virtual_time
async def test_predicate_that_raises_does_not_split_batch() -> None:
    table = _Table({1})
    app = _app(table.insert, size=4, isolates=lambda _error: 1 / 0)
    async with AppTest(app) as test:
        await _publish(test, range(4))
        assert await test.drain() == Tally(retried=4, parked=4)
    assert table.calls == [4, 4]


@in_virtual_time
async def test_batch_past_its_deadline_is_retried_whole() -> None:
    """It is reported like a single handler, and rules for timeouts do not apply."""
    calls = 0

    async def insert(_rows: list[int]) -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(1000 if calls == 1 else 0)

    rules = [Rule(TimeoutError, Verdict.PARK)]
    async with AppTest(_app(insert, size=4, deadline=5, rules=rules)) as test:
        await _publish(test, range(4))
        assert await test.drain() == Tally(retried=4, done=4)
        test.assert_retried("users", reason="did not finish within its deadline of 5 s", times=4)
        (overdue,) = test.find_events("handler.overdue", queue="users")
        assert (overdue.fields["message_id"], overdue.fields["stopped"]) == ("0", True)


@in_virtual_time
async def test_timeout_error_of_batch_handler_is_not_its_deadline() -> None:
    table = _Table({1}, TimeoutError)
    rules = [Rule(TimeoutError, Verdict.PARK)]
    async with AppTest(_app(table.insert, size=2, deadline=5, rules=rules)) as test:
        await _publish(test, range(2))
        assert await test.drain() == Tally(parked=2)
        assert not test.find_events("handler.overdue")


# --- preparing --------------------------------------------------------------------------------------


@in_virtual_time
async def test_prepare_runs_concurrently_and_returns_rows() -> None:
    """An outcome settles its message alone."""
    table = _Table()
    at_once: list[int] = []
    running = 0

    async def prepare(user: dict[str, int], context: Context) -> object:
        nonlocal running
        running += 1
        at_once.append(running)
        await asyncio.sleep(1)
        running -= 1
        if user["id"] == 3:
            return Park("not of age")
        if user["id"] == 4 and context.attempt == 1:
            raise ConnectionError("the lookup is away")
        return user["id"] * 10

    app = _app(table.insert, size=4, prepare=prepare, processors=3)
    async with AppTest(app) as test:
        for number in range(6):
            await test.publish("users", {"id": number})
        await test.publish("users", {"id": "x"})
        tally = await test.drain()
        test.assert_parked("users", times=1, reason="not of age")
        test.assert_parked("users", times=1, reason="undecodable payload: .id")
    assert max(at_once) == 3
    assert sorted(table.rows) == [0, 10, 20, 40, 50]
    assert tally == Tally(done=5, parked=2, retried=1)


@in_virtual_time
async def test_prepare_that_returns_none_gives_a_row() -> None:
    seen: list[object] = []

    async def insert(rows: list[object]) -> None:
        seen.extend(rows)

    async with AppTest(_app(insert, size=2, prepare=lambda: None)) as test:
        await _publish(test, range(2))
        assert await test.drain() == Tally(done=2)
    assert seen == [None, None]


# --- the end ----------------------------------------------------------------------------------------


@in_virtual_time
async def test_open_batch_is_handled_at_shutdown() -> None:
    table = _Table()
    async with AppTest(_app(table.insert, size=100, wait="5m")) as test:
        await _publish(test, range(7))
        await test.advance(1)
        assert table.calls == []
        report = await test.stop()
    assert table.calls == [7]
    assert (report.handled, report.left) == (7, ())
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_handler_beyond_grace_does_not_prevent_flush_of_batches() -> None:
    """Running handlers end first, then open batches.

    Each step is an event with the number of running handlers.
    """
    table = _Table()
    app = _app(table.insert, size=100, wait="5m")

    @app.handler("slow", retry=["10s"])
    async def hang() -> None:
        await asyncio.sleep(1000)

    async with AppTest(app, options=ServiceOptions(grace=20)) as test:
        await test.publish("slow", 0)
        await _publish(test, range(7))
        await test.advance(2)
        began = asyncio.get_running_loop().time()
        report = await test.stop()
        took = asyncio.get_running_loop().time() - began
    assert (table.calls, report.handled) == ([7], 7)
    assert report.left == (Leftover("slow", not_started=0, interrupted=1),)
    assert 20 <= took < 30
    steps = [(one.fields["step"], one.fields["left"]) for one in test.find_events("shutdown.step")]
    assert steps == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 0)]


@in_virtual_time
async def test_batches_beyond_grace_are_reported() -> None:
    """Running batches count as interrupted, waiting ones as not started. All are requeued."""

    async def insert(_rows: list[int]) -> None:
        await asyncio.sleep(1000)

    app = _app(insert, size=4, batchers=1, wait="5m")
    async with AppTest(app, options=ServiceOptions(grace=5)) as test:
        await _publish(test, range(7))
        await test.advance(1)
        report = await test.stop()
        assert len(test.find_events("delivery.abandoned")) == 4
    assert report.left == (Leftover("users", not_started=3, interrupted=4),)
    assert len(test.broker.snapshot().queue("users").ready) == 7
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_batch_of_closed_channel_is_abandoned_and_redelivered() -> None:
    """Rows may be inserted twice but are never lost."""
    table = _Table()
    async with AppTest(_app(table.insert, size=4, batchers=1, wait="2s")) as test:
        await _publish(test, range(6))
        test.broker.cut()
        tally = await test.drain()
        assert not test.find_events("consumer.lost")
    assert set(table.rows) == set(range(6))
    assert tally.done == 6


@in_virtual_time
async def test_breaker_pauses_batches() -> None:
    """Shutdown does not wait for it."""
    table = _Table({0, 1, 2, 3, 4, 5, 6, 7}, OSError)
    policy = BreakerPolicy(failures=4, cool_down=60)
    async with AppTest(_app(table.insert, size=2, batchers=2, breaker=policy)) as test:
        await _publish(test, range(8))
        await test.advance(1)
        assert test.service.consumer("users").breaker is BreakerState.OPEN
        asked = len(table.calls)
        assert asked <= 3
        await test.advance(30)
        assert len(table.calls) == asked
        report = await test.stop()
    # up to the prefetch, failed messages were requeued
    assert report.left == (Leftover("users", not_started=6, interrupted=0),)
