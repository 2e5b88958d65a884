"""A job as the journal keeps it: its specification, state, counts and checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from msgspec import Struct

from hopback.errors import JobConflict
from hopback.ops.browse.prefetch import FIRST_PREFETCH
from hopback.ops.contract.requests import (
    BY_CALLER,
    NOBODY,
    JobKind,
    JobRequest,
    Pace,
    RedriveRequest,
    Submission,
    Who,
)
from hopback.ops.contract.values import ACTIVE, Counts, Job, JobState, Moment


class ChosenDigests(Struct, frozen=True):
    """The digests of messages that were chosen one by one, among the first `span` messages of the queue."""

    digests: tuple[str, ...]
    span: int


class JobSpec(Struct, frozen=True, kw_only=True):
    """A request with its submission and author, and the facts that `SpecBuilder` adds before the job starts.

    The selection of the request is counted. It selects the messages in `chosen`, or without them all that
    match its filter among the first `limit` messages of the queue. `behind` is the number of messages behind
    these, or None if it was not counted. `target_text` is the target of a re-drive in words. The submission
    specifies the file and the headers to write.
    """

    request: JobRequest
    submission: Submission = BY_CALLER
    by: Who = NOBODY
    broker: str
    chosen: ChosenDigests | None = None
    behind: int | None = None
    target_text: str = ""

    @property
    def kind(self) -> JobKind:
        return self.request.kind

    @property
    def queue(self) -> str:
        return self.request.queue

    @property
    def pace(self) -> Pace:
        return self.request.pace

    @property
    def force(self) -> bool:
        return self.request.force

    @property
    def filter(self) -> str:
        return self.request.selection.filter

    @property
    def span(self) -> int:
        """The number of messages at the head of the queue that contain all selected messages."""
        return self.request.selection.limit or 0 if self.chosen is None else self.chosen.span

    @property
    def most(self) -> int:
        """The maximum number of selected messages."""
        return self.span if self.chosen is None else len(self.chosen.digests)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The values from which a new cursor finds the rest of a selection after a crash.

    It is saved before messages are sent. `quorum_cursor`, `classic_cursor` and `chosen_cursor` explain
    how it is used.
    """

    kept: int = 0
    """Number of messages that the job has decided to leave in the queue."""
    window: tuple[str, ...] = ()
    """Marks of messages that the job holds, or has acked so recently that the queue may still have them."""
    rest: int = 0
    """Number of selected messages that the job has not taken."""
    last: str = ""
    """Mark of the anchor, the last message that was delivered to the job."""
    last_digest: str = ""
    """Digest of the anchor."""
    last_stays: bool = False
    """The anchor is in the queue: the job does not ack it before the next checkpoint."""
    is_shared: bool = False
    """Another consumer has taken messages from the queue while the job ran."""
    last_is_behind: bool = False
    """Quorum queues: the anchor is the first message behind the selection."""
    finding: int = 0
    """Quorum queues: a job that was killed while taking redelivered messages had taken this number of
    messages in one step, if that many existed. 0 if no job was killed then.
    """
    in_place: bool = False
    """Quorum queues: the queue requeues all messages of the job in order, before all others."""
    acks_applied: bool = False
    """Quorum queues: the queue still has every message of the window."""
    unsure: int = 0
    """Quorum queues: number of selected messages that may remain, in addition to `rest`."""
    has_twins: bool = False
    """Messages with equal marks or digests were seen."""
    rest_is_untouched: bool = False
    """Classic queues: no message of the rest has been delivered yet."""

    @property
    def is_sent(self) -> bool:
        """Whether the last message was sent, and all others before it."""
        return bool(self.window) and not self.last_stays


def first_checkpoint(count: int) -> Checkpoint:
    """Return the checkpoint of a new job that selects the first `count` messages."""
    return Checkpoint(rest=count, in_place=True, finding=min(FIRST_PREFETCH, count))


