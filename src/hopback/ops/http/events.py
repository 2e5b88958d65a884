"""Server-sent events: a job as it goes on, what changed on the page, how far long work is.

Work that goes through a queue may take minutes. It runs in a task of its own, which ends when nobody waits
for it any more, and says every few seconds that it is alive: no caller has to guess whether to wait on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from starlette.responses import StreamingResponse

from hopback.errors import HopbackError
from hopback.ops.contract.codec import encode
from hopback.ops.contract.endpoints import EVENTS
from hopback.ops.contract.search import SearchProgress, SkippedQueue
from hopback.ops.http.problems import Refused

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Coroutine,
        Sequence,
    )

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from hopback.ops.contract.roles import Principal
    from hopback.ops.contract.values import Job, LookProgress, OnProgress
    from hopback.ops.http.overview import Sweep
    from hopback.ops.http.settings import RequestLimits


class StreamedResponse(StreamingResponse):
    """A stream whose content is cancelled once when its reader is gone, and waited for.

    Starlette cancels what streams anew on every turn of the loop, its cleaning up as well: a database
    call that is cancelled so loses its connection, with a traceback and a task that never ends.
    """

    _streaming: asyncio.Task[None] | None = None

    async def stream_response(self, send: Send) -> None:
        """Send the content, by a task of its own, which is not cancelled together with this one."""
        self._streaming = asyncio.create_task(super().stream_response(send), name="streaming")
        await asyncio.shield(self._streaming)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; when it is over, so is the content."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            work = self._streaming
            if work is not None and not work.done():
                work.cancel()
                await asyncio.wait({work})
                if not work.cancelled():
                    work.result()


AT_ONCE_S = 1.0
"""What takes longer is told about while it goes on."""
_QUIET_S = 15.0  # proxies cut connections that are silent for 30 s or more
_BETWEEN_S = 0.1  # ten a second are as many as an eye can follow
_TELL_EVERY_S = 0.5  # as often as an eye follows a number
_BOARD_EVERY_S = 1.0  # the sweep has nothing newer
_ROUNDED_S = 0.001  # a page writes the moment it shows in milliseconds

_STILL_HERE = b": still here\n\n"  # a comment, which every client skips
# What changed is not said: the page fetches itself anew, and so shows only what its reader may see.
_CHANGE = b"event: change\ndata: {}\n\n"
_END = b"event: end\ndata: {}\n\n"


async def job_events(
    jobs: AsyncIterator[Job], place: Callable[[Job], object] = lambda job: job
) -> AsyncIterator[bytes]:
    """Each change, at most ten a second, and `end` when the job runs no more.

    `place` puts the paths in a job where they belong.
    """
    async with aclosing(newest(jobs)) as found:
        async for job in found:
            if job is None:
                yield _STILL_HERE
                continue
            data = encode(place(job))
            yield b"event: job\nid: %d\ndata: %s\n\n" % (job.changes, data)
    yield _END


async def search_events(
    found: AsyncGenerator[SearchProgress, None],
) -> AsyncGenerator[bytes, None]:
    """How far a search is and what it found, as events of type `search`, and `end` after the last."""
    async with aclosing(found), aclosing(_with_silence(found)) as told:
        async for progress in told:
            if progress is None:
                yield _STILL_HERE
            else:
                yield b"event: search\ndata: %s\n\n" % encode(progress)
    yield _END


async def page_search_events(
    found: AsyncGenerator[SearchProgress, None], queue: str = ""
) -> AsyncGenerator[bytes, None]:
    """The same for a page, which cannot read a refusal: it is told as a queue that was left out."""

    async def told() -> AsyncGenerator[SearchProgress, None]:
        async with aclosing(found):
            try:
                async for progress in found:
                    yield progress
            except HopbackError as refused:
                skipped = (SkippedQueue(queue or "Everything", str(refused)),)
                yield SearchProgress(skipped=skipped, is_over=True)

    async with aclosing(search_events(told())) as events:
        async for event in events:
            yield event


ValueT = TypeVar("ValueT")


async def _with_silence(
    found: AsyncGenerator[ValueT, None],
) -> AsyncGenerator[ValueT | None, None]:
    """Everything that comes, and None when nothing came for a while."""
    is_over = object()
    coming = asyncio.ensure_future(anext(found, is_over))
    try:
        while True:
            if not (await asyncio.wait({coming}, timeout=_QUIET_S))[0]:
                yield None
                continue
            came = coming.result()
            if came is is_over:
                return
            yield came  # type: ignore[misc]  # what is over has returned
            coming = asyncio.ensure_future(anext(found, is_over))
    finally:
        coming.cancel()
        await asyncio.wait({coming})


class LongWork(Generic[ValueT]):
    """Something that may take minutes, in a task of its own; `progress` is how far it is.

    `work` is called with what it tells that to, and gives back what it holds when it is cancelled.
    """

    def __init__(self, work: Callable[[OnProgress], Coroutine[Any, Any, ValueT]]) -> None:
        self.progress: LookProgress | None = None
        self.task: asyncio.Task[ValueT] = asyncio.create_task(work(self._tell), name="long work")

    def _tell(self, progress: LookProgress) -> None:
        self.progress = progress

    async def ended(self, request: Request, seconds: float | None) -> bool:
        """Whether it ended within so long; Refused, and cancelled, if the caller hangs up meanwhile."""
        hanging_up = asyncio.create_task(_hung_up(request), name="caller hangs up")
        try:
            await asyncio.wait(
                {self.task, hanging_up}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            await self.end()
            raise
        finally:
            hanging_up.cancel()
        if hanging_up.done() and not self.task.done():
            await self.end()
            raise Refused(408, "hung-up", "The caller hung up; what was held was given back.")
        return self.task.done()

    async def end(self) -> None:
        """Cancel it if it still runs; return when it has given back what it held."""
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait({self.task})
        if not self.task.cancelled():
            self.task.exception()  # nobody waits for it any more

    async def events(self) -> AsyncGenerator[bytes, None]:
        """How far it is, as events of type `progress`, until it is over."""
        told: LookProgress | None = None
        loop = asyncio.get_running_loop()
        said_at = loop.time()
        while not self.task.done():
            if self.progress is not None and self.progress != told:
                told, said_at = self.progress, loop.time()
                yield b"event: progress\ndata: %s\n\n" % encode(told)
            elif loop.time() - said_at >= _QUIET_S:
                said_at = loop.time()
                yield _STILL_HERE
            await asyncio.wait({self.task}, timeout=_TELL_EVERY_S)


async def page_work_events(
    work: LongWork[Any], attend: Callable[[], object]
) -> AsyncGenerator[bytes, None]:
    """How far it is, and `end` when its answer can be fetched; `attend` is called while somebody reads."""
    async with aclosing(work.events()) as events:
        async for event in events:
            attend()
            yield event
    yield _END


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def changes_of_job(jobs: AsyncIterator[Job]) -> AsyncIterator[bytes]:
    """Say when a job is further on, and when it has ended."""
    async with aclosing(newest(jobs)) as found:
        async for job in found:
            yield _STILL_HERE if job is None else _CHANGE
    yield _END


async def changes_of_board(sweeps: Sequence[Sweep], shown_at: float) -> AsyncIterator[bytes]:
    """Say when depths or jobs are others than at that moment, at most once a second.

    One broker is read as often for it; many are read beside, as often as they are anyway.
    """
    quiet_s = 0.0
    while True:
        if len(sweeps) == 1:
            await sweeps[0].get_or_last()
        changed_at = max(each.changed_at for each in sweeps)
        if changed_at > shown_at + _ROUNDED_S:
            shown_at = changed_at
            yield _CHANGE
            quiet_s = 0.0
        elif quiet_s >= _QUIET_S:
            yield _STILL_HERE
            quiet_s = 0.0
        quiet_s += _BOARD_EVERY_S
        await asyncio.sleep(_BOARD_EVERY_S)


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


class EventStreams:
    """Streams as answers, counted: so many of one caller, so many of all together."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._open: Counter[str] = Counter()

    def open(
        self,
        events: AsyncIterator[bytes],
        principal: Principal,
        on_end: Callable[[], Awaitable[object]] | None = None,
    ) -> StreamingResponse:
        """The stream as an answer that nobody keeps or collects; Refused if there are too many.

        `on_end` is called when it is over, even if nothing of it was ever sent.
        """
        own, limits = self._open[principal.id], self._limits
        if own >= limits.event_streams_per_caller or self._open.total() >= limits.event_streams:
            raise Refused(
                429,
                "too-many-streams",
                f"{own} event streams of yours are open, {self._open.total()} in all; close one first.",
            )
        self._open[principal.id] += 1
        return _EventResponse(events, self._open, principal.id, on_end)


class _EventResponse(StreamedResponse):
    """Gives its place back when it ends, even if nothing of it was ever sent."""

    def __init__(
        self,
        events: AsyncIterator[bytes],
        opened: Counter[str],
        caller: str,
        on_end: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type=EVENTS, headers=headers)
        self._opened = opened
        self._caller = caller
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._opened[self._caller] -= 1
            if not self._opened[self._caller]:
                del self._opened[self._caller]
            if self._on_end is not None:
                await self._on_end()
