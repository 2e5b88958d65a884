"""The pace of a job: its rate, and the requests of operators to pause, cancel or change it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

_CATCH_UP_S = 0.05
"""Seconds of delay that the pacer makes up for, because the clock of an event loop is coarse. After a longer
delay the job continues at its rate, without a burst."""


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """The changes that operators request of a running job, in whichever process it runs."""

    paused: bool = False
    cancelled: bool = False
    rate: float | None = None


class Control:
    """The requests of operators to a running job: its rate, a pause or its end."""

    def __init__(self, rate: float | None = None) -> None:
        self.rate = rate
        self.is_paused: bool = False
        self.is_cancelled: bool = False
        self._changed = asyncio.Event()

    @property
    def is_interrupting(self) -> bool:
        """Whether the job has to pause or end."""
        return self.is_paused or self.is_cancelled

    def set(self, new: ControlRequest) -> None:
        if new != ControlRequest(self.is_paused, self.is_cancelled, self.rate):
            self.is_paused, self.is_cancelled, self.rate = new.paused, new.cancelled, new.rate
            self._changed.set()

    async def wait(self) -> None:
        """Wait until the job is no longer paused, or is cancelled."""
        while self.is_paused and not self.is_cancelled:
            self._changed.clear()
            await self._changed.wait()

    async def wait_at(self, rate: float | None) -> bool:
        """Wait as `wait` does. Return False if the rate is changed from `rate` meanwhile."""
        while self.is_paused and not self.is_cancelled and self.rate == rate:
            self._changed.clear()
            await self._changed.wait()
        return self.is_cancelled or not self.is_paused

    async def sleep(self, seconds: float) -> bool:
        """Wait for some seconds. Return False at once if a request changes."""
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return True
        return False


class Pacer:
    """Limits messages to the rate of the control."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._last = float("-inf")

    async def turn(self) -> None:
        """Wait until the next message may be sent, or the job has to pause or end."""
        loop = asyncio.get_running_loop()
        while (rate := self._control.rate) and not self._control.is_interrupting:
            due = self._last + 1 / rate
            if due <= loop.time() or await self._control.sleep(due - loop.time()):
                self._last = max(due, loop.time() - _CATCH_UP_S)
                return
