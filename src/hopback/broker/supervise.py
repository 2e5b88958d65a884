"""Keep a connection open: connect, run a session, wait and reconnect.

All recovery happens in this loop. When a connection is lost, all of its channels are lost as well.
A new session is then started on the next connection and has to declare its objects again.
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
"""Errors that cannot be fixed by reconnecting. They are raised by `run`."""


class SupervisedState(StrEnum):
    CONNECTING = "connecting"
    READY = "ready"
    BLOCKED = "blocked"
    """The broker has blocked publishing because of a memory or disk alarm."""
    CLOSED = "closed"


OnState: TypeAlias = Callable[[SupervisedState, str], object]
"""Called with the new state and its reason. It must not raise exceptions."""
OnFailure: TypeAlias = Callable[[Exception], object]
"""Called with the error that ended or prevented a connection. It must not raise exceptions."""
Session: TypeAlias = "Callable[[Connection], Awaitable[None]]"
"""Runs until the connection is closed."""


@runtime_checkable
class WatchesBlocking(Protocol):
    """A connection that reports when it is blocked by the broker."""

    def watch_blocking(self, watcher: Callable[[bool, str], object]) -> None:
        """Call `watcher(blocked, reason)` when this changes."""


@dataclass(frozen=True, slots=True, init=False)
class Backoff:
    """The delay after consecutive failures. It increases up to a limit and is randomised.

    The number of failures is reset after a session that lasted for `stable`. Durations are
    converted to seconds.
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
        """Return the delay in seconds. `chance` is between 0 and 1 and selects a value from the
        upper half.
        """
        exponent = min(max(failures, 1) - 1, 64)
        step = min(self.most, self.first * self.factor**exponent)
        return step * (0.5 + chance / 2)


class Supervised:
    """Runs a session on a broker and reconnects until stopped.

    `run` returns after `stop`. It only raises errors that reconnecting cannot fix: a topology
    conflict, an UnsafeOperation, or if the first login was refused. If a later login is refused, it
    is retried, because the password may just be changing. All other errors are passed to
    `on_failure` and retried after a delay, including unexpected errors of the session. They are
    logged if there is no `on_failure`.

    `is_expected` returns True for errors that don't mean that the broker has a problem. They do not
    increase the delay.
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
        """The reason for the state. While connecting, this is the last error."""
        self.trouble: Exception | None = None
        """The error that ended or prevented the last connection."""
        self.tried: asyncio.Event = asyncio.Event()
        """Set after the first failure."""
        self.connections: int = 0
        """The number of connections that were opened so far."""

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
        """Cancel the session and close the connection."""
        self._stopping.set()

    async def _pause(self, seconds: float) -> None:
        await self._sleep(seconds)

    async def _once(self) -> None:
        """Open a connection and run a session on it."""
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
            # Cancel the session when its connection is closed.
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
        """Wait for `work`, and cancel it if `stop` is called."""
        doing, _ = await first_of(work, self._stopping.wait())
        if doing is not None:
            doing.result()
