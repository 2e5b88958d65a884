"""Delete old audit entries and finished jobs from the journal."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from hopback.headers import timestamp
from hopback.ops.contract.values import AuditEntry, Moment
from hopback.sql.database import Execute, Row, placeholders

if TYPE_CHECKING:
    from hopback.clock import Clock
    from hopback.ops.jobs.journal import Journal

AUDIT_DAYS = 365
"""Days (one year, for yearly audits) after which audit entries are deleted."""

JOB_DAYS = 90
"""Days (one quarter) after which finished jobs and their failures are deleted."""

_DAY_S = 86_400.0  # seconds
_CHUNK = 500  # rows per transaction, so that other writers of SQLite only wait for milliseconds
_NEVER = float("-inf")


async def forget_old(
    journal: Journal, clock: Clock, *, audit_days: int = AUDIT_DAYS, job_days: int = JOB_DAYS
) -> tuple[int, int]:
    """Delete old audit entries and jobs, and record this in the audit. Returns both numbers.

    0 days means that nothing is deleted. Only completed and cancelled jobs are deleted, because all
    others can be resumed.
    """
    now = clock.now()
    audit_before = now - audit_days * _DAY_S if audit_days else _NEVER
    jobs_before = now - job_days * _DAY_S if job_days else _NEVER
    entries = jobs = 0
    while True:
        finished, rows = await journal.database.write(partial(_forget_jobs, before=jobs_before))
        old = await journal.database.write(partial(_forget_entries, before=audit_before, now=now))
        entries, jobs = entries + old, jobs + finished
        if not (rows or old):
            break
        await asyncio.sleep(0)  # let other tasks use the database
    if entries or jobs:
        details: dict[str, object] = {"entries": entries, "jobs": jobs}
        if entries:
            details["entriesBefore"] = timestamp(audit_before)
        if jobs:
            details["jobsEndedBefore"] = timestamp(jobs_before)
        await journal.write_entry(
            AuditEntry(Moment(now), "hopback", "audit.retention", details=details)
        )
    return entries, jobs


def _forget_jobs(execute: Execute, *, before: float) -> tuple[int, int]:
    """Delete up to `_CHUNK` rows of jobs that ended before a time. Returns the number of jobs and rows."""
    ids = [
        job
        for (job,) in execute(
            "SELECT id FROM hopback_jobs WHERE state IN ('completed', 'cancelled')"
            " AND ended_at < :before ORDER BY number LIMIT :limit",
            {"before": before, "limit": _CHUNK},
        )
    ]
    if not ids:
        return 0, 0
    names, jobs = placeholders("job", ids)
    # There can be more failures than that, so jobs are deleted after their failures.
    numbers = execute(
        f"SELECT number FROM hopback_job_failures WHERE job_id IN ({names}) LIMIT :limit",
        {**jobs, "limit": _CHUNK},
    )
    if numbers:
        _delete_numbers(execute, "hopback_job_failures", numbers)
        return 0, len(numbers)
    execute(f"DELETE FROM hopback_jobs WHERE id IN ({names})", jobs)
    return len(ids), len(ids)


def _forget_entries(execute: Execute, *, before: float, now: float) -> int:
    """Delete up to `_CHUNK` entries older than a time, oldest first. Returns their number."""
    numbers = execute(
        "SELECT number FROM hopback_audit WHERE at < :before ORDER BY number LIMIT :limit",
        {"before": before, "limit": _CHUNK},
    )
    if numbers:
        ((deleted,),) = execute("SELECT MAX(deleted_before) FROM hopback_audit_retention")
        if deleted is None or deleted < before:
            execute(
                "INSERT INTO hopback_audit_retention (at, deleted_before) VALUES (:now, :before)",
                {"now": now, "before": before},
            )
        _delete_numbers(execute, "hopback_audit", numbers)
    return len(numbers)


def _delete_numbers(execute: Execute, table: str, numbers: list[Row]) -> None:
    names, named = placeholders("number", (number for (number,) in numbers))
    execute(f"DELETE FROM {table} WHERE number IN ({names})", named)
