"""Workers: a fixed number of long-lived tasks that handle deliveries one after another.

A task per message costs more than most handlers do, so each worker takes the next delivery in the same
task. Context variables that a handler leaves behind must not reach the next message: a worker whose
context has changed ends, and a fresh one takes its place.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator

T = TypeVar("T")


class KeyedItems(Generic[T]):
    """Items wait behind a running item of the same key. An item without key (None) never waits."""

    __slots__ = ("_busy", "_ready")

    def __init__(self) -> None:
        self._ready: deque[tuple[str | None, T]] = deque()
        self._busy: dict[str, deque[T]] = {}

    def __len__(self) -> int:
        return len(self._ready) + sum(map(len, self._busy.values()))

    @property
    def has_ready(self) -> bool:
        """Whether an item can be taken now."""
        return bool(self._ready)

    def offer(self, key: str | None, item: T) -> bool:
        """Add an item. Returns True if it is ready, False if it waits for its key."""
        if key is not None:
            waiting = self._busy.get(key)
            if waiting is not None:
                waiting.append(item)
                return False
            self._busy[key] = deque()
        self._ready.append((key, item))
        return True

    def take(self) -> tuple[str | None, T]:
        """Return the next item and its key. Raises IndexError if none is ready."""
        return self._ready.popleft()

    def finish(self, key: str | None) -> bool:
        """Mark an item of this key as finished. Returns True if another one became ready."""
        if key is None:
            return False
        waiting = self._busy[key]
        if not waiting:
            del self._busy[key]
            return False
        self._ready.append((key, waiting.popleft()))
        return True

    def __iter__(self) -> Iterator[T]:
        """Everything that has not been taken."""
        yield from (item for _, item in self._ready)
        for waiting in self._busy.values():
            yield from waiting

    def clear(self) -> list[T]:
        """Take out everything that has not been taken, in order of arrival within each key."""
        left = [item for _, item in self._ready]
        for key, _ in self._ready:
            if key is not None:
                left.extend(self._busy.pop(key))
        for waiting in self._busy.values():
            left.extend(waiting)
            waiting.clear()
        self._ready.clear()
        return left


_LOG = logging.getLogger("hopback.runtime")

_CANCELLATIONS = 3  # a handler may swallow one or two, and is abandoned after three
_SECONDS_FOR_EACH = 1.0  # time for a handler to clean up, while shutdown has a separate limit


async def cancel_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end. A task that ignores cancellation is abandoned."""
    left = set(tasks)
    for _ in range(_CANCELLATIONS):
        for task in left:
            task.cancel()
        if left:
            _, left = await asyncio.wait(left, timeout=_SECONDS_FOR_EACH)


