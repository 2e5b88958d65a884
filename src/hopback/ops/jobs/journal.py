"""The journal in a database. Jobs survive their processes, and a queue can only have one active
job.

Processes that use the same database and broker share their jobs. If the process of a job does not
renew its lease, the job is treated as interrupted. SQLite files do not need any extra. PostgreSQL
requires the extra `postgres`.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from secrets import token_hex
from typing import TYPE_CHECKING

import msgspec

from hopback.clock import Clock, SystemClock
from hopback.errors import JobConflict, LeaseLost, NoSuch
from hopback.ops.contract.values import ACTIVE, AuditEntry, FailedMessage, JobState, Moment
from hopback.ops.jobs.control import ControlRequest
from hopback.ops.jobs.job_record import PROCESS_LOST, JobRecord
from hopback.sql.database import Execute, Row, RowRefused, SqlDatabase, placeholders
from hopback.sql.sqlite import MemoryDatabase, SqliteDatabase, sqlite_file

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from hopback.ops.contract.requests import AuditQuery


_log = logging.getLogger("hopback.ops")

_IS_ACTIVE = "state IN ({})".format(", ".join(f"'{state}'" for state in sorted(ACTIVE)))
_IS_FREE = f"(NOT {_IS_ACTIVE} OR leased_until < :now)"
"""Selects jobs that no process runs, because they are not active or their lease has expired."""

_ENCODER = msgspec.json.Encoder(enc_hook=float)  # a Moment is written with all its digits
_JOB = msgspec.json.Decoder(JobRecord)
_CONTROL = msgspec.json.Decoder(ControlRequest)
_FAILURE = msgspec.json.Decoder(FailedMessage, dec_hook=lambda _, seconds: Moment(seconds))


def _to_json(value: object) -> str:
    return _ENCODER.encode(value).decode()


@dataclass(frozen=True, slots=True)
class JournalShare:
    """The part of a shared journal that belongs to a broker.

    The part of the first broker (`is_first`) also includes entries without a broker, and those of
    brokers that are no longer served. Entries of `others` are excluded.
    """

    own: str
    others: frozenset[str] = frozenset()
    is_first: bool = True

    def holds(self, broker: str) -> bool:
        """Return whether entries of a broker belong to this part."""
        return broker == self.own or (self.is_first and broker not in self.others)


class Journal:
    """Jobs and audit entries in a database. All methods return after their changes are durable.

    A running job is leased to its `owner`, which is a run in a process. If the lease is not renewed
    for `lease_s` seconds, the job is treated as interrupted. It is updated when another job is
    started for the queue. Database triggers prevent changes to the audit. Entries can only be
    deleted if they are older than a time in `hopback_audit_retention`. It is only possible to add
    rows to this table, so there is a record of every deletion.
    """

    def __init__(self, database: SqlDatabase, clock: Clock, *, lease_s: float = 30.0) -> None:
        self.database = database
        self._clock = clock
        self.lease_s = lease_s
        self._store_id = ""

    async def begin(self, job: JobRecord, owner: str) -> JobRecord:
        """Save a job that is started or resumed, and return it.

        If a job with the same key exists, that job is returned. Raises JobConflict if another job
        for the queue is active.
        """
        now = self._clock.now()
        try:
            await self.database.write(partial(_begin, job, owner, now, now + self.lease_s))
        except RowRefused:
            # Another process has started a job at the same time.
            key = job.spec.submission.key
            same = None if key is None else await self.keyed(job.spec.broker, key)
            if same is not None and same.id != job.id:
                return same
            other = await self._first_job(
                f"id = :id OR (broker = :broker AND queue = :queue AND {_IS_ACTIVE})",
                {"id": job.id, "broker": job.spec.broker, "queue": job.queue},
            )
            if other is None:
                raise
            raise JobConflict(f"{job.queue!r} has an active job: {other.id}", other) from None
        return job

    async def save(
        self,
        job: JobRecord,
        owner: str,
        failures: Iterable[FailedMessage] = (),
        *,
        is_restart: bool = False,
    ) -> None:
        """Save the state and the progress of a job, and the messages that it could not move or has
        skipped.

        If `is_restart` is True, those of earlier runs are deleted. Raises LeaseLost if another owner
        has the job.
        """
        values = self._state_values(job)
        if not job.is_active:
            values |= {"leased_by": None, "leased_until": 0.0}
        rows: list[dict[str, object]] = [
            {"job_id": job.id, "document": _to_json(failed)} for failed in failures
        ]

        def save_failures(execute: Execute) -> None:
            if is_restart:
                execute("DELETE FROM hopback_job_failures WHERE job_id = :id", {"id": job.id})
            if rows:
                _insert("hopback_job_failures", rows, execute)

        await self._change_leased(job.id, owner, values, save_failures)

    async def amend(self, job: JobRecord) -> None:
        """Save a job that is not running. Raises JobConflict if a process runs it."""
        values = self._state_values(job)
        unheld = {"id": job.id, "now": self._clock.now()}
        if await self._change(f"id = :id AND {_IS_FREE}", unheld, values) is None:
            raise JobConflict(f"job {job.id} is running elsewhere", job)

    def _state_values(self, job: JobRecord) -> dict[str, object]:
        return {
            "state": job.state.value,
            "document": _to_json(job),
            "ended_at": self._clock.now() if job.is_over else None,
        }

    async def renew(self, job_id: str, owner: str) -> ControlRequest:
        """Renew the lease and return the control request. Raises LeaseLost if another owner has the job."""
        until = {"leased_until": self._clock.now() + self.lease_s}
        return _CONTROL.decode(await self._change_leased(job_id, owner, until))

    async def control(self, job_id: str) -> ControlRequest:
        found = await self._rows("SELECT control FROM hopback_jobs WHERE id = :id", {"id": job_id})
        if not found:
            raise NoSuch("job", job_id)
        return _CONTROL.decode(found[0][0])

    async def change_control(
        self, job_id: str, change: Callable[[ControlRequest], ControlRequest]
    ) -> ControlRequest:
        """Change the control request of a job in one transaction and return it.

        Raises NoSuch if the job does not exist.
        """

        def apply(execute: Execute) -> ControlRequest:
            # Lock the row with an update. On PostgreSQL, another process could change it after a
            # SELECT.
            found = execute(
                "UPDATE hopback_jobs SET control = control WHERE id = :id RETURNING control",
                {"id": job_id},
            )
            if not found:
                raise NoSuch("job", job_id)
            request = change(_CONTROL.decode(found[0][0]))
            execute(
                "UPDATE hopback_jobs SET control = :control WHERE id = :id",
                {"id": job_id, "control": _to_json(request)},
            )
            return request

        return await self.database.write(apply)

    async def _change_leased(
        self,
        job_id: str,
        owner: str,
        values: Mapping[str, object],
        also: Callable[[Execute], None] | None = None,
    ) -> str:
        """Change a job of this owner and return its control request. Raises LeaseLost if another has it."""
        ours = {"id": job_id, "owner": owner}
        asked = await self._change("id = :id AND leased_by = :owner", ours, values, also)
        if asked is None:
            raise LeaseLost(f"job {job_id} is run by another process now")
        return asked

    async def _change(
        self,
        where: str,
        named: Mapping[str, object],
        values: Mapping[str, object],
        also: Callable[[Execute], None] | None = None,
    ) -> str | None:
        """Change a job and return its control request. Returns None if no row matches.

        If a row matches, `also` is called in the same transaction.
        """
        changes = ", ".join(f"{column} = :{column}" for column in values)
        statement = f"UPDATE hopback_jobs SET {changes} WHERE {where} RETURNING control"

        def apply(execute: Execute) -> list[Row]:
            rows = execute(statement, {**named, **values})
            if rows and also is not None:
                also(execute)
            return rows

        found = await self.database.write(apply)
        return None if not found else str(found[0][0])

    async def job(self, job_id: str) -> JobRecord | None:
        """Return a job, or None if it does not exist."""
        return await self._first_job("id = :id", {"id": job_id})

    async def keyed(self, broker: str, key: str) -> JobRecord | None:
        """Return the job with an idempotency key, or None if there is none."""
        return await self._first_job(
            "broker = :broker AND idempotency_key = :key", {"broker": broker, "key": key}
        )

    async def _first_job(self, where: str, named: Mapping[str, object]) -> JobRecord | None:
        return next(iter(await self._read_jobs(where, named, 1)), None)

    async def jobs(
        self,
        *,
        broker: str = "",
        queue: str = "",
        active: bool = False,
        interrupted: bool = False,
        resumable: bool = False,
        limit: int | None = None,
    ) -> tuple[JobRecord, ...]:
        """Return jobs, newest first. Those that are `resumable` are neither running nor over."""
        wanted, named = ["1 = 1"], dict[str, object]()
        if broker:
            wanted.append("broker = :broker")
            named["broker"] = broker
        if queue:
            wanted.append("queue = :queue")
            named["queue"] = queue
        if active:
            wanted.append(f"{_IS_ACTIVE} AND leased_until >= :now")
        if interrupted:
            wanted.append(f"(state = :interrupted OR {_IS_ACTIVE} AND leased_until < :now)")
            named["interrupted"] = JobState.INTERRUPTED.value
        if resumable:
            wanted.append(f"ended_at IS NULL AND {_IS_FREE}")
        if active or interrupted or resumable:
            named["now"] = self._clock.now()
        most = sys.maxsize if limit is None else limit
        return await self._read_jobs(" AND ".join(wanted), named, most)

    async def _read_jobs(
        self, where: str, named: Mapping[str, object], limit: int
    ) -> tuple[JobRecord, ...]:
        """Read jobs. If the lease of a job has expired, its state is interrupted.

        Documents that cannot be read are skipped, so that the other jobs are still listed.
        """
        rows = await self._rows(
            f"SELECT id, document, state, leased_until FROM hopback_jobs WHERE {where}"
            " ORDER BY number DESC LIMIT :limit",
            {**named, "limit": limit},
        )
        now, found = self._clock.now(), []
        for job_id, document, state, leased_until in rows:
            try:
                job = _JOB.decode(document)
            except msgspec.DecodeError as error:
                _log.warning("job %s in the journal cannot be read: %s", job_id, error)
                continue
            if job.is_active and (state == JobState.INTERRUPTED or leased_until < now):
                job = replace(job, state=JobState.INTERRUPTED, state_reason=PROCESS_LOST)
            found.append(job)
        return tuple(found)

    async def failures(self, job_id: str, cursor: int, limit: int) -> tuple[FailedMessage, ...]:
        """Return messages that a job could not move in order, starting with number `cursor`."""
        rows = await self._rows(
            "SELECT document FROM hopback_job_failures WHERE job_id = :job"
            " ORDER BY number LIMIT :limit OFFSET :cursor",
            {"job": job_id, "limit": limit, "cursor": cursor},
        )
        return tuple(_FAILURE.decode(document) for (document,) in rows)

    async def write_entry(self, entry: AuditEntry, broker: str = "") -> None:
        """Append an entry of a broker to the audit."""
        values: dict[str, object] = msgspec.structs.asdict(entry)
        values |= {"details": json.dumps(dict(entry.details), default=str), "broker": broker}
        del values["number"]  # assigned by the database
        await self.database.write(partial(_insert, "hopback_audit", [values]))

    async def read_entries(
        self, query: AuditQuery, share: JournalShare | None = None
    ) -> tuple[AuditEntry, ...]:
        """Return audit entries, newest first. If `share` is set, only those of one broker are returned."""
        wanted, named = ["1 = 1"], dict[str, object](limit=query.limit)
        for name in ("by", "action", "queue", "job"):
            if value := getattr(query, name):
                wanted.append(f'"{name}" = :{name}')
                named[name] = value
        if query.before is not None:
            wanted.append("number < :before")
            named["before"] = query.before
        if share is not None and not share.is_first:
            wanted.append("broker = :own")
            named["own"] = share.own
        elif share is not None and share.others:
            names, others = placeholders("other", sorted(share.others))
            wanted.append(f"broker NOT IN ({names})")
            named |= others
        rows = await self._rows(
            'SELECT at, "by", action, queue, job, reason, result, details, number FROM hopback_audit'
            f" WHERE {' AND '.join(wanted)} ORDER BY number DESC LIMIT :limit",
            named,
        )
        return tuple(
            AuditEntry(
                Moment(at), by, action, queue, job, reason, result, json.loads(details), number
            )
            for at, by, action, queue, job, reason, result, details, number in rows
        )

    async def store_id(self) -> str:
        """Return the hexadecimal id of this store, which distinguishes it from other stores."""
        if not self._store_id:
            new = {"now": self._clock.now(), "document": token_hex(4)}

            def choose(execute: Execute) -> str:
                execute(
                    "INSERT INTO hopback_documents (broker, kind, key, saved_at, document)"
                    " VALUES ('', 'store', 'id', :now, :document)"
                    " ON CONFLICT (broker, kind, key) DO NOTHING",
                    new,
                )
                ((found,),) = execute(
                    "SELECT document FROM hopback_documents"
                    " WHERE broker = '' AND kind = 'store' AND key = 'id'"
                )
                return str(found)

            self._store_id = await self.database.write(choose)
        return self._store_id

    async def _rows(self, statement: str, named: Mapping[str, object]) -> list[Row]:
        return await self.database.read(lambda execute: execute(statement, named))


class MemoryJournal(Journal):
    """A journal in memory for a single process. Its leases do not expire."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(MemoryDatabase(), clock or SystemClock(), lease_s=inf)


