"""Sample the depths of all queues over time.

Samples are kept in the journal, so they survive a restart, and two services that share a journal take no more
samples than one.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hopback.ops.contract.surveys import QueueTrend, TrendSample
from hopback.ops.contract.values import Moment, QueueSummary

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback.ops.documents import Documents

SAMPLE_S = 300.0
"""Seconds between two samples of a queue."""
_TREND = "trend"
_DAY_S = 86_400.0  # seconds of the line that a list shows
_FINE = 288
"""Number of recent samples that are all kept: a day."""
_COARSE_S = 3600.0
"""Seconds between two older samples that are kept."""
_COARSE = 720
"""Number of older samples that are kept: a month."""
_DRAWN = 48
"""Points of the small line that shows a day in a list."""


class Trends:
    """The depths of all queues over time. `recent` is the last day of each queue, as a list draws it."""

    def __init__(
        self, documents: Documents, queues: Callable[[], Awaitable[tuple[QueueSummary, ...]]]
    ) -> None:
        self._documents = documents
        self._queues = queues
        self.recent: dict[str, QueueTrend] = {}

    async def of(self, queue: str) -> QueueTrend:
        """Return all samples of one queue."""
        kept = (await self._documents.read(_TREND, QueueTrend)).get(queue, QueueTrend(queue))
        return QueueTrend(queue, kept.samples, last_day(kept, self._documents.clock.now()).arrived)

    async def sample(self) -> None:
        """Keep the depth of each queue, unless a sample was taken very recently."""
        now, kept = self._documents.clock.now(), await self._documents.read(_TREND, QueueTrend)
        changed: dict[str, QueueTrend] = {}
        for one in await self._queues():
            past = kept.setdefault(one.queue, QueueTrend(one.queue)).samples
            if one.messages is None or (past and now - past[-1].at < SAMPLE_S * 0.9):
                continue
            samples = thin_samples((*past, TrendSample(Moment(now), one.messages)))
            kept[one.queue] = changed[one.queue] = QueueTrend(one.queue, samples)
        self.recent = {queue: last_day(trend, now) for queue, trend in kept.items()}
        await self._documents.write(_TREND, changed)


def last_day(trend: QueueTrend, now: float) -> QueueTrend:
    """Return some samples of the last day, and the sum of all growth between its samples."""
    recent = [one for one in trend.samples if one.at >= now - _DAY_S]
    arrived = sum(max(b.messages - a.messages, 0) for a, b in pairwise(recent))
    step = max(-(-len(recent) // _DRAWN), 1)
    # Counted from the end, so that the newest sample is among them.
    return QueueTrend(trend.queue, tuple(recent[::-step][::-1]), arrived)


def thin_samples(samples: tuple[TrendSample, ...]) -> tuple[TrendSample, ...]:
    """Return every sample of the last day and one sample per hour for the time before that."""
    fine, older = samples[-_FINE:], samples[:-_FINE]
    hours: dict[int, TrendSample] = {}
    for one in older:
        hours.setdefault(int(one.at // _COARSE_S), one)
    return (*tuple(hours.values())[-_COARSE:], *fine)
