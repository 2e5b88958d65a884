"""Jobs as data: what was asked for, how far it is, and how it may go on. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from hopback.deadletters.pacing import UNHURRIED
from hopback.deadletters.requests import NOBODY
from hopback.deadletters.targets import BY_DESIGN
from hopback.errors import HopbackError

if TYPE_CHECKING:
    from hopback.deadletters.pacing import Pace
    from hopback.deadletters.requests import Who
    from hopback.deadletters.targets import Target

__all__ = [
    "ACTIVE",
    "Checkpoint",
    "Counts",
    "FailedMessage",
    "Frozen",
    "Job",
    "JobConflict",
    "JobKind",
    "JobSpec",
    "JobState",
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

ACTIVE = frozenset({JobState.RUNNING, JobState.PAUSED})
"""The states in which a job holds its queue: no other may begin there."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How far a job is.

    `selected` is the size of the frozen selection. Each of its messages is `done`, `skipped` (the
    filter or the loop guard left it out), `failed`, or `remaining`. `returned` is what was taken and
    given back. `arrived_meanwhile` came into the queue while the job ran and was not touched;
    `came_back` is what this job had sent and what was found dead again.
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
class Frozen:
    """The selection as it was when the job began.

    With `digests` it is exactly those messages, wherever they now stand among the first `count` of
    the queue; without, it is the first `count` messages, of which the filter may leave some out.
    `behind` is how many stood behind them, None where nobody has counted.
    """

    count: int
    filter: str = ""
    digests: tuple[str, ...] | None = None
    behind: int | None = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What was asked for; it never changes."""

    kind: JobKind
    queue: str
    broker: str
    selection: Frozen
    why: str = ""
    by: Who = NOBODY
    target: Target = BY_DESIGN
    pace: Pace = UNHURRIED
    max_redrives: int | None = None
    stamped: bool = False
    operation: str = ""
    export_to: str = ""
    key: str | None = None
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How to find the rest of a selection after a crash; written down before messages are sent.

    At the head of the queue then stand, in order: what is left of `kept` messages that were skipped
    and the messages whose marks are in `window`, unless they are done; then `rest` untouched ones.
    That is sure only if `end_is_sure`: nothing behind the selection was handed out before. Otherwise
    a quorum queue may hand that out first, and only the marks tell what was selected. `saw_fresh` says
    that the job was given a message that had never been handed out: then nothing behind it was, either.
    `has_twins` says that the marks of some messages are the same.
    """

    kept: int = 0
    window: tuple[str, ...] = ()
    rest: int = 0
    end_is_sure: bool = False
    saw_fresh: bool = False
    has_twins: bool = False


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message that a job could not move, or left out; it is still in its queue."""

    letter_id: str
    digest: str
    message_id: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Job:
    """A re-drive or a discard. `reason` says why its state is what it is; times are in seconds.

    `rate` is what holds now, messages per second, None for no limit. `run` counts how often it was
    begun or resumed. `changes` grows with every change that is written down.
    """

    id: str
    spec: JobSpec
    state: JobState = JobState.RUNNING
    counts: Counts = Counts()
    reason: str = ""
    rate: float | None = None
    run: int = 1
    created: float = 0.0
    updated: float = 0.0
    checkpoint: Checkpoint = Checkpoint()
    changes: int = 0

    @property
    def kind(self) -> JobKind:
        """What it does."""
        return self.spec.kind

    @property
    def queue(self) -> str:
        """The dead-letter queue it works on."""
        return self.spec.queue

    @property
    def is_active(self) -> bool:
        """Whether it holds its queue: no other job may begin there."""
        return self.state in ACTIVE

    @property
    def can_resume(self) -> bool:
        """Whether it may run again."""
        return JobState.RUNNING in _NEXT[self.state]

    @property
    def is_over(self) -> bool:
        """Whether nothing more can happen to it."""
        return not _NEXT[self.state]

    def to(self, state: JobState, now: float, reason: str = "") -> Job:
        """The job in another state; JobConflict if that cannot follow the present one."""
        if state not in _NEXT[self.state]:
            allowed = ", ".join(sorted(_NEXT[self.state])) or "nothing"
            raise JobConflict(
                f"job {self.id} is {self.state}: expected {allowed} next, got {state}", self
            )
        return replace(self, state=state, reason=reason, updated=now, changes=self.changes + 1)

    def counted(self, counts: Counts, checkpoint: Checkpoint, now: float) -> Job:
        """The job, further on."""
        return replace(
            self, counts=counts, checkpoint=checkpoint, updated=now, changes=self.changes + 1
        )


class JobConflict(HopbackError):
    """Another job, or another state, stands in the way; `job` is the one that does."""

    remedy: ClassVar[str] = (
        "Wait for the job that is named or cancel it; one that cannot go on is replaced by a new job."
    )

    def __init__(self, text: str, job: Job) -> None:
        self.job = job
        super().__init__(text)
