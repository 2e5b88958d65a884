"""The server's time: the machine's, or one that tests turn.

What waits in the broker (times to live, leases, timeouts) follows it. Heartbeats and the sockets'
own timeouts are always of the real world, where the clients are.
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
"""How often we look whether clients are still busy."""
_QUIET = 3
"""So many glances without a word from anyone, and nobody is busy."""
_STUBBORN = 50
"""So many, and who holds a delivery means to keep it for now."""
_LONGEST_WAIT_S = 10.0
"""How long one advance waits for busy clients altogether."""
_A_TURN = 100
"""So many deadlines, and others have their turn."""
_LONGEST_S = 10 * 365 * 24 * 3600.0
"""Ten years: more is a mistake in the unit, milliseconds for seconds."""


@dataclass(frozen=True, slots=True)
class Advanced:
    """What an advance came to: the time now, and how many deadlines passed."""

    now: float
    deadlines: int


class ServerTime(Protocol):
    """Who lets time pass for one broker."""

    kind: ClockKind

    @property
    def clock(self) -> Clock:
        """What tells the time."""

    def start(self, broker: ServedBroker) -> None:
        """Let time pass from now on."""

    async def stop(self) -> None:
        """Time is over."""

    async def advance(self, seconds: float) -> Advanced:
        """Let `seconds` pass at once; ValueError where time cannot be turned, or not so far."""


def time_of(kind: ClockKind) -> ServerTime:
    if kind is ClockKind.SYSTEM:
        return SystemTime()
    return AutoTime() if kind is ClockKind.AUTO else VirtualTime()


class SystemTime:
    """The machine's clock; the event loop wakes the node at its deadlines."""

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
        """Wake nobody any more."""
        if self._broker is not None:
            self._broker.node.timers.on_earlier = None
        if self._timer is not None:
            self._timer.cancel()

    async def advance(self, seconds: float) -> Advanced:
        """Nobody turns the machine's clock."""
        raise ValueError(
            f"expected a broker with a virtual clock to advance by {seconds:g} s, got one with the"
            " system's; start it with --clock virtual"
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
    """A clock that stands still until somebody advances it, deadline by deadline.

    After each deadline that let clients hear something, they are given the time to react: a chain
    of retries plays out within one advance as it would in real time.
    """

    kind = ClockKind.VIRTUAL

    def __init__(self) -> None:
        self.clock: ManualClock = ManualClock(SystemClock().now())
        self._broker: ServedBroker | None = None
        self._turning = asyncio.Lock()

    def start(self, broker: ServedBroker) -> None:
        """From now on it can be advanced."""
        self._broker = broker

    async def stop(self) -> None:
        """Nothing happens by itself anyway."""

    async def advance(self, seconds: float) -> Advanced:
        """Let `seconds` pass at once; two who turn the clock take turns."""
        if not 0 <= seconds <= _LONGEST_S:
            raise ValueError(f"expected 0 to {_LONGEST_S:.0f} seconds, got {seconds!r}")
        async with self._turning:
            moment = self.clock.now() + seconds
            deadlines, left_s = 0, _LONGEST_WAIT_S
            left_s -= await self._settled(left_s)
            while (due := self._next()) is not None and due <= moment:
                if self._pass(due):
                    left_s -= await self._settled(left_s)
                deadlines += 1
                if deadlines % _A_TURN == 0:
                    await asyncio.sleep(0)
            self.clock.advance_to(max(moment, self.clock.now()))
            return Advanced(self.clock.now(), deadlines)

    def _next(self) -> float | None:
        return None if self._broker is None else self._broker.node.next_deadline()

    def _pass(self, due: float) -> bool:
        """Let the deadline pass; whether a client heard of it."""
        if self._broker is None:
            return False
        before = self._broker.spoken
        self.clock.advance_to(max(due, self.clock.now()))
        self._broker.node.run_due()
        return self._broker.spoken != before

    async def _settled(self, left_s: float) -> float:
        """Wait until clients are done with what they heard; how long that took."""
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
    """A clock that is the next deadline as soon as nothing else can happen.

    Nothing can happen when no client has said anything for a moment and none holds a delivery.
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
