"""One supervising loop per connection: connect, run a session, back off, connect again.

Nothing heals itself below this loop. When a connection ends, everything on it has ended; the
session is started anew on a new connection and rebuilds what it needs from its declarations.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from hopback.errors import HopbackError, LoginRefused, TopologyError, UnsafeOperation
from hopback.waiting import first_of

if TYPE_CHECKING:
    from hopback.broker.port import Broker, Connection

_LOG = logging.getLogger("hopback.broker")
_FATAL = (TopologyError, UnsafeOperation)
"""What a new connection cannot repair: these end the loop."""


class SupervisedState(StrEnum):
    """What an observer sees of a supervised connection."""

    CONNECTING = "connecting"
    READY = "ready"
    BLOCKED = "blocked"
    """The broker takes no publishes for now (memory or disk alarm)."""
    CLOSED = "closed"


OnState: TypeAlias = Callable[[SupervisedState, str], object]
"""Called with each new state and its reason; it must not raise."""
OnFailure: TypeAlias = Callable[[Exception], object]
"""Called with what ended a connection, or kept it from being made; it must not raise."""
Session: TypeAlias = "Callable[[Connection], Awaitable[None]]"
"""What is done with a connection for as long as it lasts."""


@runtime_checkable
class WatchesBlocking(Protocol):
    """A connection that can tell when the broker blocks it."""

    def watch_blocking(self, watcher: Callable[[bool, str], object]) -> None:
        """Call `watcher(blocked, reason)` on each change."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait after the n-th failure in a row: growing, bounded, jittered.

    A session that lasted `stable` seconds counts as a success: the next failure is the first.
    """

    first: float = 0.25
    factor: float = 2.0
    most: float = 30.0
    stable: float = 10.0

    def delay(self, failures: int, chance: float) -> float:
        """Seconds to wait; `chance` in [0, 1) spreads it over the upper half of the step."""
        exponent = min(max(failures, 1) - 1, 64)
        step = min(self.most, self.first * self.factor**exponent)
        return step * (0.5 + chance / 2)


class Supervised:
    """Keeps a session alive on a broker until it is stopped.

    `run` is the loop. It returns after `stop`, and raises only what no new connection can repair (a
    conflict of topologies, a refusal of ours, a user that the broker refuses at the first try; later
    that may be a password that is being changed). Everything else, also an unexpected error of the
    session, is tried again after the back-off; it is told to `on_failure`, or logged without one.
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
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._broker = broker
        self._name = name
        self._session = session
        self._backoff = backoff or Backoff()
        self._on_state = on_state
        self._on_failure = on_failure or self._log
        self._sleep = sleep
        self._chance = chance
        self._stopping = asyncio.Event()
        self._failures = 0
        self._begun, self._told = False, ""
        self.state: SupervisedState = SupervisedState.CONNECTING
        self.reason: str = ""
        """Why the state is what it is; the last failure while connecting."""
        self.trouble: Exception | None = None
        """What ended the last connection, or kept it from being made."""
        self.tried: asyncio.Event = asyncio.Event()
        """Set when something has failed for the first time."""
        self.connections: int = 0
        """How many connections were made so far."""

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
        """Ask the loop to end: the session is cancelled, the connection closed in order."""
        self._stopping.set()

    async def _pause(self, seconds: float) -> None:
        await self._sleep(seconds)

    async def _once(self) -> None:
        """One connection and its session, from beginning to end."""
        self._enter(SupervisedState.CONNECTING, self.reason)
        began = asyncio.get_running_loop().time()
        try:
            await self._connected()
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
        self._failures += 1
        self.reason = reason
        if error is not None:
            self.trouble = error
            self.tried.set()
            self._on_failure(error)

    async def _connected(self) -> None:
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
        """Do the work, but give it up when asked to stop."""
        doing, _ = await first_of(work, self._stopping.wait())
        if doing is not None:
            doing.result()
