"""Recent data about a broker, such as errors, candidates, job speeds and the topology drawing."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.errors import HopbackError
from hopback.ops.brokers.recent import Recent
from hopback.ops.contract.job_meter import JobMeter
from hopback.ops.contract.requests import GroupBy
from hopback.ops.contract.values import Job, JobState, SessionView
from hopback.ops.http.sweep import Sweep
from hopback.ops.page.topology_drawing import TopologyDrawings

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from hopback.ops.browse.surveys import SurveyResults
    from hopback.ops.contract.candidates import CandidateList
    from hopback.ops.contract.surveys import ErrorOverview
    from hopback.ops.operations import Operations

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
        self.errors: Recent[SurveyResults] = Recent(
            operations.surveys.results, _EXPENSIVE_FRESH_S, clock
        )
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
