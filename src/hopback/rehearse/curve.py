"""A curve of straight lines, and its values at given moments."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Cumulative", "differences"]


class Cumulative:
    """Corners of a curve, in the order of time; it begins at 0, 0 and ends as it last was."""

    __slots__ = ("moments", "values")

    def __init__(self) -> None:
        self.moments: list[float] = [0.0]
        self.values: list[float] = [0.0]

    @property
    def last(self) -> float:
        """The value at the end."""
        return self.values[-1]

    def add(self, begin: float, end: float, amount: float) -> None:
        """Grow by an amount, evenly from `begin` to `end`."""
        value = self.values[-1]
        begin = max(begin, self.moments[-1])
        if begin > self.moments[-1]:
            self.to(begin, value)
        self.to(max(end, begin), value + amount)

    def hold(self, begin: float, end: float, value: float) -> None:
        """Be this value from `begin` to `end`."""
        self.to(begin, value)
        self.to(end, value)

    def to(self, moment: float, value: float) -> None:
        """Go straight to a value; a corner on a straight line is left out."""
        moments, values = self.moments, self.values
        if len(moments) > 1 and values[-1] == value == values[-2]:
            moments[-1] = moment
            return
        moments.append(moment)
        values.append(value)

    def at(self, moment: float) -> float:
        """The value at one moment."""
        return self.sampled((moment,))[0]

    def when(self, value: float) -> float:
        """When it first reaches a value, of a curve that never falls; infinity if it does not."""
        moments, values = self.moments, self.values
        place = bisect_left(values, value)
        if place == len(values):
            return math.inf
        if place == 0:
            return moments[0]
        low, high = values[place - 1], values[place]
        begin, end = moments[place - 1], moments[place]
        return begin + (end - begin) * (value - low) / (high - low)

    def sampled(self, times: Sequence[float]) -> list[float]:
        """The values at these moments; of a jump, the later one."""
        moments, values = self.moments, self.values
        most = len(moments) - 1
        found = []
        for time in times:
            place = bisect_right(moments, time)
            if place > most:
                found.append(values[most])
            elif place == 0:
                found.append(0.0)
            else:
                begin, end = moments[place - 1], moments[place]
                share = (time - begin) / (end - begin)
                found.append(values[place - 1] + (values[place] - values[place - 1]) * share)
        return found


def differences(values: Sequence[float], times: Sequence[float]) -> tuple[float, ...]:
    """Growth per second before each moment; the first is that of the second."""
    steps = [
        (after - before) / (end - begin)
        for before, after, begin, end in zip(values, values[1:], times, times[1:], strict=False)
    ]
    return (steps[0], *steps) if steps else (0.0,) * len(values)
