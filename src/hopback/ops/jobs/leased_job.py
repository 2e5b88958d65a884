"""A job that runs in this process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.ops.brokers.consumers import job_tag
from hopback.ops.jobs.control import Control

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.port import Connection
    from hopback.clock import Clock
    from hopback.ops.browse.queue_messages import QueueMessages
    from hopback.ops.contract.values import FailedMessage, JobState
    from hopback.ops.jobs.job_record import JobRecord
    from hopback.ops.jobs.journal import Journal


class LeasedJob:
    """A job that runs in this process, with its lease and the requests of operators.

    It is used for all runs of the engine. Each reconnection starts another run.
    """

    def __init__(self, job: JobRecord, owner: str, journal: Journal, clock: Clock) -> None:
        self.job: JobRecord = job
        self.owner = owner
        self.control: Control = Control(job.rate)
        self.changed: asyncio.Event = asyncio.Event()
        """Set whenever the job changes. A task that waits for it has to clear it first."""
        self.task: asyncio.Task[None] | None = None
        self.handed: tuple[Connection, QueueMessages] | None = None
        """Messages that a browse session has handed over to the first run, and their connection."""
        self.sent_again = 0
        """The number of finished messages that were sent again, excluding those in the checkpoint."""
        self.watched = 0
        """The number of sent messages that were watched and did not return."""
        self.clock = clock
        self._journal = journal

    @property
    def remark(self) -> str:
        """A remark for operators that is added to the reason when the job ends."""
        if not self.sent_again:
            return ""
        return f"{self.sent_again:,} were sent again: the broker was killed and lost their acks"

    async def consumer_tag(self) -> str:
        """Return the prefix of the job's consumer tags."""
        return job_tag(await self._journal.store_id(), self.job.id)

    async def write(
        self, job: JobRecord, failures: Iterable[FailedMessage] = (), *, is_restart: bool = False
    ) -> None:
        """Save the job and notify its readers. Raises LeaseLost if another process runs it.

        If `is_restart` is True, `failures` replace those of earlier runs.
        """
        await self._journal.save(job, self.owner, failures, is_restart=is_restart)
        self.show(job)

    async def give_reason(self, reason: str, state: JobState | None = None) -> None:
        """Save why the active job waits, and its new state. `reason` is empty when it continues."""
        now = self.clock.now()
        job = self.job if state is None else self.job.to(state, now)
        await self.write(replace(job, state_reason=reason, updated=now, changes=job.changes + 1))

    def show(self, job: JobRecord) -> None:
        """Notify readers in this process of a change. It does not have to be saved."""
        self.job = job
        self.changed.set()
