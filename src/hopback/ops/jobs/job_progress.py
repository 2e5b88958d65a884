"""The progress of a running job. Its counts and state are saved with the checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from hopback.ops.contract.values import Counts, DeadLetter, FailedMessage, JobState, Moment

if TYPE_CHECKING:
    from hopback.ops.jobs.cursor_driver import CursorDriver
    from hopback.ops.jobs.job_record import JobRecord
    from hopback.ops.jobs.leased_job import LeasedJob

SAVE_EVERY_S = 1.0
"""Seconds between saves of the counts. This is sufficient for a page and does not load the database."""


class JobProgress:
    """Count the messages of a run and save the job.

    A run that resumes a job takes some messages again. The counts shown to operators never decrease
    because of this.
    """

    def __init__(self, leased: LeasedJob, driver: CursorDriver) -> None:
        job = leased.job
        self._counts = job.counts if job.run == 1 else certain_counts(job)
        """The counts without messages acked in this run, which the driver counts."""
        self._leased = leased
        self._driver = driver
        self._failures: list[FailedMessage] = []
        self._is_restart = False
        self._saved_at = leased.clock.now()

    @property
    def counts(self) -> Counts:
        """The exact counts of the job, as far as this run knows them."""
        return structs.replace(self._counts, done=self._counts.done + self._driver.acked)

    def add(self, *, done: int = 0, skipped: int = 0, failed: int = 0) -> None:
        """Add to the counts of selected messages."""
        now = self._counts
        self._counts = structs.replace(
            now, done=now.done + done, skipped=now.skipped + skipped, failed=now.failed + failed
        )

    def restart(self, left: int | None) -> None:
        """Restart counting when a job is resumed. `left` is how many selected messages it still has
        to take, or None if this is unknown.

        The run takes all messages again that earlier runs have left in the queue, so their failures
        are deleted. Otherwise a message would be listed twice, or although it was moved.
        """
        if left is not None:
            done = max(self._counts.selected - left, 0)
            self._counts = structs.replace(self._counts, done=done, skipped=0, failed=0)
        self._is_restart = True

    def set_counts(self, **counts: int | None) -> None:
        """Set the counts of messages that the job does not move, such as arrived, returned or gone ones."""
        self._counts = structs.replace(self._counts, **counts)

    def add_failure(self, dead_letter: DeadLetter, reason: str) -> None:
        """Record a message that stays in the queue, with the reason."""
        ids = dead_letter.id, dead_letter.digest, dead_letter.message_id
        self._failures.append(FailedMessage(*ids, reason, Moment(self._leased.clock.now())))

    async def save(self) -> None:
        """Save the checkpoint and the counts."""
        self._saved_at = self._leased.clock.now()
        job = self._count(self._shown, self._saved_at)
        await self._write(replace(job, rate=self._leased.control.rate))

    async def save_if_due(self) -> None:
        """Save if the last time was at least a second ago."""
        if self._leased.clock.now() - self._saved_at >= SAVE_EVERY_S:
            await self.save()

    async def enter(self, state: JobState, reason: str) -> None:
        """Change the state of the job and save it."""
        if state is self._leased.job.state:
            return
        now = self._leased.clock.now()
        # All messages have been processed again at the end, so these counts are exact.
        counts = self.counts if state is JobState.COMPLETED else self._shown
        if state not in (JobState.RUNNING, JobState.PAUSED):
            counts = structs.replace(counts, returned=self._driver.held)
        await self._write(self._count(counts, now).to(state, now, reason))

    async def obey(self) -> None:
        """Wait while the job is paused. Raises EndJob if it is cancelled. No messages may be in flight."""
        control = self._leased.control
        while control.is_paused:
            await self.enter(JobState.PAUSED, "paused")
            if control.rate == self._leased.job.rate:
                await control.wait_for_change()
            else:
                await self.save()  # shows that the new rate was accepted
        control.check()
        await self.enter(JobState.RUNNING, "")

    def _count(self, counts: Counts, now: float) -> JobRecord:
        self._driver.receive_delivered()
        return self._leased.job.counted(counts, self._driver.cursor.checkpoint(), now)

    @property
    def _shown(self) -> Counts:
        """The counts for operators. A resumed job may have counted more before it was interrupted."""
        now, before = self.counts, self._leased.job.counts
        return structs.replace(
            now,
            done=max(now.done, before.done),
            skipped=max(now.skipped, before.skipped),
            failed=max(now.failed, before.failed),
        )

    async def _write(self, job: JobRecord) -> None:
        failures, self._failures = self._failures, []
        is_restart, self._is_restart = self._is_restart, False
        await self._leased.write(job, failures, is_restart=is_restart)


def certain_counts(job: JobRecord) -> Counts:
    """Return the counts of an interrupted job, which only include messages that are certainly finished."""
    checkpoint, counts = job.checkpoint, job.counts
    is_chosen = job.spec.chosen is not None
    if is_chosen or checkpoint.kept or checkpoint.rest:
        # The next run takes messages again that this run has left in the queue.
        counts = structs.replace(counts, skipped=0, failed=0)
        left = counts.selected if is_chosen else checkpoint.kept + checkpoint.rest
    else:
        left = counts.skipped + counts.failed
    left += len(checkpoint.window) + checkpoint.unsure
    return structs.replace(counts, done=max(counts.selected - left, 0), returned=0)
