"""How fast a job goes: a rate, a window of messages in flight, a ramp, and somebody's hand on it."""

from __future__ import annotations

import asyncio

from hopback.renamed import old_names

__all__ = ["Control", "Pacer"]


_MADE_UP_S = 0.05


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


__getattr__ = old_names(
    __name__,
    {
        "HIGHEST_RATE": "hopback.deadletters.HIGHEST_RATE",
        "MOST_IN_FLIGHT": "hopback.deadletters.MOST_IN_FLIGHT",
        "RAMP": "hopback.deadletters.RAMP",
        "UNHURRIED": "hopback.deadletters.UNHURRIED",
        "Pace": "hopback.deadletters.Pace",
    },
)
