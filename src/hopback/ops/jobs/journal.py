"""Jobs and the audit as they are written down: the values, the protocol, and a journal for one process.

How long they are kept is decided here, too; what is older is deleted a little at a time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from itertools import islice
from secrets import token_hex
from typing import TYPE_CHECKING, Protocol

from msgspec import structs

from hopback.errors import JobConflict, LeaseLost
from hopback.headers import timestamp
from hopback.ops.contract.requests import (
    BY_DESIGN,
    JobKind,
    JobRequest,
    Pace,
    RedriveRequest,
    Submission,
)
from hopback.ops.contract.values import ACTIVE, AuditEntry, Counts, Job, JobState, Moment
from hopback.sql.sqlite import MemoryDatabase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hopback.clock import Clock
    from hopback.ops.contract.requests import AuditQuery
    from hopback.ops.contract.values import FailedMessage
    from hopback.sql.database import SqlDatabase


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

    @property
    def size(self) -> int:
        """How many messages it can be at most."""
        return self.count if self.digests is None else len(self.digests)


class JobSpec(Submission, frozen=True, kw_only=True):
    """A request with its submission and the facts that the planner added. It never changes.

    The selection of the request contains the counted messages, without the ids of single messages.
    `target_text` is the target of a re-drive in words.
    """

    request: JobRequest
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
    is_settled: bool = False
    """Quorum queues: the queue still has every message of the window."""
    unsure: int = 0
    """Quorum queues: number of selected messages that may remain, besides `rest`."""
    has_twins: bool = False
    """Messages with equal marks or digests were seen."""
    rest_is_untouched: bool = False
    """Classic queues: no message of the rest was delivered before."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as the journal keeps it, with what only its own run needs; `view` is what operators see.

    `reason` says why its state is what it is; times are in seconds.

    `rate` is what holds now, messages per second, None for no limit. `run` counts how often it was
    begun or resumed. `changes` grows with every change that is written down. `watch_s` and `watch_text`
    are how long it watches and why, where it does. `certain` is what was certainly done when this run
    began: from there it counts, while `counts`, which people see, never go back.
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
        """What it does."""
        return self.spec.kind

    @property
    def queue(self) -> str:
        """The dead-letter queue it works on."""
        return self.spec.queue

    @property
    def view(self) -> Job:
        """The job as operators see it."""
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
        """Whether it holds its queue: no other job may begin there."""
        return self.state in ACTIVE

    @property
    def can_resume(self) -> bool:
        """Whether it may run again."""
        return JobState.RUNNING in _NEXT[self.state]

    @property
    def is_orphaned(self) -> bool:
        """Whether it would still run, had its process not gone."""
        return self.state is JobState.INTERRUPTED and self.reason in (PROCESS_ENDED, PROCESS_LOST)

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


PROCESS_ENDED = "the process that ran it ended"
"""Why a job is interrupted whose process was stopped in order."""

PROCESS_LOST = "lost contact with the process running the job"
"""Why a job is interrupted whose process did not renew its lease."""

AUDIT_DAYS = 365
"""A year: the question who did this comes up at the next audit at the latest."""

JOB_DAYS = 90
"""A quarter: longer than anybody asks for the failures of a job that is over."""

