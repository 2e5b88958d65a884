"""A pool of long-lived worker tasks.

Workers handle many items each, because creating a task for every message is slow. If a handler
changes a context variable, its worker is replaced so that the next message starts with a clean
context.
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
    """A queue that never runs two items with the same key at the same time."""

    __slots__ = ("_busy", "_ready")

    def __init__(self) -> None:
        self._ready: deque[tuple[str | int | None, T]] = deque()
        self._busy: dict[str | int, deque[T]] = {}

    def __len__(self) -> int:
        return len(self._ready) + sum(map(len, self._busy.values()))

    @property
    def has_ready(self) -> bool:
        """Whether an item is ready."""
        return bool(self._ready)

    def offer(self, key: str | int | None, item: T) -> bool:
        """Add an item. Returns False if another item with the same key has to finish first."""
        if key is not None:
            waiting = self._busy.get(key)
            if waiting is not None:
                waiting.append(item)
                return False
            self._busy[key] = deque()
        self._ready.append((key, item))
        return True

    @property
    def is_due(self) -> bool:
        """Whether a rate limit allows the next item."""
        return True

    def take(self) -> tuple[str | int | None, T]:
        """Return the next item and its key. Raises IndexError if there is none."""
        return self._ready.popleft()

    def finish(self, key: str | int | None) -> bool:
        """Mark an item as finished. Returns True if this makes another item ready."""
        if key is None:
            return False
        waiting = self._busy[key]
        if not waiting:
            del self._busy[key]
            return False
        self._ready.append((key, waiting.popleft()))
        return True

    def __iter__(self) -> Iterator[T]:
        yield from (item for _, item in self._ready)
        for waiting in self._busy.values():
            yield from waiting

    def clear(self) -> list[T]:
        """Remove and return all items that have not been taken."""
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

_CANCELLATIONS = 3  # attempts to cancel a task before it is abandoned
_SECONDS_FOR_EACH = 1.0  # time for cleaning up after each attempt


async def cancel_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for them. Tasks that ignore cancellation are abandoned."""
    left = set(tasks)
    for _ in range(_CANCELLATIONS):
        for task in left:
            task.cancel()
        if left:
            _, left = await asyncio.wait(left, timeout=_SECONDS_FOR_EACH)


class Pool(Generic[T]):
    """Runs at most `size` items concurrently."""

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
        """True if a worker has been woken up but has not started yet."""

    @property
    def running(self) -> tuple[T, ...]:
        return tuple(self._running.values())

    def runs(self) -> list[tuple[asyncio.Task[None], T]]:
        """Return the active workers with the items they are handling."""
        return list(self._running.items())

    def __contains__(self, item: T) -> bool:
        return any(one is item for one in (*self._running.values(), *self._items))

    def __iter__(self) -> Iterator[T]:
        yield from tuple(self._running.values())
        yield from tuple(self._items)

    @property
    def waiting(self) -> int:
        """How many items have not been started."""
        return len(self._items)

    @property
    def may_start(self) -> bool:
        """Whether the limit and the rate allow an item to start."""
        return self._wished > 0 and self._items.is_due

    def hold_items_in(self, make: Callable[[Callable[[], object]], KeyedItems[T]]) -> None:
        """Use a different collection for items that are waiting."""
        self._items = make(self._wake)

    def limit(self, size: int) -> None:
        """Set the maximum number of concurrent items. 0 pauses the pool."""
        self._wished = min(size, self._size)
        if not self._held:
            self._limit = self._wished
            self._wake()

    def hold(self) -> None:
        """Don't start items until `resume` is called."""
        self._held = True
        self._limit = 0

    def resume(self) -> None:
        self._held = False
        self.limit(self._wished)

    def disregard(self, slow: Collection[asyncio.Task[Any]]) -> None:
        """Exclude these workers from `wait_idle` and `drain`."""
        self._slow = {task for task in self._running if task in slow}
        self._settle_quiet()

    async def wait_idle(self) -> None:
        """Wait until no items are running, except slow ones."""
        while len(self._running) > len(self._slow):
            await self._end_of_one()

    async def drain(self) -> None:
        """Wait until no items are running or waiting, except slow ones."""
        while len(self._items) or len(self._running) > len(self._slow):
            await self._end_of_one()

    async def wait_finished(self, item: T) -> None:
        while item in self:
            await self._end_of_one()

    async def _end_of_one(self) -> None:
        self._next_end = self._next_end or asyncio.Event()
        await self._next_end.wait()

    def submit(self, item: T, key: str | int | None = None) -> None:
        """Add an item, which is run as soon as a worker is available."""
        self._quiet.clear()
        if self._items.offer(key, item) and not self._called:
            self._wake()

    def withdraw(self) -> list[T]:
        """Remove and return all items that have not been started."""
        left = self._items.clear()
        self._settle_quiet()
        return left

    async def join(self) -> None:
        """Wait until no items are running or waiting."""
        await self._quiet.wait()

    async def stop(self) -> tuple[T, ...]:
        """Cancel the running items and return them."""
        left = self.running
        self._limit = 0
        await cancel_all(self._tasks)
        return left

    def _wake(self) -> None:
        """Wake up a worker if there is work to do."""
        if self._called or not self._may_start():
            return
        if self._idle:
            self._called = True
            self._idle.pop().set_result(None)
        elif len(self._tasks) < self._size:
            self._called = True
            # The caller may be a worker with a modified context, so use the original one.
            context = self._context.copy()
            task = asyncio.get_running_loop().create_task(
                self._work(), name=self._name, context=context
            )
            self._tasks.add(task)
            task.add_done_callback(self._on_end)

    def _may_start(self) -> bool:
        return self._items.has_ready and len(self._running) < self._limit

    def _on_end(self, task: asyncio.Task[None]) -> None:
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
                # Wake up another worker if there is more work.
                if not self._called:
                    self._wake()
                try:
                    await self._run(item)
                except BaseException:
                    self._tasks.discard(me)
                    raise
                finally:
                    del self._running[me], item  # don't keep a reference while idle
                    if self._slow:
                        self._slow.discard(me)
                    if self._items.finish(key) or me not in self._tasks:
                        self._wake()
                    self._settle_quiet()
                if copy_context() != clean or me.cancelling():
                    # The context was modified, so replace this worker.
                    self._tasks.discard(me)
                    self._wake()
                    return
            await self._rest()

    async def _rest(self) -> None:
        """Wait for work. If a worker is cancelled, it wakes up another one."""
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
