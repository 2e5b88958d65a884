"""Jobs as data: what is being done, how far it is, and how it may go on.

The engine changes a job only through `Job`'s methods and tells every change to a `Journal`. The
journal in memory is for one process; another, behind the same protocol, may survive it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Protocol

from hopback.errors import HopbackError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "Counts",
    "FailedMessage",
    "Job",
    "JobConflict",
    "JobKind",
    "JobState",
    "Journal",
    "MemoryJournal",
]


class JobKind(StrEnum):
    """What a job does with its messages."""

    REDRIVE = "re-drive"
    DISCARD = "discard"


class JobState(StrEnum):
    """Where a job stands."""

    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    """The line or the process ended; nothing is lost, and it can be resumed."""
    COMPLETED = "completed"
    FAILED = "failed"
    """It stopped by itself, for the reason that it names; it can be resumed when that is mended."""


_NEXT: dict[JobState, frozenset[JobState]] = {
    JobState.RUNNING: frozenset(JobState) - {JobState.RUNNING},
    JobState.PAUSED: frozenset(
        {JobState.RUNNING, JobState.CANCELLED, JobState.INTERRUPTED, JobState.FAILED}
    ),
    JobState.INTERRUPTED: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    JobState.FAILED: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    JobState.CANCELLED: frozenset(),
    JobState.COMPLETED: frozenset(),
}
_ACTIVE = frozenset({JobState.RUNNING, JobState.PAUSED})


@dataclass(frozen=True, slots=True)
class Counts:
    """How far a job is.

    `selected` is the size of the frozen selection. Each of its messages is `done`, `skipped` (the
    filter or the loop guard left it out), `failed`, or `remaining`. `returned` is what was taken and
    given back. `arrived_meanwhile` came into the queue while the job ran and was not touched;
    `came_back` is what this job had sent and what died again.
    """

    selected: int = 0
    done: int = 0
    skipped: int = 0
    failed: int = 0
    returned: int = 0
    arrived_meanwhile: int = 0
    came_back: int = 0

    @property
    def remaining(self) -> int:
        """What is still to be looked at."""
        return max(self.selected - self.done - self.skipped - self.failed, 0)


@dataclass(frozen=True, slots=True)
class Job:
    """A re-drive or a discard. `reason` says why its state is what it is; times are in seconds."""

    id: str
    kind: JobKind
    queue: str
    state: JobState = JobState.RUNNING
    counts: Counts = Counts()
    reason: str = ""
    filter: str = ""
    target: str = ""
    by: str = ""
    why: str = ""
    created: float = 0.0
    updated: float = 0.0

    @property
    def is_active(self) -> bool:
        """Whether it holds its queue: no other job may begin there."""
        return self.state in _ACTIVE

    @property
    def can_resume(self) -> bool:
        """Whether it may run again."""
        return JobState.RUNNING in _NEXT[self.state]

    def to(self, state: JobState, now: float, reason: str = "") -> Job:
        """The job in another state; JobConflict if that cannot follow the present one."""
        if state not in _NEXT[self.state]:
            allowed = ", ".join(sorted(_NEXT[self.state])) or "nothing"
            raise JobConflict(
                f"job {self.id} is {self.state}: expected {allowed} next, got {state}", self
            )
        return replace(self, state=state, reason=reason, updated=now)

    def counted(self, counts: Counts, now: float) -> Job:
        """The job with other counts."""
        return replace(self, counts=counts, updated=now)


class JobConflict(HopbackError):
    """Another job, or another state, stands in the way; `job` is the one that does."""

    remedy: ClassVar[str] = "Wait for the job that is named, or cancel it."

    def __init__(self, text: str, job: Job) -> None:
        self.job = job
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message that a job could not move; it is still in its queue."""

    letter_id: str
    digest: str
    message_id: str
    reason: str
    at: float


class Journal(Protocol):
    """Where jobs are written down. Each call returns when it is safely recorded."""

    async def begin(self, job: Job) -> None:
        """A job starts or goes on; JobConflict if another one is active for its queue."""

    async def record(self, job: Job) -> None:
        """A job has another state, or other counts."""

    async def failure(self, job: Job, failed: FailedMessage) -> None:
        """A message could not be moved, or was left out by the loop guard."""


class MemoryJournal:
    """A journal for one process."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._failures: dict[str, list[FailedMessage]] = {}

    async def begin(self, job: Job) -> None:
        """A job starts or goes on; JobConflict if another one is active for its queue."""
        for other in self._jobs.values():
            if other.queue == job.queue and other.is_active and other.id != job.id:
                raise JobConflict(f"{job.queue!r} has an active job: {other.id}", other)
        self._jobs[job.id] = job

    async def record(self, job: Job) -> None:
        """A job has another state, or other counts."""
        self._jobs[job.id] = job

    async def failure(self, job: Job, failed: FailedMessage) -> None:
        """A message could not be moved, or was left out by the loop guard."""
        self._failures.setdefault(job.id, []).append(failed)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Every job, in the order in which they began."""
        return tuple(self._jobs.values())

    def failures(self, ident: str) -> Iterable[FailedMessage]:
        """What a job could not move."""
        return tuple(self._failures.get(ident, ()))
