"""The record of a job in the journal, its checkpoint, and the time for which records are kept."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hopback.errors import JobConflict
from hopback.headers import timestamp
from hopback.ops.contract.requests import (
    BY_DESIGN,
    NOBODY,
    JobKind,
    JobRequest,
    Pace,
    RedriveRequest,
    Submission,
    Who,
)
from hopback.ops.contract.values import (
    ACTIVE,
    AuditEntry,
    Counts,
    Job,
    JobState,
    Moment,
)

if TYPE_CHECKING:
    from hopback.clock import Clock
    from hopback.ops.jobs.journal import Journal


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


NOTHING_DONE = Counts()
"""The counts of a job that has not started."""


@dataclass(frozen=True, slots=True)
class SelectionSnapshot:
    """The selection at the start of the job.

    With `digests` it contains exactly those messages, which are among the first `count` of the queue.
    Without, it contains those of the first `count` messages that match the filter. `behind` is the number of
    messages behind them, None if it was not counted.
    """

    count: int
    filter: str = ""
    digests: tuple[str, ...] | None = None
    behind: int | None = None

    @property
    def size(self) -> int:
        """The maximum number of messages."""
        return self.count if self.digests is None else len(self.digests)


class JobSpec(Submission, frozen=True, kw_only=True):
    """A request with its submission and the facts that the planner added. It never changes.

    The selection of the request contains the counted messages, without the ids of single messages.
    `target_text` is the target of a re-drive in words.
    """

    request: JobRequest
    by: Who = NOBODY
    broker: str
    selection: SelectionSnapshot
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
    def forced(self) -> bool:
        return self.request.forced


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
    """The anchor is in the queue: the job does not send it before the next checkpoint."""
    is_shared: bool = False
    """Another consumer has taken messages from the queue while the job ran."""
    last_is_behind: bool = False
    """Quorum queues: the anchor is the first message behind the selection."""
    finding: int = 0
    """Quorum queues: a job that was killed while it took redelivered messages had taken this number of
    messages at once, if there were as many. 0 if no job was killed then."""
    in_place: bool = False
    """Quorum queues: the queue requeues all messages of the job in their original order, before all
    others."""
    acks_applied: bool = False
    """Quorum queues: the queue still has every message of the window."""
    unsure: int = 0
    """Quorum queues: number of selected messages that may remain, besides `rest`."""
    has_twins: bool = False
    """Messages with equal marks or digests were seen."""
    rest_is_untouched: bool = False
    """Classic queues: no message of the rest was delivered before."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job in the journal. `view` is the form for operators.

    `reason` is the reason of the state. Times are in seconds. `rate` is the present rate in messages per
    second, None for no limit. `run` is the number of starts and resumptions. `changes` grows with every
    change that is saved. `watch_s` and `watch_text` are the watch time of a re-drive and its reason.
    `certain` has the messages that were certainly done when this run began: the run counts from there, while
    `counts`, which operators see, never decrease.
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
    watch_s: float | None = None
    watch_text: str = ""
    certain: Counts | None = None

    @property
    def kind(self) -> JobKind:
        """The kind of the job."""
        return self.spec.kind

    @property
    def queue(self) -> str:
        """The dead-letter queue of the job."""
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
            reason=self.reason,
            why=request.reason,
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
        """Whether the job can be resumed."""
        return JobState.RUNNING in _NEXT[self.state]

    @property
    def is_orphaned(self) -> bool:
        """Whether the job was interrupted because its process ended."""
        return self.state is JobState.INTERRUPTED and self.reason in (PROCESS_ENDED, PROCESS_LOST)

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
        return replace(self, state=state, reason=reason, updated=now, changes=self.changes + 1)

    def counted(self, counts: Counts, checkpoint: Checkpoint, now: float) -> JobRecord:
        """Return the job with these counts."""
        return replace(
            self, counts=counts, checkpoint=checkpoint, updated=now, changes=self.changes + 1
        )


PROCESS_ENDED = "the process that ran it ended"
"""The reason of a job whose process was stopped regularly."""

PROCESS_LOST = "lost contact with the process running the job"
"""The reason of a job whose process did not renew its lease."""

AUDIT_DAYS = 365
"""Days for which audit entries are kept: a year, for yearly audits. Older entries are deleted."""

JOB_DAYS = 90
"""Days for which finished jobs and their failures are kept: a quarter. Older jobs are deleted."""

_DAY_S = 86_400.0  # seconds of a day
_CHUNK = 500  # rows of one transaction, so that other writers of SQLite wait only milliseconds
_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Retention:
    """Days for which entries and jobs are kept. 0 keeps them forever.

    Only completed and cancelled jobs are deleted. Other jobs can be resumed.
    """

    audit_days: int = AUDIT_DAYS
    job_days: int = JOB_DAYS


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Numbers of deleted audit entries, jobs and rows."""

    audit: int = 0
    jobs: int = 0
    rows: int = 0


async def forget_old(journal: Journal, clock: Clock, retention: Retention) -> Forgotten:
    """Delete old entries and jobs, and record the deletion in the audit."""
    now = clock.now()
    audit_before = now - retention.audit_days * _DAY_S if retention.audit_days else _NEVER
    jobs_before = now - retention.job_days * _DAY_S if retention.job_days else _NEVER
    entries = jobs = 0
    while True:
        found = await journal.forget(
            audit_before=audit_before, jobs_before=jobs_before, now=now, limit=_CHUNK
        )
        entries, jobs = entries + found.audit, jobs + found.jobs
        if not found.rows:
            break
        await asyncio.sleep(0)  # let other tasks use the database
    if entries or jobs:
        details: dict[str, object] = {"entries": entries, "jobs": jobs}
        if entries:
            details["entriesBefore"] = timestamp(audit_before)
        if jobs:
            details["jobsEndedBefore"] = timestamp(jobs_before)
        await journal.write(AuditEntry(Moment(now), "hopback", "audit.retention", details=details))
    return Forgotten(entries, jobs, entries + jobs)


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """The changes that operators request of a running job, in whichever process it runs."""

    paused: bool = False
    cancelled: bool = False
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class JournalShare:
    """The share of one broker in a journal of several brokers.

    The share of the first broker (`is_first`) includes entries that belong to none of the `others`: those
    without a broker, or of a broker that is no longer served.
    """

    own: str
    others: frozenset[str] = frozenset()
    is_first: bool = True

    def holds(self, broker: str) -> bool:
        """Whether entries of that broker belong to this share."""
        return broker == self.own or (self.is_first and broker not in self.others)
