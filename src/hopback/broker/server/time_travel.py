"""The server's clock: the system clock, or a virtual clock that tests advance.

The broker's deadlines (TTLs, queue expiry, timeouts) follow this clock. Heartbeats and socket
timeouts always use real time.
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
"""Interval between checks for busy clients."""
_QUIET = 3
"""Checks without client activity after which all clients count as idle."""
_STUBBORN = 50
"""Checks after which a client also counts as idle if it holds a delivery."""
_LONGEST_WAIT_S = 10.0
"""Maximum total time in real seconds that an advance waits for busy clients."""
_A_TURN = 100
"""Deadlines processed before other tasks get a turn."""
_LONGEST_S = 10 * 365 * 24 * 3600.0
"""Seconds, ten years. A longer advance is probably given in milliseconds by mistake."""


@dataclass(frozen=True, slots=True)
class Advanced:
    """The result of an advance: the time now and the number of deadlines passed."""

    now: float
    deadlines: int


class ServerTime(Protocol):
    """The clock of one broker and the timer that runs its deadlines."""

    kind: ClockKind

    @property
    def clock(self) -> Clock:
        """The clock itself."""

    def start(self, broker: ServedBroker) -> None:
        """Let time pass from now on."""

    async def stop(self) -> None:
        """Time is over."""

    async def advance(self, seconds: float) -> Advanced:
        """Advance by `seconds` in a single step. Raise ValueError if the clock cannot advance or cannot
        advance that far.
        """


def time_of(kind: ClockKind) -> ServerTime:
    if kind is ClockKind.SYSTEM:
        return SystemTime()
    return AutoTime() if kind is ClockKind.AUTO else VirtualTime()


class SystemTime:
    """The system clock. The event loop runs the node's deadlines."""

    kind = ClockKind.SYSTEM

    def __init__(self) -> None:
        self.clock: SystemClock = SystemClock()
        self._broker: ServedBroker | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, broker: ServedBroker) -> None:
        """Keep the deadlines on the running loop."""
        self._broker = broker
        broker.node.timers.on_earlier = self._arm

    async def stop(self) -> None:
        """Stop the timer."""
        if self._broker is not None:
            self._broker.node.timers.on_earlier = None
        if self._timer is not None:
            self._timer.cancel()

    async def advance(self, seconds: float) -> Advanced:
        """Raise ValueError, because the system clock cannot be advanced."""
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
    """A clock that stops until it is advanced, deadline by deadline.

    After each deadline that notified clients, the clock gives them time to react. A chain of
    retries therefore completes within one advance, as it would in real time.
    """

    kind = ClockKind.VIRTUAL

    def __init__(self) -> None:
        self.clock: ManualClock = ManualClock(SystemClock().now())
        self._broker: ServedBroker | None = None
        self._turning = asyncio.Lock()

    def start(self, broker: ServedBroker) -> None:
        """Attach the broker whose deadlines the clock runs."""
        self._broker = broker

    async def stop(self) -> None:
        """No timer to stop."""

    async def advance(self, seconds: float) -> Advanced:
        """Advance by `seconds` in a single step. Concurrent calls run sequentially."""
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
        """Advance to the deadline. Return whether a client was notified."""
        if self._broker is None:
            return False
        before = self._broker.spoken
        self.clock.advance_to(max(due, self.clock.now()))
        self._broker.node.run_due()
        return self._broker.spoken != before

    async def _settle(self, left_s: float) -> float:
        """Wait until clients have reacted. Return the real seconds that took."""
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
    """A clock that jumps to the next deadline as soon as the broker is idle.

    The broker is idle when no client has recently been active and no client holds a delivery.
    """

    kind = ClockKind.AUTO

    def __init__(self) -> None:
        super().__init__()
        self._task: asyncio.Task[None] | None = None

    def start(self, broker: ServedBroker) -> None:
        """Watch the clients from now on."""
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
