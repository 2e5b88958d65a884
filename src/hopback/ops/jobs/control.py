"""Requests of operators to a running job, such as pausing it or changing its rate."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hopback.ops.contract.values import JobState

_LONGEST_S = 31_536_000.0
"""Seconds between two messages, a year. A tiny rate has an infinite wait. Minus infinity plus that is not
a number, and with such a deadline no timer of the event loop is reliable any more.
"""
_CATCH_UP_S = 0.05
"""Seconds of delay that the pacer makes up for, because the clock of the event loop is not precise.
After a longer delay, the job continues with its rate and not with a burst.
"""


class EndJob(Exception):
    """End the job with a state and a reason."""

    def __init__(self, state: JobState, reason: str) -> None:
        super().__init__(reason)
        self.state = state


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """The changes that operators have requested. The job can be running in any process."""

    paused: bool = False
    cancelled: bool = False
    rate: float | None = None


class Control:
    """The latest request of operators to a job that runs in this process."""

    def __init__(self, rate: float | None = None) -> None:
        self._request = ControlRequest(rate=rate)
        self._changed = asyncio.Event()

    @property
    def rate(self) -> float | None:
        return self._request.rate

    @property
    def is_cancelled(self) -> bool:
        return self._request.cancelled

    @property
    def is_paused(self) -> bool:
        """Whether the job has to wait. If it is cancelled, it ends instead."""
        return self._request.paused and not self._request.cancelled

    @property
    def is_interrupting(self) -> bool:
        """Whether the job has to pause or end."""
        return self.is_paused or self.is_cancelled

    def set(self, request: ControlRequest) -> None:
        if request != self._request:
            self._request = request
            self._changed.set()

    def check(self) -> None:
        """Raise EndJob if the job is cancelled."""
        if self.is_cancelled:
            raise EndJob(JobState.CANCELLED, "cancelled")

    async def wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def wait_while_paused(self) -> None:
        while self.is_paused:
            await self.wait_for_change()

    async def sleep(self, seconds: float) -> bool:
        """Wait for some seconds. Returns False early if the request changes."""
        try:
            async with asyncio.timeout(seconds):
                await self.wait_for_change()
        except TimeoutError:
            return True
        return False


class Pacer:
    """Limit the number of messages to the requested rate."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._last = float("-inf")

    async def turn(self) -> None:
        """Wait until the next message can be sent, or until the job has to pause or end."""
        loop = asyncio.get_running_loop()
        while (rate := self._control.rate) and not self._control.is_interrupting:
            due = self._last + min(1 / rate, _LONGEST_S)
            if due <= loop.time() or await self._control.sleep(due - loop.time()):
                self._last = max(due, loop.time() - _CATCH_UP_S)
                return
