"""Delete old audit entries and finished jobs from the journal."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.headers import timestamp
from hopback.ops.contract.values import AuditEntry, Moment

if TYPE_CHECKING:
    from hopback.clock import Clock
    from hopback.ops.jobs.journal import Journal

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
