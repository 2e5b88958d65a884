"""The journal in SQL: jobs survive their process, and one queue has one job across all of them.

Needs the extra `store`. Two processes with the same database and the same broker see the same jobs; a
job whose process was not heard of for the length of its lease reads as interrupted.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import asdict, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct, structs
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from hopback.deadletters.contract import ACTIVE, AuditEntry, Counts, FailedMessage, JobState, Moment
from hopback.deadletters.journal import (
    PROCESS_LOST,
    Checkpoint,
    ControlRequest,
    Forgotten,
    JobRecord,
    JobSpec,
    SelectionSnapshot,
)
from hopback.deadletters.patch import PatchOperation
from hopback.deadletters.requests import JobKind, Pace, Target, TargetKind, Who
from hopback.errors import JobConflict, LeaseLost, NoSuch
from hopback.renamed import OldNameLookup, old_names
from hopback.store.database import (
    audit,
    audit_retention,
    job_failures,
    jobs,
    migrate,
    open_database,
    reading,
    store_errors,
    writing,
)
from hopback.store.database import documents as _documents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from sqlalchemy import ColumnElement, Select
    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.clock import Clock
    from hopback.deadletters.journal import JournalShare
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


# The others can be resumed, so somebody may need them.
_CHUNK = 200  # rows of one statement: SQLite takes some thousand parameters

_OVER = (JobState.COMPLETED, JobState.CANCELLED)


def write_job(job: JobRecord) -> str:
    """The job as JSON."""
    return _json(_shallow(job))


def _shallow(value: Any) -> Any:
    """As `asdict`, without copying the marks and digests one by one: there may be thousands."""
    if isinstance(value, Struct):
        said = ((name, getattr(value, name)) for name in value.__struct_fields__)
        return {name: _shallow(one) for name, one in said if one is not UNSET}
    if isinstance(value, tuple) and value and isinstance(value[0], Struct):
        return [_shallow(each) for each in value]
    if not is_dataclass(value):
        return value
    return {field.name: _shallow(getattr(value, field.name)) for field in fields(value)}


def read_job(text: str) -> JobRecord:
    """The job that `write_job` wrote."""
    said = json.loads(text)
    spec = said["spec"]
    chosen, target, pace = spec["selection"], spec["target"], spec["pace"]
    spec["kind"] = JobKind(spec["kind"])
    spec["selection"] = SelectionSnapshot(
        chosen["count"],
        chosen["filter"],
        None if chosen["digests"] is None else tuple(chosen["digests"]),
        chosen.get("behind"),  # a job of an earlier version does not tell
    )
    spec["by"] = Who(**spec["by"])
    spec["target"] = Target(**target | {"kind": TargetKind(target["kind"])})
    spec["pace"] = Pace(**pace | {"ramp": tuple(pace["ramp"])})
    spec["change"] = tuple(PatchOperation(**step) for step in spec.get("change", ()))
    said["spec"] = JobSpec(**spec)
    said["state"] = JobState(said["state"])
    said["counts"] = Counts(**said["counts"])
    said.pop("certain", None)  # it is found anew when the job goes on
    mark = said["checkpoint"]
    said["checkpoint"] = Checkpoint(
        mark["kept"],
        tuple(mark["window"]),
        mark["rest"],
        mark.get("end_is_sure", False),  # a job of an earlier version does not tell
        mark.get("saw_fresh", False),
        mark.get("has_twins", False),
        mark.get("last", ""),
        mark.get("last_stays"),
    )
    return JobRecord(**said)


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
    """A journal in a migrated database; `lease` seconds without a sign make a job interrupted.

    An active job belongs to the owner of its lease; the next to begin a job for the same queue puts one
    aside whose lease has run out. The database lets nobody change the audit. Entries are deleted only when
    they are older than a moment that was written down first, in a table to which rows can only be added as
    well: a program that shortens the audit leaves when, and up to which moment.
    """

    def __init__(self, engine: AsyncEngine, clock: Clock, *, lease: float = 30.0) -> None:
        self.engine = engine
        self._clock = clock
        self._lease = lease

    # --- jobs

    async def begin(self, job: JobRecord, owner: str) -> JobRecord:
        """Write down a job that starts, or goes on; the job of the same key if there is one."""
        with store_errors():
            try:
                await self._begin(job, owner)
            except IntegrityError:
                # Somebody was quicker: two processes began at the same moment.
                # The job itself, the active one of its queue, or the one of the same key.
                same = (jobs.c.queue == job.queue) & jobs.c.state.in_(ACTIVE)
                if job.spec.key is not None:
                    same |= jobs.c.key == job.spec.key
                wanted = (jobs.c.id == job.id) | ((jobs.c.place == job.spec.broker) & same)
                other = next(iter(await self._read_jobs(select(jobs).where(wanted).limit(1))), None)
                if other is None:
                    raise
                key = job.spec.key
                if other.id != job.id and key is not None and other.spec.key == key:
                    return other
                raise JobConflict(f"{job.queue!r} has an active job: {other.id}", other) from None
        return job

    async def _begin(self, job: JobRecord, owner: str) -> None:
        now = self._clock.now()
        values = {
            "place": job.spec.broker,
            "queue": job.queue,
            "state": job.state,
            "key": job.spec.key,
            "document": write_job(job),
            "wish": write_control(ControlRequest(rate=job.rate)),
            "leased_by": owner,
            "leased_until": now + self._lease,
            "ended_at": None,
        }
        async with self.engine.begin() as connection:
            await connection.execute(
                update(jobs)
                .where(
                    jobs.c.place == job.spec.broker,
                    jobs.c.queue == job.queue,
                    jobs.c.state.in_(ACTIVE),
                    jobs.c.leased_until < now,
                    jobs.c.id != job.id,
                )
                .values(state=JobState.INTERRUPTED, leased_by=None)
            )
            again = await connection.execute(
                update(jobs)
                .where(jobs.c.id == job.id, _is_free(now))
                .values(values)
                .returning(jobs.c.id)
            )
            if again.first() is None:
                await connection.execute(insert(jobs).values(id=job.id, **values))

    async def save(self, job: JobRecord, owner: str) -> None:
        """A job has another state, or is further on; LeaseLost if it is somebody else's now."""
        values = {
            "state": job.state,
            "document": write_job(job),
            "ended_at": self._clock.now() if job.is_over else None,
        }
        if not job.is_active:
            values |= {"leased_by": None, "leased_until": 0.0}
        await self._change_leased(job.id, owner, values)

    async def amend(self, job: JobRecord) -> None:
        """Write down something about a job that nobody runs; JobConflict if somebody does."""
        unheld = (jobs.c.id == job.id, _is_free(self._clock.now()))
        if await self._change(unheld, {"state": job.state, "document": write_job(job)}) is None:
            raise JobConflict(f"job {job.id} is running elsewhere", job)

    async def renew(self, job_id: str, owner: str) -> ControlRequest:
        """Still here; what is asked of the job. LeaseLost if it is somebody else's now."""
        until = {"leased_until": self._clock.now() + self._lease}
        return read_control(await self._change_leased(job_id, owner, until))

    async def control(self, job_id: str) -> ControlRequest:
        """What is asked of a job now."""
        query = select(jobs.c.wish).where(jobs.c.id == job_id)
        async with reading(self.engine) as connection:
            found = (await connection.execute(query)).scalar()
        if found is None:
            raise NoSuch("job", job_id)
        return read_control(found)

    async def set_control(self, job_id: str, request: ControlRequest) -> None:
        """Ask something of a job, wherever it runs."""
        await self._change((jobs.c.id == job_id,), {"wish": write_control(request)})

    async def _change_leased(self, job_id: str, owner: str, values: dict[str, Any]) -> str:
        """Change a job that is ours and tell what is asked of it; LeaseLost if it is ours no more."""
        asked = await self._change((jobs.c.id == job_id, jobs.c.leased_by == owner), values)
        if asked is None:
            raise LeaseLost(f"job {job_id} is run by another process now")
        return asked

    async def _change(self, where: Sequence[Any], values: dict[str, Any]) -> str | None:
        """Change the row; what is asked of the job, or None if there is no such row."""
        statement = update(jobs).where(*where).values(values).returning(jobs.c.wish)
        async with writing(self.engine) as connection:
            found = (await connection.execute(statement)).first()
        return None if found is None else str(found.wish)

    async def job(self, job_id: str) -> JobRecord | None:
        """One job as it is now, or None."""
        return next(iter(await self._read_jobs(select(jobs).where(jobs.c.id == job_id))), None)

    async def keyed(self, broker: str, key: str) -> JobRecord | None:
        """The job that was begun with this key, or None."""
        query = select(jobs).where(jobs.c.place == broker, jobs.c.key == key)
        return next(iter(await self._read_jobs(query)), None)

    async def jobs(
        self, *, broker: str = "", queue: str = "", active: bool = False, limit: int = 100
    ) -> tuple[JobRecord, ...]:
        """Jobs, the newest first."""
        query = select(jobs).order_by(jobs.c.number.desc()).limit(limit)
        if broker:
            query = query.where(jobs.c.place == broker)
        if queue:
            query = query.where(jobs.c.queue == queue)
        if active:
            query = query.where(jobs.c.state.in_(ACTIVE), jobs.c.leased_until >= self._clock.now())
        return await self._read_jobs(query)

    async def _read_jobs(self, query: Select[Any]) -> tuple[JobRecord, ...]:
        """Jobs as they are now; one whose process is gone is interrupted, whatever was written last."""
        now, found = self._clock.now(), []
        async with reading(self.engine) as connection:
            for row in await connection.execute(query):
                job = read_job(row.document)
                is_gone = row.state == JobState.INTERRUPTED or row.leased_until < now
                if job.is_active and is_gone:
                    job = replace(job, state=JobState.INTERRUPTED, reason=PROCESS_LOST)
                found.append(job)
        return tuple(found)

    async def add_failures(self, job_id: str, failures: Iterable[FailedMessage]) -> None:
        """Messages could not be moved, or were left out."""
        rows = [{"job": job_id, "document": write_failure(failed)} for failed in failures]
        if rows:
            async with writing(self.engine) as connection:
                await connection.execute(insert(job_failures), rows)

    async def failures(self, job_id: str, cursor: int, limit: int) -> tuple[FailedMessage, ...]:
        """What a job could not move, in order, from number `cursor` on."""
        query = (
            select(job_failures.c.document)
            .where(job_failures.c.job == job_id)
            .order_by(job_failures.c.number)
            .offset(cursor)
            .limit(limit)
        )
        async with reading(self.engine) as connection:
            return tuple(map(read_failure, (await connection.execute(query)).scalars()))

    # --- the audit

    async def write(self, entry: AuditEntry, broker: str = "") -> None:
        """Append to the audit, for that broker."""
        values = structs.asdict(entry) | {"details": json.dumps(dict(entry.details), default=str)}
        values["broker"] = broker
        del values["number"]  # the database gives it
        async with writing(self.engine) as connection:
            await connection.execute(insert(audit).values(values))

    async def read(
        self, query: AuditQuery, share: JournalShare | None = None
    ) -> tuple[AuditEntry, ...]:
        """Entries of the audit, the newest first: all of them, or those of one broker's share."""
        wanted = select(audit).order_by(audit.c.number.desc()).limit(query.limit)
        for name in ("by", "action", "queue", "job"):
            if value := getattr(query, name):
                wanted = wanted.where(audit.c[name] == value)
        if query.before is not None:
            wanted = wanted.where(audit.c.number < query.before)
        if share is not None and not share.is_first:
            wanted = wanted.where(audit.c.broker == share.own)
        elif share is not None and share.others:
            wanted = wanted.where(audit.c.broker.not_in(sorted(share.others)))
        async with reading(self.engine) as connection:
            return tuple(
                AuditEntry(
                    Moment(row.at), row.by, row.action, row.queue, row.job, row.reason, row.result,
                    json.loads(row.details), row.number,
                )
                for row in await connection.execute(wanted)
            )  # fmt: skip

    # --- what is too old

    async def forget(
        self, *, audit_before: float, jobs_before: float, now: float, limit: int
    ) -> Forgotten:
        """Delete at most `limit` rows of each kind; nothing is left to delete when none were."""
        finished, rows = await self._forget_jobs(jobs_before, limit)
        entries = await self._forget_entries(audit_before, now, limit)
        return Forgotten(entries, finished, rows + entries)

    async def _forget_jobs(self, before: float, limit: int) -> tuple[int, int]:
        """Delete at most `limit` rows of jobs that were over before then; how many jobs, and rows."""
        over = jobs.c.state.in_(_OVER)
        old = select(jobs.c.id).where(over, jobs.c.ended_at < before).order_by(jobs.c.number)
        async with writing(self.engine) as connection:
            # Jobs of an older Hopback do not say when they ended: their time begins now.
            await connection.execute(
                update(jobs)
                .where(over, jobs.c.ended_at.is_(None))
                .values(ended_at=self._clock.now())
            )
            ids = list((await connection.execute(old.limit(limit))).scalars())
            failures = select(job_failures.c.number).where(job_failures.c.job.in_(ids))
            numbers = list((await connection.execute(failures.limit(limit))).scalars())
            if numbers:  # a job may have more of them than fit: the job itself goes last
                await connection.execute(
                    delete(job_failures).where(job_failures.c.number.in_(numbers))
                )
                return 0, len(numbers)
            await connection.execute(delete(jobs).where(jobs.c.id.in_(ids)))
        return len(ids), len(ids)

    async def _forget_entries(self, before: float, now: float, limit: int) -> int:
        """Delete at most `limit` entries from before that moment, the oldest first; how many."""
        old = select(audit.c.number).where(audit.c.at < before).order_by(audit.c.number)
        async with writing(self.engine) as connection:
            numbers = list((await connection.execute(old.limit(limit))).scalars())
            if not numbers:
                return 0
            latest = select(func.max(audit_retention.c.deleted_before))
            said = (await connection.execute(latest)).scalar()
            if said is None or said < before:
                await connection.execute(
                    insert(audit_retention).values(at=now, deleted_before=before)
                )
            await connection.execute(delete(audit).where(audit.c.number.in_(numbers)))
        return len(numbers)

    # --- documents

    async def remember(
        self, broker: str, kind: str, documents: Mapping[str, str], now: float
    ) -> None:
        """Keep documents of a kind by their keys, in the place of those that were there."""
        if not documents:
            return
        there = (_documents.c.place == broker, _documents.c.kind == kind)
        rows = [
            {"place": broker, "kind": kind, "key": key, "at": now, "document": text}
            for key, text in documents.items()
        ]
        async with writing(self.engine) as connection:
            for start in range(0, len(rows), _CHUNK):
                some = rows[start : start + _CHUNK]
                keys = [row["key"] for row in some]
                await connection.execute(
                    delete(_documents).where(*there, _documents.c.key.in_(keys))
                )
                await connection.execute(insert(_documents), some)

    async def remembered(self, broker: str, kind: str) -> dict[str, str]:
        """The documents of a kind that are kept for a broker, by key."""
        found = select(_documents.c.key, _documents.c.document).where(
            _documents.c.place == broker, _documents.c.kind == kind
        )
        async with reading(self.engine) as connection:
            return {row.key: row.document for row in await connection.execute(found)}

    async def unlearn(self, broker: str, kind: str, key: str) -> None:
        """Delete a document; none there is no error."""
        one = (_documents.c.place == broker, _documents.c.kind == kind, _documents.c.key == key)
        async with writing(self.engine) as connection:
            await connection.execute(delete(_documents).where(*one))


def _is_free(now: float) -> ColumnElement[bool]:
    """Nobody runs it: it is not active, or its lease has run out."""
    return jobs.c.state.not_in(ACTIVE) | (jobs.c.leased_until < now)


@asynccontextmanager
async def open_journal(url: str, clock: Clock, *, lease: float = 30.0) -> AsyncIterator[SqlJournal]:
    """The journal in the database at this URL, which is migrated first; closed at the end."""
    engine = open_database(url)
    try:
        await migrate(engine, clock)
        yield SqlJournal(engine, clock, lease=lease)
    finally:
        await engine.dispose()


__getattr__: OldNameLookup = old_names(
    __name__,
    {
        "AuditRow": "hopback.deadletters.AuditEntry",
        "AuditTable": "SqlJournal",
        "JobRow": "hopback.deadletters.journal.JobRecord",
        "JobTable": "SqlJournal",
        "RowTaken": "hopback.errors.JobConflict",
        "read_wish": "read_control",
        "write_wish": "write_control",
    },
)
