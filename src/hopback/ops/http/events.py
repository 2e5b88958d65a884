"""Server-sent events: the states of a job, changes on a page and the progress of long operations.

An operation that reads a queue may take minutes. It runs in a separate task, which is cancelled when its
caller disconnects. While it runs, it sends its progress and keep-alive comments.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from starlette.responses import StreamingResponse

from hopback.errors import HopbackError
from hopback.ops.contract.codec import encode
from hopback.ops.contract.endpoints import EVENTS
from hopback.ops.contract.search import SearchProgress, SkippedQueue
from hopback.ops.http.problems import Refused
from hopback.ops.http.turns import CallerCounts

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
    """A streamed answer. When the reader disconnects, the content is cancelled once and awaited.

    Starlette cancels the streaming task again on every turn of the event loop, even during its cleanup. A
    database call that is cancelled like this loses its connection and leaves a task that never ends.
    """

    _streaming: asyncio.Task[None] | None = None

    async def stream_response(self, send: Send) -> None:
        """Send the content in a separate task that is not cancelled together with this one."""
        self._streaming = asyncio.create_task(super().stream_response(send), name="streaming")
        await asyncio.shield(self._streaming)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. Return when the content has ended."""
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
"""Seconds. A longer operation reports its progress to callers that accept events."""
_QUIET_S = 15.0  # seconds without an event before a keep-alive. Proxies close silent connections after 30 s.
_BETWEEN_S = 0.1  # seconds between two events of a job. A reader cannot follow more.
_PROGRESS_EVERY_S = 0.5  # seconds between two reports of progress. A reader cannot follow more.
_BOARD_EVERY_S = 1.0  # seconds between two checks for changes. The sweep is not newer.
_ROUNDED_S = 0.001  # seconds. A page writes the time of its data in milliseconds.

_STILL_HERE = b": still here\n\n"  # a comment, which every client skips
# The event does not contain the change: the page loads itself again with the rights of its visitor.
_CHANGE = b"event: change\ndata: {}\n\n"
_END = b"event: end\ndata: {}\n\n"


async def job_events(
    jobs: AsyncIterator[Job], place: Callable[[Job], object] = lambda job: job
) -> AsyncGenerator[bytes, None]:
    """Yield each change of a job, with at most ten changes per second, and `end` when the job has ended.

    `place` adds the path prefix of the broker to the paths in a job.
    """
    async with aclosing(_newest(jobs)) as found:
        async for job in found:
            data = encode(place(job))
            yield b"event: job\nid: %d\ndata: %s\n\n" % (job.changes, data)
    yield _END


async def search_events(
    found: AsyncGenerator[SearchProgress, None],
) -> AsyncGenerator[bytes, None]:
    """Yield the progress and hits of a search as events of type `search`, then `end`."""
    async with aclosing(found):
        async for progress in found:
            yield b"event: search\ndata: %s\n\n" % encode(progress)
    yield _END


