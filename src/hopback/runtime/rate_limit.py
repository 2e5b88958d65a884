"""Limit the rate of handlers.

Messages are started at regular intervals. While they wait, they stay in the pool's queue and don't
occupy a worker. Delays of up to `_CATCH_UP_S` are compensated.
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
"""Maximum delay that is compensated, in seconds."""

_SLOWEST = 1 / 60
"""Minimum rate in messages per second. Deliveries of a slower handler would reach the consumer
timeout.
"""

_UNITS = {"s": 1, "m": 60, "h": 3600}
_FORM = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)/([smh])", re.ASCII)


def read_rate(rate: str | None, *, where: str) -> float | None:
    """Parse a rate such as `"100/s"`. Returns the number of messages per second.

    Raises:
        InvalidDeclaration: If the rate is invalid.
    """
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
    """Limits the rate of messages. `wake` is called when the next message is due."""

    def __init__(self, rate: float, wake: Callable[[], object]) -> None:
        self._interval = 1 / rate
        self._wake = wake
        self._next = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def remaining(self) -> float:
        """Number of seconds until the next message is due."""
        return max(0.0, self._next - loop_time())

    def is_due(self) -> bool:
        """Return True if a message is due. Otherwise `wake` is called once it is."""
        if loop_time() >= self._next:
            return True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(self._next, self._on_due)
        return False

    def take(self, count: int = 1) -> None:
        earliest = loop_time() - _CATCH_UP_S
        self._next = max(self._next, earliest) + count * self._interval

    def _on_due(self) -> None:
        self._timer = None
        self._wake()


class RatedItems(KeyedItems[T]):
    __slots__ = ("_rate",)

    def __init__(self, rate: float, wake: Callable[[], object]) -> None:
        super().__init__()
        self._rate = RateLimit(rate, wake)

    @property
    def has_ready(self) -> bool:
        return bool(self._ready) and self._rate.is_due()

    @property
    def is_due(self) -> bool:
        return self._rate.is_due()

    def take(self) -> tuple[str | int | None, T]:
        self._rate.take()
        return super().take()
