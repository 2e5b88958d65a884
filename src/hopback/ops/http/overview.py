"""Recent answers about one broker: depths, trends, errors, candidates, the drawing of its topology."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hopback.errors import HopbackError
from hopback.ops.brokers.recent import Recent
from hopback.ops.contract.job_meter import JobMeter
from hopback.ops.contract.requests import GroupBy
from hopback.ops.contract.values import Job, JobState, QueueSummary, SessionView
from hopback.ops.page.topology_drawing import TopologyDrawings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from hopback.clock import Clock
    from hopback.ops.contract.candidates import CandidateList
    from hopback.ops.contract.surveys import ErrorOverview
    from hopback.ops.operations import Operations

_FRESH_S = 1.0  # seconds for which requests share a sweep
# A trend of five minutes, with a sample at each tick in which RabbitMQ counts its queues anew.
_BETWEEN_SAMPLES_S = 5.0
_SAMPLES = 60
BETWEEN_SWEEPS_S = 5.0
"""Seconds between two sweeps without requests: the interval of samples."""
FIRST_AT_ONCE = 2
"""Brokers that are read for the first time at the same time. A larger number delays the pages."""
_LONGEST_WAIT_S = 2.0  # seconds that the API's list of brokers waits for one that was never read


@dataclass(frozen=True, slots=True)
class Swept:
    """The dead-letter queues at the time `at`. `error` is the reason why there is no newer sweep."""

    queues: tuple[QueueSummary, ...]
    at: float
    error: Exception | None = None

    def age(self, now: float) -> float:
        """Return the age in seconds."""
        return max(now - self.at, 0.0)


class Sweep:
    """Reads all dead-letter queues at most once a second."""

    def __init__(
        self, read: Callable[[], Awaitable[tuple[QueueSummary, ...]]], clock: Clock
    ) -> None:
        self._read = read
        self._clock = clock
        self._recent = Recent(self._sweep, _FRESH_S, clock)
        self._succeeded: Swept | None = None
        self._trends: dict[str, deque[tuple[float, int]]] = {}
        self._content: object = None
        self.changed_at: float = float("-inf")
        """The time when the content of a sweep last changed."""

    async def get(self) -> Swept:
        """Return the queues, at most a second old. Raise the error of an unavailable broker."""
        swept = await self.get_or_last()
        if swept.error is not None:
            raise swept.error
        return swept

    async def get_or_last(self, first_s: float | None = None) -> Swept:
        """Return the same. While the broker is unavailable, return the last sweep with the error.

        NotReadYet if the first sweep takes longer than `first_s` seconds. None waits for its end.
        """
        return await self._recent.get(first_s)

    @property
    def known(self) -> Swept | None:
        """The last sweep, without a new one. None before the first sweep has ended."""
        return self._recent.last

    def forget(self) -> None:
        """Sweep anew at the next request: the set of dead-letter queues has changed."""
        self._succeeded = None
        self._recent.drop()

    @property
    def last(self) -> Swept:
        """The last sweep, empty before the first one. It does not wait."""
        return self.known or Swept((), self._clock.now())

    def trend(self, queue: str) -> tuple[tuple[float, int], ...]:
        """Return the depths of the last minutes, the oldest first."""
        return tuple(self._trends.get(queue, ()))

    async def run(self, delay: float = 0.0) -> None:
        """Sweep every few seconds without requests, so that trends have samples.

        `delay` distributes the sweeps of many brokers, in seconds before the second sweep.
        """
        with suppress(Exception):
            await self.get()
        await asyncio.sleep(delay)
        while True:
            with suppress(Exception):  # reported to the next requests
                await self.get()
            await asyncio.sleep(BETWEEN_SWEEPS_S)

    async def _sweep(self) -> Swept:
        try:
            swept = self._succeeded = Swept(await self._read(), self._clock.now())
        except Exception as error:  # reported to the next requests
            now = self._clock.now()
            swept = replace(self._succeeded or Swept((), now), error=error)
        else:
            now = swept.at
            self._record(swept)
        content = (
            swept.error is None,
            [
                (
                    one.queue,
                    one.depth.total,
                    one.depth.unacked,
                    one.active_job and (one.active_job.id, one.active_job.changes),
                )
                for one in swept.queues
            ],
        )
        if content != self._content:
            self._content, self.changed_at = content, now
        return swept

    def _record(self, swept: Swept) -> None:
        """Add the depths of a sweep to the trends."""
        for gone in self._trends.keys() - {summary.queue for summary in swept.queues}:
            del self._trends[gone]
        for summary in swept.queues:
            past = self._trends.setdefault(summary.queue, deque(maxlen=_SAMPLES))
            total = summary.depth.total
            if total is not None and (not past or swept.at - past[-1][0] >= _BETWEEN_SAMPLES_S):
                past.append((swept.at, total))


async def read_all(
    sweeps: Sequence[Sweep], first_s: float | None = _LONGEST_WAIT_S
) -> list[Swept | None]:
    """Return the last sweep of each broker. None for a broker that has not answered yet.

    Brokers are swept in the background every few seconds. This only waits for those without a sweep, at most
    `first_s` seconds. None waits for all of them.
    """
    unread = [each for each in sweeps if each.known is None]
    with suppress(TimeoutError):
        async with asyncio.timeout(first_s):
            for at in range(0, len(unread), FIRST_AT_ONCE):
                few = unread[at : at + FIRST_AT_ONCE]
                await asyncio.gather(*(each.get_or_last() for each in few))
    return [each.known for each in sweeps]


_FOLLOWED = 100  # jobs with a speed: more than pages are open at a time


class JobSpeeds:
    """The speeds of jobs whose pages are open, from the progress that they showed in the last seconds."""

    def __init__(self) -> None:
        self._meters: OrderedDict[str, JobMeter] = OrderedDict()

    def of(self, job: Job, now: float) -> float | None:
        """Return messages per second. None if the speed is unknown or 0."""
        if job.state is not JobState.RUNNING:
            self._meters.pop(job.id, None)
            return None
        meter = self._meters.setdefault(job.id, JobMeter())
        self._meters.move_to_end(job.id)
        if len(self._meters) > _FOLLOWED:
            self._meters.popitem(last=False)
        meter.add(now, job.counts)
        return meter.rate or None


_MOST = 1000  # queues with an insight: a name and a few numbers each


@dataclass(frozen=True, slots=True)
class Insight:
    """The most frequent error of a browse session."""

    error: str
    count: int
    seen: int
    oldest: float | None
    at: float


class Insights:
    """The last insight into each queue."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Insight] = OrderedDict()

    @property
    def known(self) -> Mapping[str, Insight]:
        """By queue."""
        return self._known

    async def remember(self, operations: Operations, view: SessionView) -> None:
        """Record the most frequent error of a session."""
        groups = (await operations.groups(view.id, GroupBy.FINGERPRINT)).items
        if not groups:
            self._known.pop(view.queue, None)
            return
        top = groups[0]
        times = [group.first for group in groups if group.first is not None]
        error = top.sample.error or top.sample.error_message
        self._known[view.queue] = Insight(
            error, top.count, view.held, min(times, default=None), view.opened_at
        )
        self._known.move_to_end(view.queue)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)


_EXPENSIVE_FRESH_S = 10.0  # seconds: candidates and surveys do not change by the second


class RecentAnswers:
    """The expensive answers about a broker. All visitors share them."""

    def __init__(self, operations: Operations) -> None:
        clock = operations.clock
        self.sweep: Sweep = Sweep(operations.queues, clock)
        self.drawings: TopologyDrawings = TopologyDrawings(operations.broker)
        self.candidates: Recent[CandidateList] = Recent(
            operations.candidates, _EXPENSIVE_FRESH_S, clock
        )
        self.errors: Recent[ErrorOverview] = Recent(operations.errors, _EXPENSIVE_FRESH_S, clock)
        self.insights: Insights = Insights()
        self.speeds: JobSpeeds = JobSpeeds()
        self.surveying: set[asyncio.Task[ErrorOverview]] = set()
        """The survey that a visitor started and does not wait for."""

    async def compute(self) -> None:
        """Compute the answers of the first pages. The pages report an unavailable broker."""
        with suppress(HopbackError):
            await self.sweep.get()
            await self.drawings.get()
            await self.errors.get()
        with suppress(HopbackError):  # a broker without management has no candidates
            await self.candidates.get()