def _begin(job: JobRecord, owner: str, now: float, until: float, execute: Execute) -> None:
    """Insert or update a job. Other jobs of the queue are interrupted if their lease has expired."""
    values: dict[str, object] = {
        "id": job.id,
        "broker": job.spec.broker,
        "queue": job.queue,
        "state": job.state.value,
        "idempotency_key": job.spec.submission.key,
        "document": _to_json(job),
        "control": _to_json(ControlRequest(rate=job.rate)),
        "leased_by": owner,
        "leased_until": until,
        "ended_at": None,
    }
    execute(
        "UPDATE hopback_jobs SET state = :interrupted, leased_by = NULL"
        f" WHERE broker = :broker AND queue = :queue AND {_IS_ACTIVE}"
        " AND leased_until < :now AND id <> :id",
        {name: values[name] for name in ("id", "broker", "queue")}
        | {"interrupted": JobState.INTERRUPTED.value, "now": now},
    )
    changes = ", ".join(f"{column} = :{column}" for column in values if column != "id")
    again = execute(
        f"UPDATE hopback_jobs SET {changes} WHERE id = :id AND {_IS_FREE} RETURNING id",
        {**values, "now": now},
    )
    if not again:
        columns, names = ", ".join(values), ", ".join(f":{column}" for column in values)
        execute(f"INSERT INTO hopback_jobs ({columns}) VALUES ({names})", values)


def _insert(table: str, rows: list[dict[str, object]], execute: Execute) -> None:
    """Insert rows that have the same columns."""
    columns = ", ".join(f'"{column}"' for column in rows[0])
    names = ", ".join(f":{column}" for column in rows[0])
    execute(f"INSERT INTO {table} ({columns}) VALUES ({names})", rows)


@asynccontextmanager
async def open_journal(url: str, clock: Clock, *, lease_s: float = 30.0) -> AsyncIterator[Journal]:
    """Open the journal in a database, and close it when the context exits.

    SQLite files are opened when they are first used. Other databases require the extra `postgres`
    and are migrated first.
    """
    file = sqlite_file(url)
    if file is not None:
        database = SqliteDatabase(file, clock)
        try:
            yield Journal(database, clock, lease_s=lease_s)
        finally:
            await database.close()
        return
    from hopback.store.database import EngineDatabase, migrate, open_database, store_errors

    engine = open_database(url)
    try:
        with store_errors():
            await migrate(engine, clock)
        yield Journal(EngineDatabase(engine), clock, lease_s=lease_s)
    finally:
        await engine.dispose()
