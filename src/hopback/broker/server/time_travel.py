"""Clocks of a server: the system clock, or a virtual clock that tests can advance.

They are used for TTLs, queue expiry and timeouts. Heartbeats and socket timeouts always use real
time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hopback.broker.server.settings import ClockKind
from hopback.clock import Clock, ManualClock, SystemClock

if TYPE_CHECKING:
    from hopback.broker.server.served import ServedBroker

_GLANCE_S = 0.01
"""Seconds between checks for client activity."""
_QUIET = 3
"""Number of checks without any activity after which clients are considered idle."""
_STUBBORN = 50
"""Number of checks after which a client is considered idle even if it has unsettled deliveries."""
_LONGEST_WAIT_S = 10.0
"""Maximum number of real seconds to wait for clients while advancing."""
_A_TURN = 100
"""Number of deadlines to run before other tasks get a turn."""
_LONGEST_S = 10 * 365 * 24 * 3600.0
"""Ten years in seconds. If it is longer, the caller has probably used milliseconds."""


@dataclass(frozen=True, slots=True)
class Advanced:
    """The result of an advance: the current time, and how many deadlines have passed."""

    now: float
    deadlines: int


class ServerTime(Protocol):
    """The clock of a broker, including the timer for its deadlines."""

    kind: ClockKind

    @property
    def clock(self) -> Clock:
        """The clock itself."""

    def start(self, broker: ServedBroker) -> None:
        """Start the clock."""

    async def stop(self) -> None:
        """Stop the clock."""

    async def advance(self, seconds: float) -> Advanced:
        """Advance by `seconds` in a single step. Raises ValueError if this is not possible."""


def time_of(kind: ClockKind) -> ServerTime:
    if kind is ClockKind.SYSTEM:
        return SystemTime()
    return AutoTime() if kind is ClockKind.AUTO else VirtualTime()


class SystemTime:
    """The system clock. Deadlines are scheduled on the event loop."""

    kind = ClockKind.SYSTEM

    def __init__(self) -> None:
        self.clock: SystemClock = SystemClock()
        self._broker: ServedBroker | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, broker: ServedBroker) -> None:
        """Schedule the deadlines on the running event loop."""
        self._broker = broker
        broker.node.timers.on_earlier = self._arm

    async def stop(self) -> None:
        if self._broker is not None:
            self._broker.node.timers.on_earlier = None
        if self._timer is not None:
            self._timer.cancel()

    async def advance(self, seconds: float) -> Advanced:
        """Raises ValueError, since the system clock cannot be advanced."""
        raise ValueError(
            f"expected a broker with a virtual clock to advance by {seconds:g} s, got one with the"
            " system clock. Start it with --clock virtual"
        )

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait = max(0.0, due - self.clock.now())
        self._timer = asyncio.get_running_loop().call_later(wait, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._broker is not None:
            node = self._broker.node
            node.run_due()
            due = node.next_deadline()
            if due is not None:
                self._arm(due)


class VirtualTime:
    """A clock that only changes when it is advanced. It stops at each deadline on the way.

    If a deadline has caused notifications, clients have time to react before the clock continues.
    This way, an advance covers a whole chain of retries, as it would in real time.
    """

    kind = ClockKind.VIRTUAL

    def __init__(self) -> None:
        self.clock: ManualClock = ManualClock(SystemClock().now())
        self._broker: ServedBroker | None = None
        self._turning = asyncio.Lock()

    def start(self, broker: ServedBroker) -> None:
        """Set the broker whose deadlines are run."""
        self._broker = broker

    async def stop(self) -> None:
        """Does nothing, because there is no timer."""

    async def advance(self, seconds: float) -> Advanced:
        """Advance by `seconds` in a single step. Concurrent calls are run one after another."""
        if not 0 <= seconds <= _LONGEST_S:
            raise ValueError(f"expected 0 to {_LONGEST_S:.0f} seconds, got {seconds!r}")
        async with self._turning:
            moment = self.clock.now() + seconds
            deadlines, left_s = 0, _LONGEST_WAIT_S
            left_s -= await self._settle(left_s)
            while (due := self._next()) is not None and due <= moment:
                if self._pass(due):
                    left_s -= await self._settle(left_s)
                deadlines += 1
                if deadlines % _A_TURN == 0:
                    await asyncio.sleep(0)
            self.clock.advance_to(max(moment, self.clock.now()))
            return Advanced(self.clock.now(), deadlines)

    def _next(self) -> float | None:
        return None if self._broker is None else self._broker.node.next_deadline()

    def _pass(self, due: float) -> bool:
        """Advance to a deadline. Returns True if a client was notified."""
        if self._broker is None:
            return False
        before = self._broker.spoken
        self.clock.advance_to(max(due, self.clock.now()))
        self._broker.node.run_due()
        return self._broker.spoken != before

    async def _settle(self, left_s: float) -> float:
        """Wait for clients to react. Returns the number of real seconds this took."""
        broker, loop = self._broker, asyncio.get_running_loop()
        begin, quiet = loop.time(), 0
        while broker is not None and (loop.time() - begin) < left_s:
            seen = broker.stirred
            await asyncio.sleep(_GLANCE_S)
            quiet = quiet + 1 if seen == broker.stirred else 0
            if quiet >= (_STUBBORN if broker.is_held() else _QUIET):
                break
        return loop.time() - begin


class AutoTime(VirtualTime):
    """A clock that jumps to the next deadline when the broker is idle.

    This is the case when there was no recent activity and no client has unsettled deliveries.
    """

    kind = ClockKind.AUTO

    def __init__(self) -> None:
        super().__init__()
        self._task: asyncio.Task[None] | None = None

    def start(self, broker: ServedBroker) -> None:
        """Start monitoring the clients."""
        super().start(broker)
        self._task = asyncio.get_running_loop().create_task(self._run(broker), name="auto clock")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, broker: ServedBroker) -> None:
        quiet = 0
        while True:
            seen = broker.stirred
            await asyncio.sleep(_GLANCE_S)
            still = seen == broker.stirred and not broker.is_held()
            quiet = quiet + 1 if still else 0
            if quiet >= _QUIET and (due := self._next()) is not None:
                quiet = 0
                async with self._turning:
                    self._pass(due)
