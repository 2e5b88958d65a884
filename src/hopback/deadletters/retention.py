"""How long jobs and the audit are kept, and the deletion of what is older, a little at a time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.deadletters.contract import AuditEntry, Moment
from hopback.headers import timestamp

if TYPE_CHECKING:
    from hopback.clock import Clock
    from hopback.deadletters.journal import Journal

__all__ = ["AUDIT_DAYS", "JOB_DAYS", "Forgotten", "Retention", "forget_old"]

AUDIT_DAYS = 365
"""A year: the question who did this comes up at the next audit at the latest."""

JOB_DAYS = 90
"""A quarter: longer than anybody asks for the failures of a job that is over."""

_DAY_S = 86_400.0
_CHUNK = 500  # rows of one transaction: others wait for a writer of SQLite no longer than some ms
_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Retention:
    """Days that something is kept; 0 keeps it for ever.

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
        await asyncio.sleep(0)  # whoever waits for the loop or the database goes first
    if entries or jobs:
        details: dict[str, object] = {"entries": entries, "jobs": jobs}
        if entries:
            details["entriesBefore"] = timestamp(audit_before)
        if jobs:
            details["jobsEndedBefore"] = timestamp(jobs_before)
        await journal.write(AuditEntry(Moment(now), "hopback", "audit.retention", details=details))
    return Forgotten(entries, jobs, entries + jobs)
