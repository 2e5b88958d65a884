"""Clocks: the system clock and a manual one for tests."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Returns the time in seconds since 1970."""

    def now(self) -> float:
        """Seconds since 1970, UTC."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds since 1970, UTC."""
        return time.time()


class ManualClock:
    """A clock that changes only when it is set. It never runs backwards."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        """Seconds since 1970, UTC."""
        return self._now

    def advance_to(self, moment: float) -> None:
        """Move to `moment`. Raise ValueError if it is in the past."""
        if moment < self._now:
            raise ValueError(f"expected a moment not before {self._now}, got {moment}")
        self._now = moment

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`."""
        self.advance_to(self._now + seconds)
