"""The supervising loop, on a broker that fails on purpose. No time passes."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopback.broker.supervise import Backoff, Supervised, SupervisedState
from hopback.errors import (
    BrokerError,
    ConnectionFailed,
    ConnectionLost,
    LoginRefused,
    TopologyConflict,
)
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.broker.port import Channel, Connection


class _Line:
    """A connection that ends on request."""

    def __init__(self) -> None:
        self.version = BrokerVersion(4, 0)
        self.closed = False
        self._ended: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()

    async def open_channel(self) -> Channel:
        raise AssertionError("no session of these tests opens a channel")

    def end(self, error: BrokerError | None) -> None:
        if not self._ended.done():
            self._ended.set_result(error)

    async def close(self) -> None:
        self.closed = True
        self.end(None)

    async def wait_closed(self) -> BrokerError | None:
        return await asyncio.shield(self._ended)


class _Broker:
    """A broker that refuses a given number of connections, then accepts."""

    address = "fake://broker"

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.lines: list[_Line] = []

    async def connect(self, name: str = "hopback") -> Connection:
        if self.refusals:
            self.refusals -= 1
            raise ConnectionFailed("connection refused")
        self.lines.append(_Line())
        return self.lines[-1]


class _World:
    """A supervised session with everything that happens to it on record."""

    def __init__(self, broker: _Broker, *, failures: list[Exception] | None = None) -> None:
        self.broker = broker
        self.states: list[str] = []
        self.pauses: list[float] = []
        self.sessions = 0
        self.cancelled = 0
        self.started = asyncio.Event()
        self._failures = failures or []
        self.supervised = Supervised(
            broker,
            "test",
            self._session,
            backoff=Backoff(first=1, factor=2, most=8, stable=10),
            on_state=lambda state, _: self.states.append(state),
            sleep=self._sleep,
            chance=lambda: 0.0,
        )

    async def _session(self, connection: Connection) -> None:
        self.sessions += 1
        if self._failures:
            raise self._failures.pop(0)
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    async def running(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self.supervised.run())
        await self.started.wait()
        return task


async def test_session_runs_until_stopped() -> None:
    """Stopping cancels the session, closes the connection and leaves no task."""
    before = asyncio.all_tasks()
    world = _World(_Broker())
    task = await world.running()
    assert world.supervised.state is SupervisedState.READY
    world.supervised.stop()
    await task
    assert world.states == ["connecting", "ready", "closed"]
    assert (world.sessions, world.cancelled, world.broker.lines[0].closed) == (1, 1, True)
    assert asyncio.all_tasks() == before


async def test_lost_connection_is_reopened_with_new_session() -> None:
    world = _World(_Broker())
    task = await world.running()
    world.started.clear()
    world.broker.lines[0].end(ConnectionLost("cut"))
    await world.started.wait()
    assert (world.sessions, world.cancelled, world.supervised.connections) == (2, 1, 2)
    assert world.states == ["connecting", "ready", "connecting", "ready"]
    assert world.broker.lines[0].closed
    world.supervised.stop()
    await task


async def test_back_off_grows_to_maximum() -> None:
    world = _World(_Broker(refusals=6))
    task = await world.running()
    assert world.pauses == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert world.states == ["connecting", "connecting", "ready"]  # the second one has a reason
    world.supervised.stop()
    await task


async def test_connecting_state_has_reason_of_last_failure() -> None:
    broker = _Broker(refusals=1)
    reasons: list[str] = []
    world = _World(broker)
    world.supervised._on_state = lambda state, reason: reasons.append(f"{state}: {reason}")
    task = await world.running()
    assert reasons == ["connecting: ", "connecting: connection refused", "ready: "]
    world.supervised.stop()
    await task


async def test_failed_session_is_logged_and_restarted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A refusal by the broker is a warning, an internal error is logged with its traceback."""
    world = _World(_Broker(), failures=[ConnectionLost("gone"), ValueError("a bug")])
    with caplog.at_level(logging.WARNING, logger="hopback"):
        task = await world.running()
    assert [(record.levelname, bool(record.exc_info)) for record in caplog.records] == [
        ("WARNING", False),
        ("ERROR", True),
    ]
    assert world.sessions == 3
    assert all(line.closed for line in world.broker.lines[:2])
    world.supervised.stop()
    await task


async def test_topology_conflict_ends_supervision() -> None:
    world = _World(_Broker(), failures=[TopologyConflict("queue differs")])
    with pytest.raises(TopologyConflict):
        await world.supervised.run()
    assert world.broker.lines[0].closed
    assert world.supervised.state is SupervisedState.CLOSED


async def test_stop_during_back_off_does_not_wait() -> None:
    world = _World(_Broker(refusals=1))
    pausing = asyncio.Event()

    async def endless(_: float) -> None:
        pausing.set()
        await asyncio.Event().wait()

    world.supervised._sleep = endless
    task = asyncio.create_task(world.supervised.run())
    await pausing.wait()
    world.supervised.stop()
    await asyncio.wait_for(task, 5)


async def test_cancelled_supervision_closes_connection() -> None:
    world = _World(_Broker())
    task = await world.running()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.broker.lines[0].closed
    assert world.supervised.state is SupervisedState.CLOSED


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_back_off_is_between_half_and_full_step(failures: int, chance: float) -> None:
    backoff = Backoff(first=0.25, factor=2, most=30)
    delay = backoff.delay(failures, chance)
    step = min(30.0, 0.25 * 2.0 ** min(max(failures, 1) - 1, 64))
    assert step / 2 <= delay <= step


class _Refusing(_Broker):
    """Takes the first connections, then refuses the user."""

    def __init__(self, taken: int) -> None:
        super().__init__()
        self._taken = taken

    async def connect(self, name: str = "hopback") -> Connection:
        if len(self.lines) >= self._taken:
            raise LoginRefused("no such user")
        return await super().connect(name)


async def test_refused_login_ends_supervision_at_first_attempt() -> None:
    world = _World(_Refusing(0))
    with pytest.raises(LoginRefused, match="no such user"):
        await world.supervised.run()
    assert world.pauses == []


async def test_login_refused_after_first_connection_is_retried() -> None:
    """A password may change while a program runs."""
    broker = _Refusing(1)
    world = _World(broker)
    task = await world.running()
    broker.lines[0].end(ConnectionLost("gone"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(world.pauses) >= 3
    assert not task.done()
    world.supervised.stop()
    await task


async def _for_ever(_connection: Connection) -> None:
    await asyncio.Event().wait()


async def test_failure_callback_replaces_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[Exception] = []
    supervised = Supervised(
        _Broker(refusals=3),
        "test",
        _for_ever,
        on_failure=told.append,
        sleep=lambda _seconds: asyncio.sleep(0),
    )
    task = asyncio.create_task(supervised.run())
    for _ in range(50):
        await asyncio.sleep(0)
    supervised.stop()
    await task
    assert [str(one) for one in told] == ["connection refused"] * 3
    assert caplog.messages == []