_DAY_S = 86_400.0  # seconds
_CHUNK = 500  # rows of one transaction: others wait for a writer of SQLite no longer than some ms
_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Retention:
    """Days that something is kept; 0 keeps it forever.

    Of jobs only those go of which nothing more can come: completed and cancelled ones. One that was
    interrupted or has failed can be resumed, so it stays.
    """

    audit_days: int = AUDIT_DAYS
    job_days: int = JOB_DAYS


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many entries of the audit and how many jobs were deleted; `rows` is all that went."""

    audit: int = 0
    jobs: int = 0
    rows: int = 0


async def forget_old(journal: Journal, clock: Clock, retention: Retention) -> Forgotten:
    """Delete what is older than it is kept; what went is an entry of the audit itself."""
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
        await asyncio.sleep(0)  # others that wait for the loop or the database go first
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
    """What people want of a running job, wherever it runs: that it waits, ends, goes faster."""

    paused: bool = False
    cancelled: bool = False
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class JournalShare:
    """What of a journal belongs to one broker, where several share it.

    The first of them (`is_first`) also has what belongs to none of the `others`: the jobs and entries
    from before there were several, or of a broker that is served no more.
    """

    own: str
    others: frozenset[str] = frozenset()
    is_first: bool = True

    def holds(self, broker: str) -> bool:
        """Whether what was written for that broker belongs here."""
        return broker == self.own or (self.is_first and broker not in self.others)


class Journal(Protocol):
    """Where jobs and the audit are kept. Each call returns when it is safely recorded.

    A job that runs is leased to its `owner`, a name for one run in one process; who does not renew
    in time has lost it, and the job reads as interrupted.
    """

    database: SqlDatabase
    """The database of jobs and audit. It also has the keys, sessions and alerts of a service."""

    async def begin(self, job: JobRecord, owner: str) -> JobRecord:
        """Write down a job that starts, or goes on; the job of the same key if there is one.

        JobConflict if another one is active for its queue.
        """

    async def save(self, job: JobRecord, owner: str) -> None:
        """A job has another state, or is further on; LeaseLost if it is somebody else's now."""

    async def amend(self, job: JobRecord) -> None:
        """Write down something about a job that nobody runs; JobConflict if somebody does."""

    async def renew(self, job_id: str, owner: str) -> ControlRequest:
        """Still here; what is wanted of the job. LeaseLost if it is somebody else's now."""

    async def control(self, job_id: str) -> ControlRequest:
        """What is wanted of a job now."""

    async def set_control(self, job_id: str, request: ControlRequest) -> None:
        """Want something of a job, wherever it runs."""

    async def job(self, job_id: str) -> JobRecord | None:
        """One job as it is now, or None."""

    async def keyed(self, broker: str, key: str) -> JobRecord | None:
        """The job that was begun with this key, or None."""

    async def jobs(
        self, *, broker: str = "", queue: str = "", active: bool = False, limit: int = 100
    ) -> tuple[JobRecord, ...]:
        """Jobs, the newest first."""

    async def add_failures(self, job_id: str, failures: Iterable[FailedMessage]) -> None:
        """Messages could not be moved, or were left out."""

    async def failures(self, job_id: str, cursor: int, limit: int) -> tuple[FailedMessage, ...]:
        """What a job could not move, in order, from number `cursor` on."""

    async def forget(
        self, *, audit_before: float, jobs_before: float, now: float, limit: int
    ) -> Forgotten:
        """Delete at most `limit` rows of the audit, and of jobs of which nothing more can come.

        Entries from before `audit_before` go, jobs that ended before `jobs_before`; nothing is left
        to delete when the answer has no rows.
        """

    async def remember(
        self, broker: str, kind: str, documents: Mapping[str, str], now: float
    ) -> None:
        """Keep documents of a kind by their keys, in the place of those that were there."""

    async def remembered(self, broker: str, kind: str) -> dict[str, str]:
        """The documents of a kind that are kept for a broker, by key."""

    async def unlearn(self, broker: str, kind: str, key: str) -> None:
        """Delete a document; none there is no error."""

    async def store_id(self) -> str:
        """The id of this store, in hexadecimal digits: two stores that work on one queue differ in it."""

    async def write(self, entry: AuditEntry, broker: str = "") -> None:
        """Append to the audit, for that broker."""

    async def read(
        self, query: AuditQuery, share: JournalShare | None = None
    ) -> tuple[AuditEntry, ...]:
        """Entries of the audit, the newest first: all of them, or those of one broker's share."""


