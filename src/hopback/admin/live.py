"""Server-sent events of the page: they only say that something changed; the page then fetches it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from hopback.admin.job_events import newest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.admin.services import Services
    from hopback.deadletters.jobs import Job

__all__ = ["changes_of_board", "changes_of_job"]

_EVERY_S = 1.0
_QUIET = 15


async def changes_of_board(services: Services) -> AsyncIterator[bytes]:
    """Say when depths or jobs are others than before, at most once a second."""
    before, quiet = None, 0
    while True:
        swept = await services.sweep.get_or_last()
        now = (
            swept.error is None,
            [(one.queue, one.depth.total, one.depth.unacked, _mark(one.active_job)) for one in swept.queues],
        )  # fmt: skip
        if before is not None and now != before:
            yield b"event: change\ndata: {}\n\n"
            quiet = 0
        elif quiet >= _QUIET:
            yield b": still here\n\n"
            quiet = 0
        before, quiet = now, quiet + 1
        await asyncio.sleep(_EVERY_S)


def _mark(job: Job | None) -> tuple[str, int] | None:
    return None if job is None else (job.id, job.changes)


async def changes_of_job(jobs: AsyncIterator[Job]) -> AsyncIterator[bytes]:
    """Say when a job is further on, and when it has ended."""
    async with aclosing(newest(jobs)) as found:
        async for job in found:
            yield b": still here\n\n" if job is None else b"event: change\ndata: {}\n\n"
    yield b"event: end\ndata: {}\n\n"
