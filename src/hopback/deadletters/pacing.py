"""How fast a job goes: a rate, a window of messages in flight, a ramp, and somebody's hand on it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

__all__ = ["RAMP", "UNHURRIED", "Control", "Pace", "Pacer"]

RAMP = (1, 5, 25)
"""The careful beginning: one message, then five, then twenty-five, then the rest."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast, and how carefully.

    `rate` is messages per second, None for as fast as it goes. Between the stages of `ramp` the
    job waits `watch_s` seconds and stops if messages come back. `tries` is how often a refused
    message is sent again before the job stops; the waits between them grow from `pause_s`.
    """

    rate: float | None = None
    in_flight: int = 200
    ramp: tuple[int, ...] = ()
    watch_s: float = 5.0
    tries: int = 5
    pause_s: float = 0.25

    def pause(self, attempt: int) -> float:
        """Seconds to wait before the next attempt."""
        return min(self.pause_s * 2.0 ** min(attempt - 1, 16), 30.0)

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
        self.is_cancelled = False
        self._going = asyncio.Event()
        self._going.set()

    @property
    def is_paused(self) -> bool:
        """Whether it is told to wait."""
        return not self._going.is_set()

    def pause(self) -> None:
        """Finish what is in flight, then wait."""
        self._going.clear()

    def resume(self) -> None:
        """Go on."""
        self._going.set()

    def cancel(self) -> None:
        """Finish what is in flight, then give the rest back."""
        self.is_cancelled = True
        self._going.set()

    async def wait(self) -> None:
        """Return when it may go on."""
        await self._going.wait()


class Pacer:
    """Lets messages go at the rate that the control says now."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._next = 0.0

    async def turn(self) -> None:
        """Return when it is the next message's turn."""
        rate = self._control.rate
        if not rate:
            return
        now = asyncio.get_running_loop().time()
        begin = max(self._next, now)
        self._next = begin + 1 / rate
        if begin > now:
            await asyncio.sleep(begin - now)
