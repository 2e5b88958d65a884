"""Server-sent events: a job as it goes on."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import msgspec

from hopback.admin.answers import job_answer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from hopback.deadletters.jobs import Job

__all__ = ["job_events", "newest"]

_QUIET_S = 15.0
_BETWEEN_S = 0.1


async def job_events(jobs: AsyncIterator[Job]) -> AsyncIterator[bytes]:
    """Each change, at most ten a second, and `end` when the job runs no more.

    A comment comes when nothing happens, so that connections stay open.
    """
    async with aclosing(newest(jobs)) as found:
        async for job in found:
            if job is None:
                yield b": still here\n\n"
                continue
            data = msgspec.json.encode(job_answer(job))
            yield b"event: job\nid: %d\ndata: %s\n\n" % (job.changes, data)
    yield b"event: end\ndata: {}\n\n"


async def newest(jobs: AsyncIterator[Job]) -> AsyncGenerator[Job | None, None]:
    """The newest of what has come meanwhile; None when nothing came for a while."""
    waiting: asyncio.Queue[Job | None] = asyncio.Queue()
    reader = asyncio.create_task(_read(jobs, waiting), name="job events")
    try:
        while True:
            try:
                async with asyncio.timeout(_QUIET_S):
                    found = await waiting.get()
            except TimeoutError:
                yield None
                continue
            while found is not None and not waiting.empty():
                following = waiting.get_nowait()
                if following is None:
                    yield found
                found = following
            if found is None:
                return
            yield found
            await asyncio.sleep(_BETWEEN_S)
    finally:
        reader.cancel()
        with suppress(asyncio.CancelledError):
            await reader


async def _read(jobs: AsyncIterator[Job], waiting: asyncio.Queue[Job | None]) -> None:
    try:
        async for job in jobs:
            waiting.put_nowait(job)
    finally:
        waiting.put_nowait(None)
