"""Measure how fast a job finishes messages."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.ops.contract.values import Counts

# seconds over which the rate is measured. It is steady, but still follows a change of the rate.
_SPAN_S = 10.0


class JobMeter:
    """Measure the rate of finished messages over the last `_SPAN_S` seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, at: float, counts: Counts) -> None:
        """Record the progress of the job at a time in seconds."""
        self._samples.append((at, counts.selected - counts.remaining))
        while len(self._samples) > 2 and at - self._samples[0][0] > _SPAN_S:
            self._samples.popleft()

    @property
    def rate(self) -> float | None:
        """Messages per second, or None if there are fewer than two samples."""
        if len(self._samples) < 2:
            return None
        (began, before), (now, after) = self._samples[0], self._samples[-1]
        return (after - before) / (now - began) if now > began else None
