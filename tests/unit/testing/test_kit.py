"""The test kit for applications: its assertions pass and fail as documented."""

from __future__ import annotations

import asyncio
import inspect
import os
import pydoc
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from hopback import App, Context, Park, Snooze, compose
from hopback.broker.embedded import VirtualTimeLoop
from hopback.errors import PublishRefused, Returned
from hopback.store import Database
from hopback.testing import AppTest, Fault, Tally, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


def _shop() -> App:
    """Order 1 fails once, order 2 always, order 3 is hopeless, order 4 is not due at first."""
    app = App("shop")
    snoozed: list[int] = []

    @app.handler("orders", retry=["30s", "5m", "30m"])
    async def handle(order: dict[str, int], context: Context) -> Park | Snooze | None:
        match order["id"]:
            case 1 if context.attempt == 1:
                raise ConnectionError("the warehouse does not answer")
            case 2:
                raise LookupError("no such customer")
            case 3:
                return Park("hopeless")
            case 4 if not snoozed:
                snoozed.append(4)
                return Snooze(10)
        return None

    return app


async def _order(test: AppTest, *numbers: int) -> None:
    for number in numbers:
        await test.publish("orders", {"id": number}, message_id=str(number))


@in_virtual_time
async def test_drain_runs_all_retries_and_counts_outcomes() -> None:
    """The tiers take half an hour. A second drain counts only new outcomes."""
    async with AppTest(_shop()) as test:
        began = asyncio.get_running_loop().time()
        await _order(test, 0, 1, 2, 3, 4)
        assert await test.drain() == Tally(done=3, retried=4, parked=2, snoozed=1)
        assert round(asyncio.get_running_loop().time() - began) == 2130
        assert await test.drain() == Tally()
        await _order(test, 0)
        assert await test.drain() == Tally(done=1)


@in_virtual_time
async def test_drain_with_reraise_raises_exception_of_handler() -> None:
    """It has its type and the line in the handler."""
    async with AppTest(_shop()) as test:
        await _order(test, 1)
        with pytest.raises(ConnectionError, match="the warehouse does not answer") as caught:
            await test.drain(reraise=True)
        assert caught.traceback[-1].name == "handle"
        await _order(test, 0)
        assert await test.drain(reraise=True) == Tally(done=1)
        await _order(test, 2)
        with pytest.raises(LookupError) as several:
            await test.drain(reraise=True)
        assert several.value.__notes__ == ["and 3 more failed runs"]


@in_virtual_time
async def test_returned_park_is_raised_as_assertion_with_reason() -> None:
    async with AppTest(_shop()) as test:
        await _order(test, 3)
        with pytest.raises(AssertionError, match=r"delivery\.parked #1 \(hopeless\)"):
            await test.drain(reraise=True)


@in_virtual_time
async def test_failed_assertion_lists_events() -> None:
    async with AppTest(_shop()) as test:
        await _order(test, 1, 2, 3)
        await test.drain()
        test.assert_parked("orders", times=2)
        test.assert_parked("orders", reason="hopeless", message_id="3", times=1)
        test.assert_retried("orders", times=4)
        test.assert_retried("orders", tier="30m", times=1)
        test.assert_done("orders", times=1)
        wrong: list[Callable[[], None]] = [
            lambda: test.assert_parked("orders", times=1),
            lambda: test.assert_parked("orders", reason="of another kind"),
            lambda: test.assert_retried("orders", tier="7m"),
            lambda: test.assert_done("orders", times=2),
        ]
        for look in wrong:
            with pytest.raises(AssertionError, match=r"Events: .*delivery\.parked"):
                look()
        with pytest.raises(LookupError, match="orders"):
            test.assert_parked("order")


@in_virtual_time
async def test_assert_parked_checks_dead_letter_queue() -> None:
    """The event alone is not enough."""
    async with AppTest(_shop()) as test:
        await _order(test, 3)
        await test.drain()
        [dead] = test.dead_letters("orders")
        assert dead.body == b'{"id":3}'
        connection = await test.broker.connect("operator")
        channel = await connection.open_channel()
        await channel.purge_queue("orders.dlq")
        await connection.close()
        with pytest.raises(AssertionError, match="its dead-letter queue has 0"):
            test.assert_parked("orders")