class MemoryJournal:
    """A journal for one process; it ends with it."""

    def __init__(self) -> None:
        self.database: SqlDatabase = MemoryDatabase()
        self._jobs: dict[str, JobRecord] = {}
        self._owners: dict[str, str] = {}
        self._requests: dict[str, ControlRequest] = {}
        self._failures: dict[str, list[FailedMessage]] = {}
        self._audit: list[AuditEntry] = []
        self._documents: dict[tuple[str, str], dict[str, str]] = {}
        self._brokers: dict[int, str] = {}
        self._written = 0
        self._store_id = token_hex(4)

    async def begin(self, job: JobRecord, owner: str) -> JobRecord:
        """Write down a job that starts, or goes on; the job of the same key if there is one."""
        if job.spec.key is not None and job.id not in self._jobs:
            known = await self.keyed(job.spec.broker, job.spec.key)
            if known is not None:
                return known
        for other in self._jobs.values():
            if other.id == job.id:
                continue
            if other.is_active and (other.spec.broker, other.queue) == (job.spec.broker, job.queue):
                raise JobConflict(f"{job.queue!r} has an active job: {other.id}", other)
        self._jobs[job.id] = job
        self._owners[job.id] = owner
        self._requests[job.id] = ControlRequest(rate=job.rate)
        return job

    async def save(self, job: JobRecord, owner: str) -> None:
        """A job has another state, or is further on; LeaseLost if it is somebody else's now."""
        self._check(job.id, owner)
        self._jobs[job.id] = job

    async def amend(self, job: JobRecord) -> None:
        """Write down something about a job that nobody runs; JobConflict if somebody does."""
        known = self._jobs[job.id]
        if known.is_active:
            raise JobConflict(f"job {job.id} is {known.state}", known)
        self._jobs[job.id] = job

    async def renew(self, job_id: str, owner: str) -> ControlRequest:
        """Still here; what is wanted of the job."""
        self._check(job_id, owner)
        return self._requests[job_id]

    def _check(self, job_id: str, owner: str) -> None:
        if self._owners.get(job_id) != owner:
            raise LeaseLost(f"job {job_id} is run by another process now")

    async def control(self, job_id: str) -> ControlRequest:
        """What is wanted of a job now."""
        return self._requests[job_id]

    async def set_control(self, job_id: str, request: ControlRequest) -> None:
        """Want something of a job."""
        self._requests[job_id] = request

    async def job(self, job_id: str) -> JobRecord | None:
        """One job as it is now, or None."""
        return self._jobs.get(job_id)

    async def keyed(self, broker: str, key: str) -> JobRecord | None:
        """The job that was begun with this key, or None."""
        asked = (broker, key)
        jobs = self._jobs.values()
        return next((job for job in jobs if (job.spec.broker, job.spec.key) == asked), None)

    async def jobs(
        self, *, broker: str = "", queue: str = "", active: bool = False, limit: int = 100
    ) -> tuple[JobRecord, ...]:
        """Jobs, the newest first."""
        found = (
            job
            for job in reversed(self._jobs.values())
            if (not broker or job.spec.broker == broker)
            and (not queue or job.queue == queue)
            and (not active or job.is_active)
        )
        return tuple(islice(found, limit))

    async def add_failures(self, job_id: str, failures: Iterable[FailedMessage]) -> None:
        """Messages could not be moved, or were left out."""
        self._failures.setdefault(job_id, []).extend(failures)

    async def failures(self, job_id: str, cursor: int, limit: int) -> tuple[FailedMessage, ...]:
        """What a job could not move, in order, from number `cursor` on."""
        return tuple(self._failures.get(job_id, ())[cursor : cursor + limit])

    async def remember(
        self, broker: str, kind: str, documents: Mapping[str, str], now: float
    ) -> None:
        """Keep documents of a kind by their keys, in the place of those that were there."""
        self._documents.setdefault((broker, kind), {}).update(documents)

    async def remembered(self, broker: str, kind: str) -> dict[str, str]:
        """The documents of a kind that are kept for a broker, by key."""
        return dict(self._documents.get((broker, kind), {}))

    async def unlearn(self, broker: str, kind: str, key: str) -> None:
        """Delete a document; none there is no error."""
        self._documents.get((broker, kind), {}).pop(key, None)

    async def store_id(self) -> str:
        """The id of this store."""
        return self._store_id

    async def write(self, entry: AuditEntry, broker: str = "") -> None:
        """Append to the audit, for that broker."""
        self._written += 1
        self._brokers[self._written] = broker
        self._audit.append(structs.replace(entry, number=self._written))

    async def forget(
        self, *, audit_before: float, jobs_before: float, now: float, limit: int
    ) -> Forgotten:
        """Delete at most `limit` entries of the audit, and as many finished jobs."""
        old = [entry.number for entry in self._audit if entry.at < audit_before][:limit]
        self._audit = [entry for entry in self._audit if entry.number not in old]
        for number in old:
            del self._brokers[number]
        over = [job.id for job in self._jobs.values() if job.is_over and job.updated < jobs_before][
            :limit
        ]
        for each in over:
            del self._jobs[each], self._owners[each], self._requests[each]
            self._failures.pop(each, None)
        return Forgotten(len(old), len(over), len(old) + len(over))

    async def read(
        self, query: AuditQuery, share: JournalShare | None = None
    ) -> tuple[AuditEntry, ...]:
        """Entries of the audit, the newest first: all of them, or those of one broker's share."""
        found = (
            entry
            for entry in reversed(self._audit)
            if (not query.by or entry.by == query.by)
            and (not query.action or entry.action == query.action)
            and (not query.queue or entry.queue == query.queue)
            and (not query.job or entry.job == query.job)
            and (query.before is None or entry.number < query.before)
            and (share is None or share.holds(self._brokers[entry.number]))
        )
        return tuple(islice(found, query.limit))