class Pool(Generic[T]):
    """Runs at most `size` items at once, in the order in which their keys allow."""

    def __init__(
        self, size: int, run: Callable[[T], Awaitable[None]], *, name: str = "worker"
    ) -> None:
        self._size = size
        self._run = run
        self._name = name
        self._items: KeyedItems[T] = KeyedItems()
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[asyncio.Task[None], T] = {}
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._context = copy_context()
        self._limit = size
        self._wished = size
        self._held = False
        self._slow: set[asyncio.Task[None]] = set()
        self._next_end: asyncio.Event | None = None
        self._called = False
        """A worker was called and has not come yet: it will pass the call on if there is more."""

    @property
    def running(self) -> tuple[T, ...]:
        """The items being handled."""
        return tuple(self._running.values())

    def runs(self) -> list[tuple[asyncio.Task[None], T]]:
        """The workers that handle an item now, with their items."""
        return list(self._running.items())

    def __contains__(self, item: T) -> bool:
        """Whether the item is handled now or waits."""
        return any(one is item for one in (*self._running.values(), *self._items))

    def __iter__(self) -> Iterator[T]:
        """Everything that is handled now or waits."""
        yield from tuple(self._running.values())
        yield from tuple(self._items)

    @property
    def waiting(self) -> int:
        """How many items have not been started."""
        return len(self._items)

    def hold_items_in(self, make: Callable[[Callable[[], object]], KeyedItems[T]]) -> None:
        """Keep waiting items in another collection, which calls the given function for a ready one."""
        self._items = make(self._wake)

    def limit(self, size: int) -> None:
        """Set the maximum number of concurrent items, up to the initial size. 0 pauses."""
        self._wished = min(size, self._size)
        if not self._held:
            self._limit = self._wished
            self._wake()

    def hold(self) -> None:
        """Start no items until `resume`, whatever limit is set meanwhile."""
        self._held = True
        self._limit = 0

    def resume(self) -> None:
        """Start waiting items again, up to the limit."""
        self._held = False
        self.limit(self._wished)

    def disregard(self, slow: Collection[asyncio.Task[Any]]) -> None:
        """Let `wait_idle` and `drain` not wait for these workers."""
        self._slow = {task for task in self._running if task in slow}
        self._settle_quiet()

    async def wait_idle(self) -> None:
        """Return when only slow items are running. Items may still be waiting."""
        while len(self._running) > len(self._slow):
            await self._end_of_one()

    async def drain(self) -> None:
        """Return when no item is waiting and only slow items are running."""
        while len(self._items) or len(self._running) > len(self._slow):
            await self._end_of_one()

    async def wait_finished(self, item: T) -> None:
        """Return when the item neither runs nor waits."""
        while item in self:
            await self._end_of_one()

    async def _end_of_one(self) -> None:
        self._next_end = self._next_end or asyncio.Event()
        await self._next_end.wait()

    def submit(self, item: T, key: str | None = None) -> None:
        """Add an item. It is run as soon as a worker and its key are free."""
        self._quiet.clear()
        if self._items.offer(key, item) and not self._called:
            self._wake()

    def withdraw(self) -> list[T]:
        """Take back everything that has not been started."""
        left = self._items.clear()
        self._settle_quiet()
        return left

    async def join(self) -> None:
        """Return when no item is running or waiting."""
        await self._quiet.wait()

    async def stop(self) -> tuple[T, ...]:
        """Cancel the running items, wait for their end, and return them."""
        left = self.running
        self._limit = 0
        await cancel_all(self._tasks)
        return left

    def _wake(self) -> None:
        """Wake one worker if there is work. It wakes the next if there is more."""
        if self._called or not self._may_start():
            return
        if self._idle:
            self._called = True
            self._idle.pop().set_result(None)
        elif len(self._tasks) < self._size:
            self._called = True
            # The caller may be a worker that a handler has tainted: its context stays its own.
            context = self._context.copy()
            task = asyncio.get_running_loop().create_task(
                self._work(), name=self._name, context=context
            )
            self._tasks.add(task)
            task.add_done_callback(self._on_end)

    def _may_start(self) -> bool:
        return self._items.has_ready and len(self._running) < self._limit

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Log an unexpected exception of a worker."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _LOG.error("a worker of %s ended unexpectedly", self._name, exc_info=error)

    async def _work(self) -> None:
        clean = copy_context()
        me = asyncio.current_task()
        assert me is not None  # noqa: S101 - we are inside a task by construction
        self._called = False
        while True:
            while self._may_start():
                key, item = self._items.take()
                self._running[me] = item
                # More may be ready than this worker can take: pass the call on.
                if not self._called:
                    self._wake()
                try:
                    await self._run(item)
                except BaseException:
                    self._tasks.discard(me)
                    raise
                finally:
                    del self._running[me], item  # an idle worker holds no message
                    if self._slow:
                        self._slow.discard(me)
                    if self._items.finish(key) or me not in self._tasks:
                        self._wake()
                    self._settle_quiet()
                if copy_context() != clean or me.cancelling():
                    # A tainted context ends with its task. Another worker replaces it.
                    self._tasks.discard(me)
                    self._wake()
                    return
            await self._rest()

    async def _rest(self) -> None:
        """Wait for work. A cancelled worker does not lose a wake-up."""
        call = asyncio.get_running_loop().create_future()
        self._idle.append(call)
        try:
            await call
        except asyncio.CancelledError:
            if call in self._idle:
                self._idle.remove(call)
            raise
        finally:
            if call.done():
                self._called = False

    def _settle_quiet(self) -> None:
        if self._next_end is not None:
            self._next_end.set()
            self._next_end = None
        if not self._running and not len(self._items):
            self._quiet.set()
