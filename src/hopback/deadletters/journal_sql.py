"""The journal in SQL: jobs survive their process, and one queue has one job across all of them.

Needs the extra `store`. Two processes with the same database and the same broker see the same jobs; a
job whose process was not heard of for the length of its lease reads as interrupted.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import asdict, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from hopback.deadletters.contract import AuditEntry, Counts, FailedMessage, JobState, Moment
from hopback.deadletters.journal import (
    Checkpoint,
    ControlRequest,
    Forgotten,
    JobRecord,
    JobSpec,
    SelectionSnapshot,
)
from hopback.deadletters.requests import JobKind, Pace, Target, TargetKind, Who
from hopback.errors import JobConflict, LeaseLost, NoSuch
from hopback.renamed import old_names
from hopback.store.audit import AuditRow, AuditTable
from hopback.store.database import open_database
from hopback.store.jobs import JobRow, JobTable, RowTaken
from hopback.store.migrations import migrate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.clock import Clock
    from hopback.deadletters.requests import AuditQuery


__all__ = [
    "SqlJournal",
    "open_journal",
    "read_control",
    "read_failure",
    "read_job",
    "write_control",
    "write_failure",
    "write_job",
]


def write_job(job: JobRecord) -> str:
    """The job as JSON."""
    return _json(_shallow(job))


def _shallow(value: Any) -> Any:
    """As `asdict`, without copying the marks and digests one by one: there may be thousands."""
    if isinstance(value, Struct):
        return {name: _shallow(getattr(value, name)) for name in value.__struct_fields__}
    if not is_dataclass(value):
        return value
    return {field.name: _shallow(getattr(value, field.name)) for field in fields(value)}


def read_job(text: str) -> JobRecord:
    """The job that `write_job` wrote."""
    said = json.loads(text)
    said["spec"] = _spec(said["spec"])
    said["state"] = JobState(said["state"])
    said["counts"] = Counts(**said["counts"])
    mark = said["checkpoint"]
    said["checkpoint"] = Checkpoint(
        mark["kept"],
        tuple(mark["window"]),
        mark["rest"],
        mark.get("end_is_sure", False),  # a job of an earlier version does not tell
        mark.get("saw_fresh", False),
        mark.get("has_twins", False),
    )
    return JobRecord(**said)


def _spec(said: dict[str, Any]) -> JobSpec:
    frozen = said["selection"]
    digests = frozen["digests"]
    said["kind"] = JobKind(said["kind"])
    said["selection"] = SelectionSnapshot(
        frozen["count"],
        frozen["filter"],
        None if digests is None else tuple(digests),
        frozen.get("behind"),  # a job of an earlier version does not tell
    )
    said["by"] = Who(**said["by"])
    said["target"] = Target(**said["target"] | {"kind": TargetKind(said["target"]["kind"])})
    said["pace"] = Pace(**said["pace"] | {"ramp": tuple(said["pace"]["ramp"])})
    return JobSpec(**said)


def write_control(request: ControlRequest) -> str:
    """What is asked of a job, as JSON."""
    return _json(asdict(request))


def read_control(text: str) -> ControlRequest:
    """What `write_control` wrote."""
    return ControlRequest(**json.loads(text))


def write_failure(failed: FailedMessage) -> str:
    """The failure as JSON."""
    said = structs.asdict(failed)
    return _json({"letter_id": said.pop("id"), **said})


def read_failure(text: str) -> FailedMessage:
    """The failure that `write_failure` wrote."""
    said = json.loads(text)
    return FailedMessage(
        said["letter_id"], said["digest"], said["message_id"], said["reason"], Moment(said["at"])
    )


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


class SqlJournal:
    """A journal in a migrated database; `lease` seconds without a sign make a job interrupted."""

    def __init__(self, engine: AsyncEngine, clock: Clock, *, lease: float = 30.0) -> None:
        self.engine = engine
        self._jobs = JobTable(engine, clock, lease=lease)
        self._audit = AuditTable(engine)

    async def begin(self, job: JobRecord, owner: str) -> JobRecord:
        """Write down a job that starts, or goes on; the job of the same key if there is one."""
        try:
            await self._jobs.begin(_row_of(job), owner)
        except RowTaken as taken:
            other = _job_of(taken.row)
            if other.id != job.id and job.spec.key is not None and other.spec.key == job.spec.key:
                return other
            raise JobConflict(f"{job.queue!r} has an active job: {other.id}", other) from None
        return job

    async def save(self, job: JobRecord, owner: str) -> None:
        """A job has another state, or is further on; LeaseLost if it is somebody else's now."""
        if not await self._jobs.save(_row_of(job), owner):
            raise LeaseLost(f"job {job.id} is run by another process now")

    async def amend(self, job: JobRecord) -> None:
        """Write down something about a job that nobody runs; JobConflict if somebody does."""
        if not await self._jobs.amend(_row_of(job)):
            raise JobConflict(f"job {job.id} is running elsewhere", job)

    async def renew(self, job_id: str, owner: str) -> ControlRequest:
        """Still here; what is wanted of the job. LeaseLost if it is somebody else's now."""
        request = await self._jobs.renew(job_id, owner)
        if request is None:
            raise LeaseLost(f"job {job_id} is run by another process now")
        return read_control(request)

    async def control(self, job_id: str) -> ControlRequest:
        """What is wanted of a job now."""
        row = await self._jobs.get(job_id)
        if row is None:
            raise NoSuch("job", job_id)
        return read_control(row.wish)

    async def set_control(self, job_id: str, request: ControlRequest) -> None:
        """Want something of a job, wherever it runs."""
        await self._jobs.wish(job_id, write_control(request))

    async def job(self, job_id: str) -> JobRecord | None:
        """One job as it is now, or None."""
        row = await self._jobs.get(job_id)
        return None if row is None else _job_of(row)

    async def keyed(self, broker: str, key: str) -> JobRecord | None:
        """The job that was begun with this key, or None."""
        row = await self._jobs.keyed(broker, key)
        return None if row is None else _job_of(row)

    async def jobs(
        self, *, broker: str = "", queue: str = "", active: bool = False, limit: int = 100
    ) -> tuple[JobRecord, ...]:
        """Jobs, the newest first."""
        rows = await self._jobs.newest(place=broker, queue=queue, active=active, limit=limit)
        return tuple(map(_job_of, rows))

    async def add_failures(self, job_id: str, failures: Iterable[FailedMessage]) -> None:
        """Messages could not be moved, or were left out."""
        await self._jobs.add_failures(job_id, map(write_failure, failures))

    async def failures(self, job_id: str, cursor: int, limit: int) -> tuple[FailedMessage, ...]:
        """What a job could not move, in order, from number `cursor` on."""
        return tuple(map(read_failure, await self._jobs.failures(job_id, cursor, limit)))

    async def forget(
        self, *, audit_before: float, jobs_before: float, now: float, limit: int
    ) -> Forgotten:
        """Delete at most `limit` rows of each kind; nothing is left to delete when none were."""
        finished, rows = await self._jobs.delete(jobs_before, limit)
        entries = await self._audit.delete(audit_before, now, limit)
        return Forgotten(entries, finished, rows + entries)

    async def write(self, entry: AuditEntry) -> None:
        """Append to the audit."""
        details = json.dumps(dict(entry.details), default=str)
        await self._audit.append(
            AuditRow(
                entry.at, entry.by, entry.action, entry.queue, entry.job, entry.reason,
                entry.result, details,
            )
        )  # fmt: skip

    async def read(self, query: AuditQuery) -> tuple[AuditEntry, ...]:
        """Entries of the audit, the newest first."""
        wanted = {
            name: value
            for name in ("by", "action", "queue", "job")
            if (value := getattr(query, name))
        }
        rows = await self._audit.read(wanted, query.before, query.limit)
        return tuple(
            AuditEntry(
                Moment(row.at), row.by, row.action, row.queue, row.job, row.reason, row.result,
                json.loads(row.details), row.number,
            )
            for row in rows
        )  # fmt: skip


@asynccontextmanager
async def open_journal(url: str, clock: Clock, *, lease: float = 30.0) -> AsyncIterator[SqlJournal]:
    """The journal in the database at this URL, which is migrated first; closed at the end."""
    engine = open_database(url)
    try:
        await migrate(engine, clock)
        yield SqlJournal(engine, clock, lease=lease)
    finally:
        await engine.dispose()


def _row_of(job: JobRecord) -> JobRow:
    request = write_control(ControlRequest(rate=job.rate))
    spec = job.spec
    return JobRow(job.id, spec.broker, spec.queue, job.state, spec.key, write_job(job), request)


def _job_of(row: JobRow) -> JobRecord:
    """The job as it is now; one whose process is gone is interrupted, whatever was written last."""
    job = read_job(row.document)
    state = JobState(row.state)
    if job.is_active and (state is JobState.INTERRUPTED or not row.is_held):
        reason = "the process that ran it was not heard of any more"
        return replace(job, state=JobState.INTERRUPTED, reason=reason)
    return job


__getattr__ = old_names(__name__, {"read_wish": "read_control", "write_wish": "write_control"})
