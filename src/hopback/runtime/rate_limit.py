"""The rate of a handler: `rate="100/s"` starts at most 100 messages per second in one process.

A delivery waits for its turn where it waits for a free worker, so that it neither occupies a worker
nor blocks the event loop. The starts are evenly spaced. A late start is made up for within
`_CATCH_UP_S`, because timers are coarse and a busy loop is late.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, TypeVar

from hopback.errors import InvalidDeclaration, Problem
from hopback.runtime.pool import KeyedItems
from hopback.waiting import loop_time

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_CATCH_UP_S = 0.1
"""Lateness in seconds that is made up for. A second may have 10 % more starts than the rate."""

_SLOWEST = 1 / 60
"""Messages per second. A slower handler would hold its deliveries until the consumer timeout."""

_UNITS = {"s": 1, "m": 60, "h": 3600}
_FORM = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)/([smh])", re.ASCII)


def read_rate(rate: str | None, *, where: str) -> float | None:
    """Return messages per second from `"100/s"`. InvalidDeclaration repeats a wrong rate."""
    if rate is None:
        return None
    given: object = rate
    found = _FORM.fullmatch(given) if isinstance(given, str) else None
    per_second = float(found[1]) / _UNITS[found[2]] if found else 0.0
    if per_second < _SLOWEST:
        expected = 'messages per second, minute or hour, as in "100/s", at least 1/m'
        raise InvalidDeclaration((Problem("rate", expected, repr(rate)),), where=where)
    return per_second


class RateLimit:
    """Grants starts at a rate. `wake` is called when a start that was not due becomes due."""

    def __init__(self, rate: float, wake: Callable[[], object]) -> None:
        self._interval = 1 / rate
        self._wake = wake
        self._next = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def remaining(self) -> float:
        """The seconds until the next start."""
        return max(0.0, self._next - loop_time())

    def is_due(self) -> bool:
        """Whether a start is due. Otherwise `wake` is called when it is."""
        if loop_time() >= self._next:
            return True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(self._next, self._on_due)
        return False

    def take(self, count: int = 1) -> None:
        """Count the start of `count` messages."""
        earliest = loop_time() - _CATCH_UP_S
        self._next = max(self._next, earliest) + count * self._interval

    def _on_due(self) -> None:
        self._timer = None
        self._wake()


class RatedItems(KeyedItems[T]):
    """Items of a pool that become ready at a rate."""

    __slots__ = ("_rate",)

    def __init__(self, rate: float, wake: Callable[[], object]) -> None:
        super().__init__()
        self._rate = RateLimit(rate, wake)

    @property
    def has_ready(self) -> bool:
        return bool(self._ready) and self._rate.is_due()

    def take(self) -> tuple[str | None, T]:
        self._rate.take()
        return super().take()
