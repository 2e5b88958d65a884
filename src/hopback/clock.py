"""A clock with the system time, and a manual clock for tests."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The interface of a clock."""

    def now(self) -> float:
        """Return the current time in seconds since the epoch."""


class SystemClock:
    """A clock that returns the system time."""

    def now(self) -> float:
        return time.time()


class ManualClock:
    """A clock for tests. The time only changes when `advance` or `advance_to` is called."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance_to(self, moment: float) -> None:
        """Set the clock to `moment`.

        Raises:
            ValueError: If `moment` is earlier than the current time.
        """
        if moment < self._now:
            raise ValueError(f"expected a moment not before {self._now}, got {moment}")
        self._now = moment

    def advance(self, seconds: float) -> None:
        """Advance the clock by `seconds`."""
        self.advance_to(self._now + seconds)