@in_virtual_time
async def test_publish_of_test_kit_meets_no_faults_and_raises_errors() -> None:
    """Faults affect only the application."""
    async with AppTest(_shop()) as test:
        for fault in (Fault.NACK, Fault.RETURN, Fault.REFUSE_CONNECTION):
            test.faults.chance(fault, 1.0)
        await _order(test, 0)
        test.faults.clear()
        assert await test.drain() == Tally(done=1)
        with pytest.raises(Returned, match="nowhere"):
            await test.publish("nowhere", {})
        with pytest.raises(PublishRefused, match="no exchange 'missing'"):
            await test.publish("key", {}, exchange="missing")


@in_virtual_time
async def test_advance_runs_events_due_within_time() -> None:
    async with AppTest(_shop()) as test:
        await _order(test, 1)
        await test.advance(29)
        assert not test.find_events("delivery.done")
        await test.advance(1)
        test.assert_done("orders", times=1)


@in_virtual_time
async def test_drain_timeout_names_queues_and_deliveries_in_flight() -> None:
    app = App("shop")

    @app.handler("orders", retry=["30s"])
    async def handle() -> None:
        await asyncio.sleep(1)
        raise ValueError("no")

    async with AppTest(app) as test:
        await test.publish("orders", {})
        test.faults.chance(Fault.NACK, 1.0)
        with pytest.raises(TimeoutError, match=r"within 1m: \{'orders': 1, 'in flight': 1\}"):
            await test.drain(within=60)
        test.faults.clear()
        assert (await test.drain()).retried == 1


@in_virtual_time
async def test_virtual_time_starts_at_present() -> None:
    """`at` can therefore be in the future."""
    app = App("shop")
    app.delays("1d")
    came: list[float] = []

    @app.handler("orders", retry=["30s"])
    async def handle(context: Context) -> None:
        came.append(asyncio.get_running_loop().time())

    async with AppTest(app) as test:
        due = datetime.now(UTC) + timedelta(hours=2)
        await test.publish("orders", {}, at=due)
        await test.advance(7190)
        assert came == []
        await test.drain()
    assert due.timestamp() <= came[0] < due.timestamp() + 2


@in_virtual_time(start=datetime(2030, 2, 1, tzinfo=UTC))
async def test_virtual_time_can_start_at_a_given_time() -> None:
    assert asyncio.get_running_loop().time() == datetime(2030, 2, 1, tzinfo=UTC).timestamp()


def test_app_test_entered_on_another_event_loop_is_refused() -> None:
    """As by an async fixture that a plugin runs on its own loop."""
    app = App("shop")

    @app.handler("orders", retry=["30s"])
    async def handle() -> None: ...

    with asyncio.Runner() as fixtures:
        test = AppTest(app)

        @in_virtual_time
        async def use(call: Callable[[], Awaitable[object]]) -> None:
            await call()

        for call in (
            lambda: test.publish("orders", {}),
            lambda: test.request("orders", {}),
            test.drain,
            test.stop,
            lambda: test.advance(1),
        ):
            with pytest.raises(RuntimeError, match="expected `async with AppTest"):
                use(call)
        fixtures.run(test.__aenter__())
        for call in (
            lambda: test.publish("orders", {}),
            lambda: test.request("orders", {}),
            test.drain,
            test.stop,
            lambda: test.advance(1),
        ):
            with pytest.raises(RuntimeError, match="entered on another event loop"):
                use(call)
        fixtures.run(test.__aexit__(None))


async def test_app_test_runs_in_real_time_without_virtual_loop() -> None:
    """Only `advance` requires the virtual loop."""
    app = App("shop")

    @app.handler("orders", retry=["10ms"])
    def handle(context: Context) -> None:
        if context.attempt == 1:
            raise ZeroDivisionError

    async with AppTest(app) as test:
        await test.publish("orders", {})
        assert await test.drain() == Tally(retried=1, done=1)
        with pytest.raises(RuntimeError, match="in_virtual_time"):
            await test.advance(1)


@in_virtual_time
async def test_failing_test_does_not_wait_for_handlers() -> None:
    app = App("shop")

    @app.handler("orders", retry=["1s"])
    async def handle() -> None:
        await asyncio.sleep(1000)

    async def fail() -> None:
        async with AppTest(app) as test:
            await test.publish("orders", {})
            raise ZeroDivisionError

    began = asyncio.get_running_loop().time()
    with pytest.raises(ZeroDivisionError):
        await fail()
    assert asyncio.get_running_loop().time() - began < 5
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_in_virtual_time_provides_virtual_loop() -> None:
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)


