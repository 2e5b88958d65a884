"""A job as stored in the journal, with its specification, state, counts and checkpoint."""

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
    """The digests of individually chosen messages, which are among the first `span` messages of the
    queue.
    """

    digests: tuple[str, ...]
    span: int


class JobSpec(Struct, frozen=True, kw_only=True):
    """The request for a job, its author, and facts that `SpecBuilder` adds before it starts.

    The selection of the request has been counted. The selected messages are those in `chosen`. If
    this is None, they are all messages that match the filter among the first `limit` messages of
    the queue. `behind` is the number of messages after these, or None if it was not counted.
    `target_text` describes the target of a re-drive. The submission determines the file and the
    headers to write.
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
        """The number of messages at the head of the queue that include all selected messages."""
        return self.request.selection.limit or 0 if self.chosen is None else self.chosen.span

    @property
    def most(self) -> int:
        """The maximum number of selected messages."""
        return self.span if self.chosen is None else len(self.chosen.digests)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The data from which a new cursor finds the rest of a selection after a crash.

    It is saved before messages are sent. Its use is described in `quorum_cursor`, `classic_cursor`
    and `chosen_cursor`.
    """

    kept: int = 0
    """The number of messages that the job has decided to leave in the queue."""
    window: tuple[str, ...] = ()
    """The marks of messages that the job is holding, or has acked so recently that they may still
    be in the queue.
    """
    rest: int = 0
    """The number of selected messages that the job has not taken yet."""
    last: str = ""
    """The mark of the anchor, which is the last message delivered to the job."""
    last_digest: str = ""
    """The digest of the anchor."""
    last_stays: bool = False
    """Whether the anchor is in the queue, because the job does not ack it before the next checkpoint."""
    was_sent: bool = False
    """Whether an earlier run has sent all messages. The queue may still have the last one."""
    is_shared: bool = False
    """Whether another consumer has taken messages from the queue while the job was running."""
    last_is_behind: bool = False
    """For quorum queues: whether the anchor is the first message behind the selection."""
    finding: int = 0
    """For quorum queues: how many messages were taken in one step, if there were enough, when the
    job was killed while it took redelivered messages. It is 0 if this has not happened.
    """
    in_place: bool = False
    """For quorum queues: whether all messages of the job are requeued in order before all others."""
    acks_applied: bool = False
    """For quorum queues: whether all messages in the window are still in the queue."""
    unsure: int = 0
    """For quorum queues: how many selected messages may be left in addition to `rest`."""
    has_twins: bool = False
    """For chosen messages: whether a message that equals a finished one was seen."""

    @property
    def is_sent(self) -> bool:
        """Whether all messages were sent, including the last one."""
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
    """A job in the journal. `view` returns the form that is shown to operators.

    `state_reason` explains the state. Times are in seconds since 1970. `rate` is the current rate
    in messages per second, or None if there is no limit. `run` counts starts and resumptions, and
    `changes` counts saved changes. `watch_s` and `watch_text` are the watch time of a re-drive and
    its reason. `counts` do not decrease until the job is completed, although a resumed job takes
    some messages again.
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
        """The job as shown to operators."""
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
        """Whether the job prevents other jobs for its queue."""
        return self.state in ACTIVE

    @property
    def can_resume(self) -> bool:
        return JobState.RUNNING in _NEXT[self.state]

    @property
    def is_orphaned(self) -> bool:
        """Whether the job was interrupted because its process has ended."""
        return self.state is JobState.INTERRUPTED and self.state_reason in (
            PROCESS_ENDED,
            PROCESS_LOST,
        )

    @property
    def is_over(self) -> bool:
        """Whether the state is final."""
        return not _NEXT[self.state]

    def to(self, state: JobState, now: float, reason: str = "") -> JobRecord:
        """Change the state of the job. Raises JobConflict if this is not possible."""
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
"""The reason if the process was stopped normally."""

PROCESS_LOST = "lost contact with the process running the job"
"""The reason if the process did not renew its lease."""
