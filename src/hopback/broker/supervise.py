"""A supervising loop for one connection: connect, run a session, back off, reconnect.

Recovery happens only in this loop. A connection ends together with all its channels. The session is
then started again on a new connection and declares its objects again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from hopback.durations import Duration, read_seconds
from hopback.errors import HopbackError, LoginRefused, TopologyError, UnsafeOperation
from hopback.waiting import first_of

if TYPE_CHECKING:
    from hopback.broker.port import Broker, Connection

_LOG = logging.getLogger("hopback.broker")
_FATAL = (TopologyError, UnsafeOperation)
"""Errors that a new connection cannot repair. They end the loop."""


class SupervisedState(StrEnum):
    """The state of a supervised connection."""

    CONNECTING = "connecting"
    READY = "ready"
    BLOCKED = "blocked"
    """The broker takes no publishes for now (memory or disk alarm)."""
    CLOSED = "closed"


OnState: TypeAlias = Callable[[SupervisedState, str], object]
"""Called with each new state and its reason. It must not raise."""
OnFailure: TypeAlias = Callable[[Exception], object]
"""Called with the error that ended a connection or prevented it. It must not raise."""
Session: TypeAlias = "Callable[[Connection], Awaitable[None]]"
"""Runs on a connection until the connection ends."""


@runtime_checkable
class WatchesBlocking(Protocol):
    """A connection that reports when the broker blocks it."""

    def watch_blocking(self, watcher: Callable[[bool, str], object]) -> None:
        """Call `watcher(blocked, reason)` on each change."""


@dataclass(frozen=True, slots=True, init=False)
class Backoff:
    """The delay after the n-th failure in a row: growing, bounded, jittered.

    A session that lasted `stable` resets the count of failures. The durations become seconds.
    """

    first: float = 0.25
    factor: float = 2.0
    most: float = 30.0
    stable: float = 10.0

    def __init__(
        self,
        first: Duration = 0.25,
        factor: float = 2.0,
        most: Duration = 30.0,
        stable: Duration = 10.0,
    ) -> None:
        object.__setattr__(self, "first", read_seconds(first, "first", where="Backoff"))
        object.__setattr__(self, "factor", factor)
        object.__setattr__(self, "most", read_seconds(most, "most", where="Backoff"))
        object.__setattr__(self, "stable", read_seconds(stable, "stable", where="Backoff"))

    def delay(self, failures: int, chance: float) -> float:
        """Return the seconds to wait. `chance` in [0, 1) spreads them over the upper half of the
        step.
        """
        exponent = min(max(failures, 1) - 1, 64)
        step = min(self.most, self.first * self.factor**exponent)
        return step * (0.5 + chance / 2)


class Supervised:
    """Keeps a session running on a broker until it is stopped.

    `run` is the loop. It returns after `stop` and raises only errors that a new connection cannot
    repair: a topology conflict, an UnsafeOperation, or a login refused at the first attempt. A
    login refused later is retried, because the password may be changing. All other errors,
    including unexpected errors of the session, are retried after the back-off. They are passed to
    `on_failure`, or logged without it.

    `is_expected` tells which errors say nothing about the state of the broker. After such an error
    the back-off does not grow.
    """

    def __init__(
        self,
        broker: Broker,
        name: str,
        session: Session,
        *,
        backoff: Backoff | None = None,
        on_state: OnState | None = None,
        on_failure: OnFailure | None = None,
        is_expected: Callable[[Exception], bool] = lambda _error: False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._broker = broker
        self._name = name
        self._session = session
        self._backoff = backoff or Backoff()
        self._on_state = on_state
        self._on_failure = on_failure or self._log
        self._is_expected = is_expected
        self._sleep = sleep
        self._chance = chance
        self._stopping = asyncio.Event()
        self._failures = 0
        self._begun, self._told = False, ""
        self.state: SupervisedState = SupervisedState.CONNECTING
        self.reason: str = ""
        """The reason of the state. While connecting, the last failure."""
        self.trouble: Exception | None = None
        """The error that ended the last connection or prevented it."""
        self.tried: asyncio.Event = asyncio.Event()
        """Set after the first failure."""
        self.connections: int = 0
        """Number of connections opened so far."""

    async def run(self) -> None:
        """Connect and run sessions until stopped."""
        try:
            while not self._stopping.is_set():
                await self._unless_stopped(self._once())
                if not self._stopping.is_set():
                    pause = self._backoff.delay(self._failures, self._chance())
                    await self._unless_stopped(self._pause(pause))
        finally:
            self._enter(SupervisedState.CLOSED, self.reason)

    def stop(self) -> None:
        """Stop the loop: cancel the session and close the connection."""
        self._stopping.set()

    async def _pause(self, seconds: float) -> None:
        await self._sleep(seconds)

    async def _once(self) -> None:
        """Open one connection and run its session to the end."""
        self._enter(SupervisedState.CONNECTING, self.reason)
        began = asyncio.get_running_loop().time()
        try:
            await self._connect()
            self._fail("the session ended")
        except _FATAL:
            raise
        except LoginRefused as error:
            if not self.connections:
                raise
            self._fail(str(error), error)
        except HopbackError as error:
            self._fail(str(error), error)
        except Exception as error:
            _LOG.exception("%s at %s: session failed", self._name, self._broker.address)
            self._fail(f"{type(error).__name__}: {error}", error)
        if asyncio.get_running_loop().time() - began >= self._backoff.stable:
            self._failures = 1

    def _log(self, error: Exception) -> None:
        if isinstance(error, HopbackError):
            _LOG.warning("%s: %s", self._name, error)

    def _fail(self, reason: str, error: Exception | None = None) -> None:
        is_expected = error is not None and self._is_expected(error)
        self._failures = 1 if is_expected else self._failures + 1
        self.reason = reason
        if error is not None:
            self.trouble = error
            self.tried.set()
            self._on_failure(error)

    async def _connect(self) -> None:
        connection = await self._broker.connect(self._name)
        self.connections += 1
        try:
            self._enter(SupervisedState.READY, "")
            if isinstance(connection, WatchesBlocking):
                connection.watch_blocking(self._on_blocking)
            # The session, ended as soon as its connection has ended.
            session, ending = await first_of(self._session(connection), connection.wait_closed())
            if session is not None:
                session.result()
            elif ending is not None and (error := ending.result()) is not None:
                raise error
        finally:
            await connection.close()

    def _on_blocking(self, blocked: bool, reason: str) -> None:
        self._enter(SupervisedState.BLOCKED if blocked else SupervisedState.READY, reason)

    def _enter(self, state: SupervisedState, reason: str) -> None:
        changed = state is not self.state or reason != self._told or not self._begun
        self._begun, self._told = True, reason
        self.state = state
        self.reason = reason
        if changed and self._on_state is not None:
            self._on_state(state, reason)

    async def _unless_stopped(self, work: Awaitable[None]) -> None:
        """Await the work, but cancel it on `stop`."""
        doing, _ = await first_of(work, self._stopping.wait())
        if doing is not None:
            doing.result()
