"""Send server-sent events with the state of a job, changes on a page, or the progress of an
operation.

Operations that read a queue can take minutes. They run in a separate task that sends progress
events and keep-alive comments. If the client disconnects, the task is cancelled.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
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
    from hopback.ops.http.settings import RequestLimits
    from hopback.ops.http.sweep import Sweep


class StreamedResponse(StreamingResponse):
    """A streaming response that, when the client disconnects, cancels its content once and waits
    for it.

    Starlette cancels the streaming task again in every iteration of the event loop, even during
    cleanup. A database call that is cancelled like this loses its connection and leaves a task that
    never ends.
    """

    _streaming: asyncio.Task[None] | None = None

    async def stream_response(self, send: Send) -> None:
        """Run the streaming in a separate task, which is not cancelled together with this one."""
        self._streaming = asyncio.create_task(super().stream_response(send), name="streaming")
        await asyncio.shield(self._streaming)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response and wait until its content has ended."""
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
"""Seconds. Operations that take longer report their progress to clients that accept events."""
# seconds without events until a keep-alive is sent. Proxies close silent connections after 30 s.
_QUIET_S = 15.0
_BETWEEN_S = 0.1  # seconds between events of a job, which is as fast as a reader can follow
_PROGRESS_EVERY_S = 0.5  # seconds between progress reports, which is as fast as a reader can follow
_BOARD_EVERY_S = 1.0  # seconds between checks for changes, which is how often sweeps are made
_ROUNDED_S = 0.001  # seconds, because pages contain the time of their data in milliseconds

_STILL_HERE = b": still here\n\n"  # comments are ignored by all clients
# This event does not contain data. The page reloads itself with the permissions of its user.
_CHANGE = b"event: change\ndata: {}\n\n"
_END = b"event: end\ndata: {}\n\n"


async def job_events(
    jobs: AsyncGenerator[Job, None], place: Callable[[Job], object] = lambda job: job
) -> AsyncGenerator[bytes, None]:
    """Yield each change of a job, at most ten per second, and then an `end` event.

    `place` adds the path prefix of the broker to the URLs in a job.
    """
    async with aclosing(_paced(jobs)) as found:
        async for job in found:
            data = encode(place(job))
            yield b"event: job\nid: %d\ndata: %s\n\n" % (job.changes, data)
    yield _END


async def search_events(
    found: AsyncGenerator[SearchProgress, None],
) -> AsyncGenerator[bytes, None]:
    """Yield the progress and hits of a search as `search` events, and then an `end` event."""
    async with aclosing(found):
        async for progress in found:
            yield b"event: search\ndata: %s\n\n" % encode(progress)
    yield _END


async def page_search_events(
    found: AsyncGenerator[SearchProgress, None], queue: str = ""
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a search for a page. An error is sent as a skipped queue, because the
    page can show this.
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
    """Yield all events, and a comment if there was no event for 15 s. `on_event` is called before each."""
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
    """An operation that can take minutes. It runs in a separate task and updates `progress`.

    `work` is called with a function for progress reports. If it is cancelled, it must requeue the
    messages it holds.
    """

    def __init__(self, work: Callable[[OnProgress], Coroutine[Any, Any, ValueT]]) -> None:
        self.progress: LookProgress | None = None
        self.task: asyncio.Task[ValueT] = asyncio.create_task(work(self._report), name="long work")

    def _report(self, progress: LookProgress) -> None:
        self.progress = progress

    async def wait(self, request: Request, seconds: float | None) -> bool:
        """Wait for up to `seconds`, and return True if the operation has ended.

        If the client disconnects, the operation is cancelled and Refused is raised.
        """
        hanging_up = asyncio.create_task(_wait_for_disconnect(request), name="caller hangs up")
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
        """Cancel the operation if it is still running, and wait until it has requeued its messages."""
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait({self.task})
        if not self.task.cancelled():
            self.task.exception()  # retrieve the exception, otherwise asyncio logs it

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield `progress` events until the operation has ended."""
        last: LookProgress | None = None
        while not self.task.done():
            if self.progress is not None and self.progress != last:
                last = self.progress
                yield b"event: progress\ndata: %s\n\n" % encode(last)
            await asyncio.wait({self.task}, timeout=_PROGRESS_EVERY_S)


async def page_work_events(work: LongWork[Any]) -> AsyncGenerator[bytes, None]:
    """Yield the progress of an operation, and an `end` event when its result is available."""
    async with aclosing(work.events()) as events:
        async for event in events:
            yield event
    yield _END


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def changes_of_job(jobs: AsyncGenerator[Job, None]) -> AsyncGenerator[bytes, None]:
    """Yield an event for each change of a job and when it ends."""
    async with aclosing(_paced(jobs)) as found:
        async for _job in found:
            yield _CHANGE
    yield _END


async def changes_of_board(sweeps: Sequence[Sweep], shown_at: float) -> AsyncGenerator[bytes, None]:
    """Yield an event when depths or jobs have changed since `shown_at`, at most once per second.

    If there is only one broker, this also reads it. If there are several, only their regular sweeps
    read them.
    """
    while True:
        if len(sweeps) == 1:
            await sweeps[0].get_or_last()
        changed_at = max(each.changed_at for each in sweeps)
        if changed_at > shown_at + _ROUNDED_S:
            shown_at = changed_at
            yield _CHANGE
        await asyncio.sleep(_BOARD_EVERY_S)


async def _paced(jobs: AsyncGenerator[Job, None]) -> AsyncGenerator[Job, None]:
    """Yield a job at most ten times per second. It skips the states between these times."""
    async with aclosing(jobs):
        async for job in jobs:
            yield job
            await asyncio.sleep(_BETWEEN_S)


class EventStreams:
    """Open event streams, and limit their number per caller and in total."""

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
        """Return the stream as a response that is neither cached nor buffered.

        Comments keep the connection open if there are no events. `on_event` is called before each
        event and comment. `on_end` is called when the response has ended, even if it was never
        sent. Raises Refused if too many streams are open.
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
    """Decrement the number of streams at the end, even if the response was never sent."""

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