def test_in_virtual_time_keeps_name_and_signature() -> None:
    """Fixtures and parameters reach the test."""

    @in_virtual_time
    async def test_something(tmp_path: str, number: int) -> None:
        """Words."""

    assert test_something.__name__ == "test_something"
    assert list(inspect.signature(test_something).parameters) == ["tmp_path", "number"]
    assert not inspect.iscoroutinefunction(test_something)


def test_in_virtual_time_works_without_pytest_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(
        """
from hopback import App
from hopback.testing import AppTest, in_virtual_time

app = App("shop")

@app.handler("orders", retry=["30s"])
async def handle(order: dict) -> None:
    raise ValueError("no")

@in_virtual_time
async def test_right():
    async with AppTest(app) as test:
        await test.publish("orders", {})
        await test.drain()
        test.assert_parked("orders", reason="no")

@in_virtual_time
async def test_wrong():
    async with AppTest(app) as test:
        await test.publish("orders", {})
        await test.drain()
        test.assert_done("orders")
"""
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "test_shop.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout


def test_drain_waits_for_the_outbox_of_a_database(tmp_path: Path) -> None:
    """A database at module level serves one test after another."""
    database = Database(f"sqlite:///{tmp_path / 'shop.db'}")
    app = App("shop", lifespan=database.lifespan)

    @app.handler("orders", retry=["30s"])
    async def handle(order: dict[str, int], context: Context) -> None:
        async with database.transaction() as tx:
            if await tx.first_time("orders", context.delivery):
                await tx.send(compose("invoices", order))

    @app.handler("invoices", retry=["30s"])
    async def invoice(order: dict[str, int]) -> None: ...

    @in_virtual_time
    async def play(number: int) -> None:
        async with AppTest(app) as test:
            for _ in range(2):
                await test.publish("orders", {"id": number}, message_id=str(number))
            await test.drain()
            test.assert_done("invoices", times=1)

    for number in range(3):
        play(number)


def test_database_of_a_module_is_replaced_in_tests(tmp_path: Path) -> None:
    """Each test has its own database. The one of the module is not touched."""
    database = Database(f"sqlite:///{tmp_path / 'shop.db'}")
    app = App("shop", lifespan=database.lifespan)
    usual = database.engine

    @app.handler("orders", retry=["30s"])
    async def handle(order: dict[str, int], context: Context) -> None:
        async with database.transaction() as tx:
            if await tx.first_time("orders", context.delivery):
                await tx.send(compose("invoices", order))

    @app.handler("invoices", retry=["30s"])
    async def invoice(order: dict[str, int]) -> None: ...

    @in_virtual_time
    async def play() -> None:
        async with AppTest(app) as test:
            await test.publish("orders", {"id": 1}, message_id="1")
            await test.drain()
            test.assert_done("invoices", times=1)

    for number in range(3):
        with database.override(f"sqlite:///{tmp_path / f'test{number}.db'}"):
            play()
    assert database.engine is usual
    assert sorted(one.name for one in tmp_path.glob("*.db")) == ["test0.db", "test1.db", "test2.db"]


@in_virtual_time
async def test_drain_that_is_too_short_names_the_limit_to_raise() -> None:
    app = App("shop")

    @app.handler("orders", retry=["3d"])
    async def handle(order: dict[str, int]) -> None:
        raise LookupError("no such customer")

    async with AppTest(app) as test:
        await test.publish("orders", {})
        expected = (
            r"not drained within 1d: \{'orders\.retry\.3d': 1\}\. If waits are longer, raise the limit:"
            r' `drain\(within="4d"\)`$'
        )
        with pytest.raises(TimeoutError, match=expected):
            await test.drain()


@in_virtual_time
async def test_drain_that_is_too_short_for_a_delay_names_a_sufficient_limit() -> None:
    app = App("shop")
    app.delays(longest="7d")

    @app.handler("orders", retry=["30s"])
    async def handle(order: dict[str, int]) -> None: ...

    async with AppTest(app) as test:
        await test.publish("orders", {}, delay="6d")
        with pytest.raises(TimeoutError, match=r'`drain\(within="7d1m"\)`$'):
            await test.drain(within="1m")


def test_help_of_handler_shows_a_readable_default() -> None:
    shown = pydoc.render_doc(App.handler).replace("'", "")  # Python 3.14 omits the quotes
    assert "retry: Waits | _NotGiven = <not given>," in shown
