"""The pace of a job: its rate, and the requests of operators to pause, cancel or change it."""

from __future__ import annotations

import asyncio

_CATCH_UP_S = 0.05
"""Late by less is made up for, as the clock of an event loop is coarse; after a stall there is no burst."""


class Control:
    """A hand on a running job."""

    def __init__(self, rate: float | None = None) -> None:
        self.rate = rate
        self.is_paused: bool = False
        self.is_cancelled: bool = False
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

    async def stays_at(self, rate: float | None) -> bool:
        """Wait until it may go on, or has to end; False as soon as another rate is wanted meanwhile."""
        while self.is_paused and not self.is_cancelled and self.rate == rate:
            self._changed.clear()
            await self._changed.wait()
        return self.is_cancelled or not self.is_paused

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
                self._last = max(due, loop.time() - _CATCH_UP_S)
                return
