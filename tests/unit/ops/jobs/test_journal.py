"""How long a journal of one process keeps jobs and audit, and how it reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.clock import ManualClock
from hopback.ops.contract.requests import AuditQuery, RedriveRequest
from hopback.ops.contract.values import AuditEntry, JobState, Moment
from hopback.ops.http.settings import AdminSettings, parse_settings
from hopback.ops.jobs.job_record import JobRecord, JobSpec
from hopback.ops.jobs.journal import MemoryJournal
from hopback.ops.jobs.retention import forget_old

if TYPE_CHECKING:
    import pytest

_DAY = 86_400.0


async def test_retention_deletes_old_audit_entries_and_jobs() -> None:
    """One audit entry records it. Numbers are not reused."""
    clock = ManualClock(0.0)
    journal = MemoryJournal(clock)
    for number, state in enumerate((JobState.COMPLETED, JobState.FAILED)):
        spec = JobSpec(
            request=RedriveRequest(queue=f"q{number}.dlq", reason="t"),
            broker="here",
        )
        job = JobRecord(f"j-{number}", spec)
        await journal.begin(job, "me")
        await journal.save(job.to(state, 1.0), "me")
    for at in (1.0, 2.0, 399 * _DAY):
        await journal.write_entry(AuditEntry(Moment(at), "Ann", "job.start"))
    clock.advance(400 * _DAY)
    found = await forget_old(journal, clock)
    assert found == (2, 1)
    assert [job.id for job in await journal.jobs()] == ["j-1"]
    entries = await journal.read_entries(AuditQuery())
    assert [(entry.number, entry.action) for entry in entries] == [
        (4, "audit.retention"),
        (3, "job.start"),
    ]


def test_retention_defaults_and_settings_of_service() -> None:
    default = AdminSettings().retention
    assert (default.audit_days, default.job_days) == (365, 90)
    said = parse_settings({"retention": {"audit_days": 0}}, {}, "test").retention
    assert (said.audit_days, said.job_days) == (0, 90)


async def test_retention_of_zero_days_keeps_everything() -> None:
    clock = ManualClock(0.0)
    journal = MemoryJournal(clock)
    await journal.write_entry(AuditEntry(Moment(0), "Ann", "job.start"))
    clock.advance(1e9)
    assert await forget_old(journal, clock, audit_days=0, job_days=0) == (0, 0)
    assert len(await journal.read_entries(AuditQuery())) == 1


async def test_unreadable_job_is_logged_and_other_jobs_are_listed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = MemoryJournal(ManualClock(0.0))
    for name in ("j-0", "j-1"):
        request = RedriveRequest(queue=f"{name}.dlq", reason="t")
        await journal.begin(JobRecord(name, JobSpec(request=request, broker="here")), "me")
    spoil = "UPDATE hopback_jobs SET document = replace(document, '\"t\"', '\"\"') WHERE id = 'j-0'"
    await journal.database.write(lambda execute: execute(spoil))
    assert [job.id for job in await journal.jobs()] == ["j-1"]
    assert await journal.job("j-0") is None
    assert "job j-0 in the journal cannot be read" in caplog.text
