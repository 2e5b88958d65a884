"""Server-sent events: a job as it goes on, and what changed on the page."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

from starlette.responses import StreamingResponse

from hopback.admin.problems import Refused
from hopback.deadletters.codec import encode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from starlette.types import Receive, Scope, Send

    from hopback.admin.roles import Principal
    from hopback.admin.services import Services
    from hopback.admin.settings import Limits
    from hopback.deadletters.contract import Job

__all__ = ["EventStreams", "changes_of_board", "changes_of_job", "job_events", "newest"]

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
            data = encode(job)
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


class EventStreams:
    """Counts the streams that are open now."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: Counter[str] = Counter()

    def open(self, events: AsyncIterator[bytes], principal: Principal) -> StreamingResponse:
        """The stream as an answer that nobody keeps or collects; Refused if there are too many."""
        own, limits = self._open[principal.id], self._limits
        if own >= limits.event_streams_per_caller or self._open.total() >= limits.event_streams:
            raise Refused(
                429,
                "too-many-streams",
                f"{own} event streams of yours are open, {self._open.total()} in all; close one first.",
            )
        self._open[principal.id] += 1
        return _Counted(events, self._open, principal.id)


class _Counted(StreamingResponse):
    """Gives its place back when it ends, even if nothing of it was ever sent."""

    def __init__(self, events: AsyncIterator[bytes], opened: Counter[str], caller: str) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._opened = opened
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._opened[self._caller] -= 1
            if not self._opened[self._caller]:
                del self._opened[self._caller]
