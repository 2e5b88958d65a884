"""Inflow over time: constant stretches, one after the other, those that are nearly alike joined."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["SAME", "TINY", "Stream", "Stretch", "alike"]

TINY = 1e-7
"""Seconds or messages: below what double precision keeps of a day."""
SAME = 0.002
"""Rates that differ by less than this part of their sum are one rate."""


@dataclass(slots=True)
class Stretch:
    """Constant inflow from `begin` to `end`: rates by class, and their sum."""

    begin: float
    end: float
    rates: list[float]
    total: float


class Stream:
    """Inflow over time: stretches in order, those that are nearly alike joined."""

    __slots__ = ("_grain", "stretches")

    def __init__(self, grain: float) -> None:
        self.stretches: deque[Stretch] = deque()
        self._grain = grain

    def push(self, begin: float, end: float, rates: list[float], now: float = 0.0) -> None:
        """Add a stretch behind the others; what has flowed before `now` is averaged with nothing."""
        total = sum(rates)
        last = self.stretches[-1] if self.stretches else None
        if last is not None and last.begin < now < last.end:
            last.begin = now
        if last is None or begin - last.end > TINY:
            if total > 0:
                self.stretches.append(Stretch(begin, end, rates, total))
            return
        begin = last.end  # the run time may have shrunk: a retry queue keeps the order
        if end - begin <= 0:
            return
        short = last.end - last.begin < self._grain or end - begin < self._grain
        if not short and not alike(last, rates, total):
            self.stretches.append(Stretch(begin, end, rates, total))
            return
        old, new = last.end - last.begin, end - begin
        share = new / (old + new)
        last.rates = [a + (b - a) * share for a, b in zip(last.rates, rates, strict=True)]
        last.total += (total - last.total) * share
        last.end = end

    def at(self, now: float) -> Stretch | None:
        """The stretch that flows now, or else the next one."""
        stretches = self.stretches
        while stretches and stretches[0].end <= now + TINY:
            stretches.popleft()
        return stretches[0] if stretches else None


def alike(last: Stretch, rates: list[float], total: float) -> bool:
    """Whether rates are so near to those of a stretch that they are one.

    Averages of a flow that has ended come near to nothing and never reach it: that is nothing, too.
    """
    most = max(SAME * max(last.total, total), TINY)
    return all(abs(a - b) <= most for a, b in zip(last.rates, rates, strict=True))