_NEXT: dict[JobState, frozenset[JobState]] = {
    JobState.RUNNING: frozenset(JobState) - {JobState.RUNNING},
    JobState.PAUSED: frozenset(
        {
            JobState.RUNNING,
            JobState.CANCELLED,
            JobState.INTERRUPTED,
            JobState.FAILED,
            JobState.STOPPED,
        }
    ),
    JobState.INTERRUPTED: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    JobState.FAILED: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    JobState.STOPPED: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    JobState.CANCELLED: frozenset(),
    JobState.COMPLETED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job in the journal. `view` is the form for operators.

    `state_reason` explains the state. Times are in seconds. `rate` is the current rate in messages per
    second, or None for no limit. `run` is the number of starts and resumptions. `changes` grows with every
    change that is saved. `watch_s` and `watch_text` are the watch time of a re-drive and its reason. `counts`
    never decrease before the job is completed, although a resumed job takes some messages again.
    """

    id: str
    spec: JobSpec
    state: JobState = JobState.RUNNING
    counts: Counts = field(default_factory=Counts)
    state_reason: str = ""
    rate: float | None = None
    run: int = 1
    created: float = 0.0
    updated: float = 0.0
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    changes: int = 0
    watch_s: float | None = None
    watch_text: str = ""

    @property
    def kind(self) -> JobKind:
        return self.spec.kind

    @property
    def queue(self) -> str:
        return self.spec.queue

    @property
    def view(self) -> Job:
        """The job for operators."""
        spec, request = self.spec, self.spec.request
        return Job(
            id=self.id,
            kind=spec.kind,
            queue=spec.queue,
            state=self.state,
            state_reason=self.state_reason,
            reason=request.reason,
            by=spec.by.name,
            by_id=spec.by.id,
            target=spec.target_text,
            selection=request.selection,
            rate=self.rate,
            ramp=spec.pace.ramp,
            counts=self.counts,
            can_resume=self.can_resume,
            export_to=spec.submission.export_to,
            created=Moment(self.created),
            updated=Moment(self.updated),
            target_choice=request.target if isinstance(request, RedriveRequest) else None,
            run=self.run,
            changes=self.changes,
            watch_s=self.watch_s,
            watch_text=self.watch_text,
            duplicates=self._duplicates,
        )

    @property
    def _duplicates(self) -> str:
        most = min(self.spec.pace.in_flight * (self.run - 1), self.counts.done)
        if self.kind is not JobKind.REDRIVE or not most:
            return ""
        return f"up to {most:,}, if the job was killed or its broker stopped before it was resumed"

    @property
    def is_active(self) -> bool:
        """Whether the job prevents another job on its queue."""
        return self.state in ACTIVE

    @property
    def can_resume(self) -> bool:
        return JobState.RUNNING in _NEXT[self.state]

    @property
    def is_orphaned(self) -> bool:
        """Whether the job was interrupted because its process ended."""
        return self.state is JobState.INTERRUPTED and self.state_reason in (
            PROCESS_ENDED,
            PROCESS_LOST,
        )

    @property
    def is_over(self) -> bool:
        """Whether the state is final."""
        return not _NEXT[self.state]

    def to(self, state: JobState, now: float, reason: str = "") -> JobRecord:
        """Return the job in another state. Raises JobConflict if that state cannot follow."""
        if state not in _NEXT[self.state]:
            allowed = ", ".join(sorted(_NEXT[self.state])) or "nothing"
            raise JobConflict(
                f"job {self.id} is {self.state}: expected {allowed} next, got {state}", self
            )
        return replace(
            self, state=state, state_reason=reason, updated=now, changes=self.changes + 1
        )

    def counted(self, counts: Counts, checkpoint: Checkpoint, now: float) -> JobRecord:
        return replace(
            self, counts=counts, checkpoint=checkpoint, updated=now, changes=self.changes + 1
        )


PROCESS_ENDED = "the process that ran it ended"
"""The reason of a job whose process was stopped regularly."""

PROCESS_LOST = "lost contact with the process running the job"
"""The reason of a job whose process did not renew its lease."""