async def page_search_events(
    found: AsyncGenerator[SearchProgress, None], queue: str = ""
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a search for a page. A refusal becomes a skipped queue, so that the page can show
    it.
    """

    async def reports() -> AsyncGenerator[SearchProgress, None]:
        async with aclosing(found):
            try:
                async for progress in found:
                    yield progress
            except HopbackError as refused:
                skipped = (SkippedQueue(queue or "Everything", str(refused)),)
                yield SearchProgress(skipped=skipped, is_over=True)

    async with aclosing(search_events(reports())) as events:
        async for event in events:
            yield event


ValueT = TypeVar("ValueT")


async def _keep_alive(
    events: AsyncGenerator[bytes, None], on_event: Callable[[], object]
) -> AsyncGenerator[bytes, None]:
    """Yield all events, and a comment after every 15 s without one. `on_event` is called before each."""
    async with aclosing(events):
        coming = asyncio.ensure_future(anext(events, None))
        try:
            while True:
                is_quiet = not (await asyncio.wait({coming}, timeout=_QUIET_S))[0]
                event = _STILL_HERE if is_quiet else coming.result()
                if event is None:
                    return
                on_event()
                yield event
                if not is_quiet:
                    coming = asyncio.ensure_future(anext(events, None))
        finally:
            coming.cancel()
            await asyncio.wait({coming})


class LongWork(Generic[ValueT]):
    """An operation that may take minutes and runs in a separate task, with its `progress`.

    `work` reports its progress to its argument. If it is cancelled, it requeues the messages that it holds.
    """

    def __init__(self, work: Callable[[OnProgress], Coroutine[Any, Any, ValueT]]) -> None:
        self.progress: LookProgress | None = None
        self.task: asyncio.Task[ValueT] = asyncio.create_task(work(self._report), name="long work")

    def _report(self, progress: LookProgress) -> None:
        self.progress = progress

    async def wait(self, request: Request, seconds: float | None) -> bool:
        """Wait at most `seconds` and return whether the operation has ended.

        If the caller disconnects, cancel the operation and raise Refused.
        """
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
            raise Refused(408, "hung-up", "The caller disconnected. Held messages were requeued.")
        return self.task.done()

    async def end(self) -> None:
        """Cancel the operation if it runs. Return when it has requeued its messages."""
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait({self.task})
        if not self.task.cancelled():
            self.task.exception()  # retrieve the exception, so that asyncio does not log it

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the progress as events of type `progress` until the operation has ended."""
        last: LookProgress | None = None
        while not self.task.done():
            if self.progress is not None and self.progress != last:
                last = self.progress
                yield b"event: progress\ndata: %s\n\n" % encode(last)
            await asyncio.wait({self.task}, timeout=_PROGRESS_EVERY_S)


async def page_work_events(work: LongWork[Any]) -> AsyncGenerator[bytes, None]:
    """Yield the progress of an operation, then `end` when its answer is ready."""
    async with aclosing(work.events()) as events:
        async for event in events:
            yield event
    yield _END


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def changes_of_job(jobs: AsyncIterator[Job]) -> AsyncGenerator[bytes, None]:
    """Yield an event at each change of a job and at its end."""
    async with aclosing(_newest(jobs)) as found:
        async for _job in found:
            yield _CHANGE
    yield _END


async def changes_of_board(sweeps: Sequence[Sweep], shown_at: float) -> AsyncGenerator[bytes, None]:
    """Yield an event when depths or jobs have changed since `shown_at`, at most once per second.

    A single broker is read for this as often. Several brokers are only read by their regular sweeps.
    """
    while True:
        if len(sweeps) == 1:
            await sweeps[0].get_or_last()
        changed_at = max(each.changed_at for each in sweeps)
        if changed_at > shown_at + _ROUNDED_S:
            shown_at = changed_at
            yield _CHANGE
        await asyncio.sleep(_BOARD_EVERY_S)


async def _newest(jobs: AsyncIterator[Job]) -> AsyncGenerator[Job, None]:
    """Yield the newest state of a job, at most ten times per second."""
    waiting: asyncio.Queue[Job | None] = asyncio.Queue()
    reader = asyncio.create_task(_read(jobs, waiting), name="job events")
    try:
        while True:
            found = await waiting.get()
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
    """Opens event streams and limits their number per caller and in total."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._open = CallerCounts()

    def open(
        self,
        events: AsyncGenerator[bytes, None],
        principal: Principal,
        on_end: Callable[[], Awaitable[object]] | None = None,
        on_event: Callable[[], object] = lambda: None,
    ) -> StreamingResponse:
        """Return the stream as an answer without caching or buffering. Refused if too many are open.

        Comments in silent times keep the connection open. `on_event` is called before each event and
        comment, `on_end` when the answer has ended, even if no part of it was sent.
        """
        own, limits = self._open[principal.id], self._limits
        if own >= limits.event_streams_per_caller or self._open.total() >= limits.event_streams:
            raise Refused(
                429,
                "too-many-streams",
                f"You have {own} open event streams, all callers together {self._open.total()}. Close one"
                " first.",
            )
        self._open[principal.id] += 1
        return _EventResponse(_keep_alive(events, on_event), self._open, principal.id, on_end)


class _EventResponse(StreamedResponse):
    """Decreases the count of streams when it ends, even if no part of it was sent."""

    def __init__(
        self,
        events: AsyncIterator[bytes],
        opened: CallerCounts,
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
            self._opened.drop(self._caller)
            if self._on_end is not None:
                await self._on_end()
