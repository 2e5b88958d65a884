"""How fast a job goes: a rate, a window of messages in flight, a ramp, and somebody's hand on it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

__all__ = ["HIGHEST_RATE", "MOST_IN_FLIGHT", "RAMP", "UNHURRIED", "Control", "Pace", "Pacer"]

HIGHEST_RATE = 1_000_000
"""Messages per second: far beyond what a broker confirms, so that it only stops mistakes."""

MOST_IN_FLIGHT = 10_000
"""Unconfirmed messages of one job: what a broker and this process can hold without harm."""

RAMP = (1, 5, 25)
"""The careful beginning: one message, then five, then twenty-five, then the rest."""

_LONGEST_PAUSE_S = 30.0
_MADE_UP_S = 0.05


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast, and how carefully.

    `rate` is messages per second, None for as fast as it goes. Between the stages of `ramp` the
    job waits `watch_s` seconds and stops if messages come back; None waits as long as the design lets
    a message try, at most two minutes. `tries` is how often a refused message is sent again before the
    job stops; the waits between them grow from `pause_s`.
    """

    rate: float | None = None
    in_flight: int = 500
    ramp: tuple[int, ...] = ()
    watch_s: float | None = None
    tries: int = 5
    pause_s: float = 0.25

    def pause(self, attempt: int) -> float:
        """Seconds to wait before the next attempt."""
        return min(self.pause_s * 2.0 ** min(attempt - 1, 16), _LONGEST_PAUSE_S)

    def stage_ends(self) -> frozenset[int]:
        """After how many messages the job stops to look."""
        sums, total = [], 0
        for size in self.ramp:
            total += size
            sums.append(total)
        return frozenset(sums)


UNHURRIED = Pace()
"""As fast as it goes, within the window, without a ramp."""


class Control:
    """A hand on a running job."""

    def __init__(self, rate: float | None = None) -> None:
        self.rate = rate
        self.is_paused = False
        self.is_cancelled = False
        self._changed = asyncio.Event()

    @property
    def is_calling(self) -> bool:
        """Whether somebody wants it to wait or to end."""
        return self.is_paused or self.is_cancelled

    def set(self, *, paused: bool, cancelled: bool, rate: float | None) -> None:
        """What is wanted from now on."""
        if (paused, cancelled, rate) != (self.is_paused, self.is_cancelled, self.rate):
            self.is_paused, self.is_cancelled, self.rate = paused, cancelled, rate
            self._changed.set()

    async def wait(self) -> None:
        """Return when it may go on, or has to end."""
        while self.is_paused and not self.is_cancelled:
            self._changed.clear()
            await self._changed.wait()

    async def sleep(self, seconds: float) -> bool:
        """Wait so long; whether nothing was changed meanwhile."""
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return True
        return False


class Pacer:
    """Lets messages go at the rate that the control says now."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._last = float("-inf")

    async def turn(self) -> None:
        """Return when it is the next message's turn, or when somebody calls."""
        loop = asyncio.get_running_loop()
        while (rate := self._control.rate) and not self._control.is_calling:
            due = self._last + 1 / rate
            if due <= loop.time() or await self._control.sleep(due - loop.time()):
                # Late by a little is made up for; late by much is not.
                self._last = max(due, loop.time() - _MADE_UP_S)
                return
