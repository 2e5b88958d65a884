"""Jobs as data: what was asked for, how far it is, and how it may go on. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hopback.deadletters.contract import ACTIVE, Counts, Job, JobState, Moment
from hopback.deadletters.requests import BY_DESIGN, NOBODY, UNHURRIED, JobKind
from hopback.errors import JobConflict
from hopback.renamed import old_names

if TYPE_CHECKING:
    from hopback.deadletters.requests import Pace, Target, Who

__all__ = [
    "NOTHING_DONE",
    "Checkpoint",
    "JobRecord",
    "JobSpec",
    "SelectionSnapshot",
]


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


NOTHING_DONE = Counts()
"""The counts of a job that has not begun."""


@dataclass(frozen=True, slots=True)
class SelectionSnapshot:
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
    selection: SelectionSnapshot
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
class JobRecord:
    """A job as the journal keeps it, with what only its own run needs; `view` is what operators see.

    `reason` says why its state is what it is; times are in seconds.


    `rate` is what holds now, messages per second, None for no limit. `run` counts how often it was
    begun or resumed. `changes` grows with every change that is written down.
    """

    id: str
    spec: JobSpec
    state: JobState = JobState.RUNNING
    counts: Counts = NOTHING_DONE
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
    def view(self) -> Job:
        """The job as operators see it."""
        spec = self.spec
        return Job(
            id=self.id,
            kind=spec.kind,
            queue=spec.queue,
            state=self.state,
            reason=self.reason,
            why=spec.why,
            by=spec.by.name,
            by_id=spec.by.id,
            target=str(spec.target),
            filter=spec.selection.filter,
            rate=self.rate,
            ramp=spec.pace.ramp,
            counts=self.counts,
            can_resume=self.can_resume,
            export_to=spec.export_to,
            created=Moment(self.created),
            updated=Moment(self.updated),
            target_choice=spec.target,
            run=self.run,
            changes=self.changes,
        )

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

    def to(self, state: JobState, now: float, reason: str = "") -> JobRecord:
        """The job in another state; JobConflict if that cannot follow the present one."""
        if state not in _NEXT[self.state]:
            allowed = ", ".join(sorted(_NEXT[self.state])) or "nothing"
            raise JobConflict(
                f"job {self.id} is {self.state}: expected {allowed} next, got {state}", self
            )
        return replace(self, state=state, reason=reason, updated=now, changes=self.changes + 1)

    def counted(self, counts: Counts, checkpoint: Checkpoint, now: float) -> JobRecord:
        """The job, further on."""
        return replace(
            self, counts=counts, checkpoint=checkpoint, updated=now, changes=self.changes + 1
        )


__getattr__ = old_names(
    __name__, {"FailedMessage": "hopback.deadletters.FailedMessage", "Frozen": "SelectionSnapshot"}
)
