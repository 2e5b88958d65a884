"""A job as the journal keeps it: its specification, state, counts and checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hopback.errors import JobConflict
from hopback.ops.contract.requests import BY_DESIGN, JobKind, RedriveRequest
from hopback.ops.contract.values import ACTIVE, Counts, Job, JobState, Moment
from hopback.ops.jobs.checkpoint import Checkpoint
from hopback.ops.jobs.job_spec import JobSpec  # noqa: TC001  msgspec reads it at run time

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

    `state_reason` explains the state. Times are in seconds. `rate` is the present rate in messages per
    second, None for no limit. `run` is the number of starts and resumptions. `changes` grows with every
    change that is saved. `watch_s` and `watch_text` are the watch time of a re-drive and its reason.
    `counts` never decrease before the job is completed, although a resumed job takes some messages again.
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
        target = request.target if isinstance(request, RedriveRequest) else BY_DESIGN
        return Job(
            id=self.id,
            kind=spec.kind,
            queue=spec.queue,
            state=self.state,
            state_reason=self.state_reason,
            reason=request.reason,
            by=spec.by.name,
            by_id=spec.by.id,
            target=spec.target_text or str(target),
            selection=request.selection,
            rate=self.rate,
            ramp=spec.pace.ramp,
            counts=self.counts,
            can_resume=self.can_resume,
            export_to=spec.export_to,
            created=Moment(self.created),
            updated=Moment(self.updated),
            target_choice=target,
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
