"""Where jobs and the audit are written down: the protocol, and a journal for one process."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from msgspec import structs

from hopback.deadletters.retention import Forgotten
from hopback.errors import JobConflict, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.deadletters.contract import AuditEntry, FailedMessage
    from hopback.deadletters.jobs import JobRecord
    from hopback.deadletters.requests import AuditQuery

__all__ = ["Journal", "MemoryJournal", "Wish"]


@dataclass(frozen=True, slots=True)
class Wish:
    """What people want of a running job, wherever it runs: that it waits, ends, goes faster."""

    paused: bool = False
    cancelled: bool = False
    rate: float | None = None


class Journal(Protocol):
    """Where jobs and the audit are kept. Each call returns when it is safely recorded.

    A job that runs is leased to its `owner`, a name for one run in one process; who does not renew
    in time has lost it, and the job reads as interrupted.
    """

    async def begin(self, job: JobRecord, owner: str) -> JobRecord:
        """Write down a job that starts, or goes on; the job of the same key if there is one.

        JobConflict if another one is active for its queue.
        """

    async def save(self, job: JobRecord, owner: str) -> None:
        """A job has another state, or is further on; LeaseLost if it is somebody else's now."""

    async def amend(self, job: JobRecord) -> None:
        """Write down something about a job that nobody runs; JobConflict if somebody does."""

    async def renew(self, ident: str, owner: str) -> Wish:
        """Still here; what is wanted of the job. LeaseLost if it is somebody else's now."""

    async def wished(self, ident: str) -> Wish:
        """What is wanted of a job now."""

    async def wish(self, ident: str, wish: Wish) -> None:
        """Want something of a job, wherever it runs."""

    async def job(self, ident: str) -> JobRecord | None:
        """One job as it is now, or None."""

    async def keyed(self, broker: str, key: str) -> JobRecord | None:
        """The job that was begun with this key, or None."""

    async def jobs(
        self, *, broker: str = "", queue: str = "", active: bool = False, limit: int = 100
    ) -> tuple[JobRecord, ...]:
        """Jobs, the newest first."""

    async def add_failures(self, ident: str, failures: Iterable[FailedMessage]) -> None:
        """Messages could not be moved, or were left out."""

    async def failures(self, ident: str, cursor: int, limit: int) -> tuple[FailedMessage, ...]:
        """What a job could not move, in order, from number `cursor` on."""

    async def forget(
        self, *, audit_before: float, jobs_before: float, now: float, limit: int
    ) -> Forgotten:
        """Delete at most `limit` rows of the audit, and of jobs of which nothing more can come.

        Entries from before `audit_before` go, jobs that ended before `jobs_before`; nothing is left
        to delete when the answer has no rows.
        """

    async def write(self, entry: AuditEntry) -> None:
        """Append to the audit."""

    async def read(self, query: AuditQuery) -> tuple[AuditEntry, ...]:
        """Entries of the audit, the newest first."""


class MemoryJournal:
    """A journal for one process; it ends with it."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobRecord] = {}
        self._owners: dict[str, str] = {}
        self._wishes: dict[str, Wish] = {}
        self._failures: dict[str, list[FailedMessage]] = {}
        self._audit: list[AuditEntry] = []
        self._written = 0

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
        self._wishes[job.id] = Wish(rate=job.rate)
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

    async def renew(self, ident: str, owner: str) -> Wish:
        """Still here; what is wanted of the job."""
        self._check(ident, owner)
        return self._wishes[ident]

    def _check(self, ident: str, owner: str) -> None:
        if self._owners.get(ident) != owner:
            raise LeaseLost(f"job {ident} is run by another process now")

    async def wished(self, ident: str) -> Wish:
        """What is wanted of a job now."""
        return self._wishes[ident]

    async def wish(self, ident: str, wish: Wish) -> None:
        """Want something of a job."""
        self._wishes[ident] = wish

    async def job(self, ident: str) -> JobRecord | None:
        """One job as it is now, or None."""
        return self._jobs.get(ident)

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

    async def add_failures(self, ident: str, failures: Iterable[FailedMessage]) -> None:
        """Messages could not be moved, or were left out."""
        self._failures.setdefault(ident, []).extend(failures)

    async def failures(self, ident: str, cursor: int, limit: int) -> tuple[FailedMessage, ...]:
        """What a job could not move, in order, from number `cursor` on."""
        return tuple(self._failures.get(ident, ())[cursor : cursor + limit])

    async def write(self, entry: AuditEntry) -> None:
        """Append to the audit."""
        self._written += 1
        self._audit.append(structs.replace(entry, number=self._written))

    async def forget(
        self, *, audit_before: float, jobs_before: float, now: float, limit: int
    ) -> Forgotten:
        """Delete at most `limit` entries of the audit, and as many finished jobs."""
        old = [entry.number for entry in self._audit if entry.at < audit_before][:limit]
        self._audit = [entry for entry in self._audit if entry.number not in old]
        over = [job.id for job in self._jobs.values() if job.is_over and job.updated < jobs_before][
            :limit
        ]
        for each in over:
            del self._jobs[each], self._owners[each], self._wishes[each]
            self._failures.pop(each, None)
        return Forgotten(len(old), len(over), len(old) + len(over))

    async def read(self, query: AuditQuery) -> tuple[AuditEntry, ...]:
        """Entries of the audit, the newest first."""
        found = (entry for entry in reversed(self._audit) if _wanted(entry, query))
        return tuple(islice(found, query.limit))


def _wanted(entry: AuditEntry, query: AuditQuery) -> bool:
    return (
        (not query.by or entry.by == query.by)
        and (not query.action or entry.action == query.action)
        and (not query.queue or entry.queue == query.queue)
        and (not query.job or entry.job == query.job)
        and (query.before is None or entry.number < query.before)
    )
