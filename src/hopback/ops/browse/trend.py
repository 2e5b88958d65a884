"""Sample the depths of all queues over time.

Samples are stored in the journal. They are available after a restart, and services that share a
journal do not take more samples than a single one.
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
"""Seconds between samples of a queue."""
_TREND = "trend"
_DAY_S = 86_400.0  # seconds covered by the trend in a list
_FINE = 288
"""Number of recent samples that are all kept, which cover one day."""
_COARSE_S = 3600.0
"""Seconds between older samples that are kept."""
_COARSE = 720
"""Number of older samples that are kept, which cover one month."""
_DRAWN = 48
"""Maximum number of points in the trend of a day that is shown in lists."""


class Trends:
    """The depths of all queues over time. `recent` contains the last day of each queue, for use in
    lists.
    """

    def __init__(
        self, documents: Documents, queues: Callable[[], Awaitable[tuple[QueueSummary, ...]]]
    ) -> None:
        self._documents = documents
        self._queues = queues
        self.recent: dict[str, QueueTrend] = {}

    async def of(self, queue: str) -> QueueTrend:
        """Return all samples of a queue."""
        kept = (await self._documents.read(_TREND, QueueTrend)).get(queue, QueueTrend(queue))
        return QueueTrend(queue, kept.samples, last_day(kept, self._documents.clock.now()).arrived)

    async def sample(self) -> None:
        """Store the depth of each queue, unless another sample was stored a short time ago."""
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
    """Return some samples of the last day, and the sum of all increases between its samples."""
    recent = [one for one in trend.samples if one.at >= now - _DAY_S]
    arrived = sum(max(b.messages - a.messages, 0) for a, b in pairwise(recent))
    step = max(-(-len(recent) // _DRAWN), 1)
    # Start at the end, so that the newest sample is included.
    return QueueTrend(trend.queue, tuple(recent[::-step][::-1]), arrived)


def thin_samples(samples: tuple[TrendSample, ...]) -> tuple[TrendSample, ...]:
    """Keep all samples of the last day, and one per hour of the time before."""
    fine, older = samples[-_FINE:], samples[:-_FINE]
    hours: dict[int, TrendSample] = {}
    for one in older:
        hours.setdefault(int(one.at // _COARSE_S), one)
    return (*tuple(hours.values())[-_COARSE:], *fine)
