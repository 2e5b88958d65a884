"""A job while it runs in this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hopback.ops.jobs.pace import Control

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.ops.contract.values import FailedMessage
    from hopback.ops.jobs.journal import JobRecord, Journal


class JobRun:
    """A job while it runs in this process: as it is now, what people want of it, and who has its lease."""

    def __init__(self, job: JobRecord, owner: str, journal: Journal) -> None:
        self.job: JobRecord = job
        self.owner = owner
        self.control: Control = Control(job.rate)
        self.changed: asyncio.Event = asyncio.Event()
        """Set when there is news; a task that waits for it clears it first."""
        self.task: asyncio.Task[None] | None = None
        self.sent_again = 0
        """How many done messages went once more, besides those of its marks."""
        self.remark = ""
        """What people should know when it has ended."""
        self.watched = 0
        """How many of the messages that it sent were watched, and did not come back."""
        self.doubt = ""
        """Why nobody can tell whether it is through, if the queue has more than it should have."""
        self._journal = journal

    async def write(self, job: JobRecord, failures: Iterable[FailedMessage] = ()) -> None:
        """Write down how far it is, then say so; LeaseLost if it is somebody else's now."""
        if failures:
            await self._journal.add_failures(job.id, failures)
        await self._journal.save(job, self.owner)
        self.tell(job)

    def tell(self, job: JobRecord) -> None:
        """It is like this now, whether or not that could be written down."""
        self.job = job
        self.changed.set()
