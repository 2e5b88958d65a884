"""The progress of a running job: its counts and its state, saved with the cursor's checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from hopback.ops.contract.values import Counts, DeadLetter, FailedMessage, JobState, Moment
from hopback.ops.jobs.leased_job import EndJob, LeasedJob

if TYPE_CHECKING:
    from hopback.clock import Clock
    from hopback.ops.jobs.cursor_driver import CursorDriver
    from hopback.ops.jobs.job_record import JobRecord

SAVE_EVERY_S = 1.0
"""Seconds between two saves of the counts: often enough for a page, rare enough for a database."""


class JobProgress:
    """Counts the messages of one run and saves the job.

    A run that resumes a job takes some messages again. Operators never see a count decrease by that.
    """

    def __init__(self, leased: LeasedJob, driver: CursorDriver, clock: Clock) -> None:
        self.counts: Counts = leased.job.certain or leased.job.counts
        """Without the messages that this run has acked: the driver counts them."""
        self.shown_before: Counts = leased.job.counts
        self._leased = leased
        self._driver = driver
        self._clock = clock
        self._failures: list[FailedMessage] = []
        self._saved_at = clock.now()

    @property
    def total(self) -> Counts:
        """The counts with the messages that this run has acked."""
        return structs.replace(self.counts, done=self.counts.done + self._driver.acked)

    def add(self, *, done: int = 0, skipped: int = 0, failed: int = 0) -> None:
        """Count messages of the selection."""
        now = self.counts
        self.counts = structs.replace(
            now, done=now.done + done, skipped=now.skipped + skipped, failed=now.failed + failed
        )

    def add_failure(self, dead_letter: DeadLetter, reason: str) -> None:
        """List a message that stays in the queue, with the reason."""
        ids = dead_letter.id, dead_letter.digest, dead_letter.message_id
        self._failures.append(FailedMessage(*ids, reason, Moment(self._clock.now())))

    async def save(self) -> None:
        """Save the checkpoint and the counts."""
        self._saved_at = self._clock.now()
        job = self._count(self._shown, self._saved_at)
        await self._write(replace(job, rate=self._leased.control.rate))

    async def save_if_due(self) -> None:
        """Save if the last save is a second ago."""
        if self._clock.now() - self._saved_at >= SAVE_EVERY_S:
            await self.save()

    async def enter(self, state: JobState, reason: str) -> None:
        """Save the job in another state."""
        if state is self._leased.job.state:
            return
        now = self._clock.now()
        # At the end every message has been seen again: these counts are exact.
        counts = self.total if state is JobState.COMPLETED else self._shown
        if state not in (JobState.RUNNING, JobState.PAUSED):
            counts = structs.replace(counts, returned=self._driver.held)
        await self._write(self._count(counts, now).to(state, now, reason))

    async def obey(self) -> None:
        """Wait while the job is paused. EndJob if it is cancelled. No message may be in flight."""
        control = self._leased.control
        if control.is_paused and not control.is_cancelled:
            await self.enter(JobState.PAUSED, "paused")
            while not await control.wait_at(self._leased.job.rate):
                await self.save()  # shows that the new rate was accepted
            if not control.is_cancelled:
                await self.enter(JobState.RUNNING, "")
        if control.is_cancelled:
            raise EndJob(JobState.CANCELLED, "cancelled")

    def _count(self, counts: Counts, now: float) -> JobRecord:
        self._driver.receive_delivered()
        return self._leased.job.counted(counts, self._driver.cursor.checkpoint(), now)

    @property
    def _shown(self) -> Counts:
        now, before = self.total, self.shown_before
        return structs.replace(
            now,
            done=max(now.done, before.done),
            skipped=max(now.skipped, before.skipped),
            failed=max(now.failed, before.failed),
        )

    async def _write(self, job: JobRecord) -> None:
        failures, self._failures = self._failures, []
        await self._leased.write(job, failures)
