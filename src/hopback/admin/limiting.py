"""How often each caller may ask: a bucket of turns that fills up with time."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TurnKeeper"]

_MOST_CALLERS = 10_000


class TurnKeeper:
    """Gives each caller `rate` turns a second, and `burst` at once; forgets the longest silent."""

    def __init__(self, rate: float, burst: int, time: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._time = time
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """0 if it is the caller's turn, else the seconds until it is."""
        now = self._time()
        left, since = self._left.pop(caller, (self._burst, now))
        left = min(left + (now - since) * self._rate, self._burst)
        taken = left >= 1.0
        self._left[caller] = (left - 1.0 if taken else left, now)
        if len(self._left) > _MOST_CALLERS:
            self._left.popitem(last=False)
        return 0.0 if taken else (1.0 - left) / self._rate
