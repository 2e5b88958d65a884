"""Recent data about a broker, such as depths, trends, errors, candidates and the topology drawing."""

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
# Trends cover five minutes. RabbitMQ updates its message counts at the same interval as they are
# sampled.
_BETWEEN_SAMPLES_S = 5.0
_SAMPLES = 60
BETWEEN_SWEEPS_S = 5.0
"""Seconds between sweeps in the background, which is also the sampling interval."""
FIRST_AT_ONCE = 2
"""Number of brokers that are read for the first time simultaneously. Pages become slower if it is
higher.
"""
_LONGEST_WAIT_S = 2.0  # seconds to wait in the API's list of brokers for those that were never read


@dataclass(frozen=True, slots=True)
class Swept:
    """The dead-letter queues at the time `at`. `error` is why there is no newer sweep, if there is one."""

    queues: tuple[QueueSummary, ...]
    at: float
    error: Exception | None = None

    def age(self, now: float) -> float:
        return max(now - self.at, 0.0)


class Sweep:
    """Read all dead-letter queues, at most once per second."""

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
        """When the content of a sweep has last changed."""

    async def get(self) -> Swept:
        """Return the queues, which are at most one second old. Raises an error if the broker is
        unavailable.
        """
        swept = await self.get_or_last()
        if swept.error is not None:
            raise swept.error
        return swept

    async def get_or_last(self, first_s: float | None = None) -> Swept:
        """Return the queues. If the broker is unavailable, the last sweep is returned with the
        error.

        Raises NotReadYet if the first sweep takes longer than `first_s` seconds. None means no
        limit.
        """
        return await self._recent.get(first_s)

    @property
    def known(self) -> Swept | None:
        """The last sweep, or None if none has ended yet. Does not start a sweep."""
        return self._recent.last

    def forget(self) -> None:
        """Start a new sweep at the next request, because the set of dead-letter queues has changed."""
        self._succeeded = None
        self._recent.drop()

    @property
    def last(self) -> Swept:
        """The last sweep, or an empty one if none has ended yet. Does not start a sweep."""
        return self.known or Swept((), self._clock.now())

    def trend(self, queue: str) -> tuple[tuple[float, int], ...]:
        """Return the depths of the last minutes, oldest first."""
        return tuple(self._trends.get(queue, ()))

    async def run(self, delay: float = 0.0) -> None:
        """Make a sweep every few seconds, even without requests, to collect samples for trends.

        `delay` is the number of seconds before the second sweep. It spreads the sweeps of several
        brokers.
        """
        with suppress(Exception):
            await self.get()
        await asyncio.sleep(delay)
        while True:
            with suppress(Exception):  # the next requests report the error
                await self.get()
            await asyncio.sleep(BETWEEN_SWEEPS_S)

    async def _sweep(self) -> Swept:
        try:
            swept = self._succeeded = Swept(await self._read(), self._clock.now())
        except Exception as error:  # the next requests report the error
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
        """Add the depths to the trends."""
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
    """Return the last sweep of each broker, or None for brokers that have not responded yet.

    Sweeps run in the background, so this only waits for brokers without a sweep. It waits for up to
    `first_s` seconds, or without a limit if this is None.
    """
    unread = [each for each in sweeps if each.known is None]
    with suppress(TimeoutError):
        async with asyncio.timeout(first_s):
            for at in range(0, len(unread), FIRST_AT_ONCE):
                few = unread[at : at + FIRST_AT_ONCE]
                await asyncio.gather(*(each.get_or_last() for each in few))
    return [each.known for each in sweeps]


# jobs with a known speed, which is more than the number of job pages that are open simultaneously
_FOLLOWED = 100


class JobSpeeds:
    """Compute the speeds of jobs from their recent progress, for pages that show them."""

    def __init__(self) -> None:
        self._meters: OrderedDict[str, JobMeter] = OrderedDict()

    def of(self, job: Job, now: float) -> float | None:
        """Return the speed in messages per second, or None if it is unknown or 0."""
        if job.state is not JobState.RUNNING:
            self._meters.pop(job.id, None)
            return None
        meter = self._meters.setdefault(job.id, JobMeter())
        self._meters.move_to_end(job.id)
        if len(self._meters) > _FOLLOWED:
            self._meters.popitem(last=False)
        meter.add(now, job.counts)
        return meter.rate or None


_MOST = 1000  # queues whose insight is stored, which takes a name and a few numbers each


@dataclass(frozen=True, slots=True)
class Insight:
    """The most frequent error in a browse session."""

    error: str
    count: int
    seen: int
    oldest: float | None
    at: float


class Insights:
    """Store the last insight for each queue."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Insight] = OrderedDict()

    @property
    def known(self) -> Mapping[str, Insight]:
        """The insights by queue name."""
        return self._known

    async def remember(self, operations: Operations, view: SessionView) -> None:
        """Store the most frequent error of a session."""
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


_EXPENSIVE_FRESH_S = 10.0  # seconds, because candidates and surveys change slowly


class RecentAnswers:
    """Data about a broker that is expensive to compute. It is shared by all visitors."""

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
        """Surveys that a visitor has started without waiting for the result."""

    async def compute(self) -> None:
        """Compute the data needed by the first pages. If the broker is unavailable, the pages show
        the error.
        """
        with suppress(HopbackError):
            await self.sweep.get()
            await self.drawings.get()
            await self.errors.get()
        with suppress(HopbackError):  # there are no candidates without a management API
            await self.candidates.get()
