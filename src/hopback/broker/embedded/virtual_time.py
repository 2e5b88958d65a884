"""An event loop with virtual time. When all tasks are waiting, the time jumps to the next deadline.

This affects `asyncio.sleep`, timeouts and the embedded broker. Waiting for half an hour takes no
real time, and each run has the same result. Sockets and threads can still be used. Time stops while
a thread is working for the loop, and while an external peer is expected to respond. This is assumed
while a connection is being opened, after a write until the next read, and for a moment after each
read, because more data may follow. Idle connections do not stop time, such as those in a pool.
Connections with both ends in this loop do not either.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from hopback.durations import Duration, read_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from concurrent.futures import Executor

    from _typeshed import FileDescriptorLike

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_START = 1_700_000_000.0
"""14 November 2023. With a fixed start, timestamps are the same in each run."""
_LONGEST_RUN_S = 400 * 24 * 3600.0
"""More than a year. No configured delay is this long, so the program must be stuck."""
_ANSWER_S = 10.0
"""Real seconds to wait for a response. A local database needs much less. If there is no response in
time, we do not wait for this peer until it sends data. It may never respond, like a log collector.
"""
_REST_S = 0.05
"""Real seconds to wait for the rest of a response."""
_TURNS_WITHOUT_LOOK = 64
"""While tasks are ready, the wake-up pipe is only polled once in this number of loop iterations,
because a poll takes as long as an iteration.
"""
_IN_THREADS = ("aiosqlite.core", "sqlalchemy.dialects.sqlite.aiosqlite")
"""Modules that use threads and wake up the loop with a future."""


class StuckLoop(RuntimeError):
    """Raised when all tasks are waiting and there is no deadline. The text contains the tasks."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time, for tests and simulations.

    `loop.time()` returns seconds since the epoch and begins with `start`. If the program runs for
    longer than `patience` in virtual time, it is considered stuck.
    """

    is_virtual = True
    """Code that polls reads this with `hopback.waiting.is_time_virtual`."""

    def __init__(self, start: float = _START, *, patience: Duration = _LONGEST_RUN_S) -> None:
        self._virtual_now = start
        self._until = start + read_seconds(patience, "patience", where="VirtualTimeLoop")
        self._threads = 0
        self._selector: _JumpingSelector
        super().__init__(_JumpingSelector(self))
        # asyncio runs callbacks that are due before now + resolution. The default of one nanosecond
        # is too small to be added to seconds since the epoch.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """The virtual time in seconds since the epoch."""
        return self._virtual_now

    def now(self) -> float:
        """The same as `time()`, so that the loop can be used as a clock."""
        return self._virtual_now

    def jump(self, seconds: float) -> None:
        """Advance the time by `seconds` in a single step."""
        self._virtual_now += seconds
        if self._virtual_now > self._until:
            raise StuckLoop(f"virtual time ran out at {self._virtual_now:.0f}; {self._waiting()}")

    @property
    def threads_at_work(self) -> int:
        """The number of threads that are working for this loop. Virtual time is stopped unless it
        is 0.
        """
        return self._threads

    def stuck(self) -> StuckLoop:
        """Return the error for a loop that has no ready tasks and no deadlines."""
        return StuckLoop(f"no task can continue and no deadline is set: {self._waiting()}")

    def _waiting(self) -> str:
        places = []
        for task in asyncio.all_tasks(self):
            frames = task.get_stack(limit=1)
            at = f" at {frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else ""
            places.append(task.get_name() + at)
        places.sort()
        return f"expected a task that can go on, found waiting: {', '.join(places) or 'none'}"

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run a function in an executor. Virtual time stops until it returns."""
        future = super().run_in_executor(executor, func, *args)
        self._threads += 1
        future.add_done_callback(self._thread_done)
        return future

    def _make_socket_transport(self, sock: socket.socket, *args: Any, **options: Any) -> Any:
        made = super()._make_socket_transport(sock, *args, **options)  # type: ignore[misc]
        self._watch(sock, options)
        return made

    def _make_ssl_transport(self, rawsock: socket.socket, *args: Any, **options: Any) -> Any:
        made = super()._make_ssl_transport(rawsock, *args, **options)  # type: ignore[misc]
        self._watch(rawsock, options)
        return made

    def _watch(self, sock: socket.socket, options: Mapping[str, Any]) -> None:
        """Track writes to the socket. This is not needed for the server's end, which only responds."""
        if options.get("server") is not None:
            return
        descriptor = sock.fileno()
        transport = self.transports()[descriptor]
        for name in ("write", "writelines"):
            write = getattr(transport, name)

            def written(data: Any, write: Callable[[Any], None] = write) -> None:
                self._selector.on_asked(descriptor)
                write(data)

            setattr(transport, name, written)

    def transports(self) -> Mapping[int, Any]:
        return self._transports  # type: ignore[attr-defined,no-any-return]

    def own_pipe(self) -> int:
        """The descriptor used by threads and signals to wake up the loop."""
        return int(self._ssock.fileno())  # type: ignore[attr-defined]

    def create_future(self) -> asyncio.Future[Any]:
        """Create a future. If it belongs to aiosqlite, time stops until it is done, because a
        thread is working.
        """
        future = super().create_future()
        if sys._getframe(1).f_globals.get("__name__") in _IN_THREADS:  # noqa: SLF001
            self._threads += 1
            future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _future: asyncio.Future[Any]) -> None:
        self._threads -= 1

    async def shutdown_default_executor(self, *args: Any, **options: Any) -> None:
        """Shut down the executor. Virtual time stops in the meantime."""
        self._threads += 1
        try:
            await super().shutdown_default_executor(*args, **options)
        finally:
            self._threads -= 1


class _JumpingSelector(selectors.BaseSelector):
    """Advances the virtual time instead of waiting, and polls sockets."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop
        self._real = selectors.DefaultSelector()
        self._asked: set[int] = set()
        self._silent: set[int] = set()
        self._read_at = float("-inf")
        self._turns = 0

    def register(
        self, fileobj: FileDescriptorLike, events: int, data: Any = None
    ) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        key = self._real.unregister(fileobj)
        self._asked.discard(key.fd)
        self._silent.discard(key.fd)
        return key

    def on_asked(self, descriptor: int) -> None:
        """Record that data was written to a socket, so the peer may respond."""
        self._asked.add(descriptor)

    def modify(
        self, fileobj: FileDescriptorLike, events: int, data: Any = None
    ) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        return self._real.get_map()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0 and len(self._real.get_map()) == 1:
            # There are no sockets, and tasks are ready. Poll rarely to save system calls. It is
            # only needed for signals.
            self._turns = (self._turns + 1) % _TURNS_WITHOUT_LOOK
            return self._real.select(0) if self._turns == 0 else []
        if self._loop.threads_at_work and timeout != 0:
            return self._real.select(None)
        found = self._real.select(0)
        if not found and timeout != 0:
            found = self._answers()
        if found or timeout == 0:
            for key, events in found:
                if events & selectors.EVENT_READ and key.fd in self._loop.transports():
                    self._asked.discard(key.fd)
                    self._silent.discard(key.fd)
                    self._read_at = time.monotonic()
            return found
        if timeout is not None:
            self._loop.jump(timeout)
            return []
        if len(self._real.get_map()) > 1:
            return self._real.select(None)  # another socket may have become readable
        raise self._loop.stuck()

    def _answers(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for external peers in real time. Returns no events if no response is expected."""
        transports: Mapping[int, Any] = self._loop.transports()
        open_ones = {key.fd: key for key in self._real.get_map().values()}
        # A descriptor that is registered without a transport always has a task waiting for it.
        direct = {
            fd
            for fd, key in open_ones.items()
            if fd not in transports and fd != self._loop.own_pipe() and not _listens(key)
        }
        asked = {fd for fd in self._asked - self._silent if fd in transports}
        if asked:
            ends = {_name(one, "sockname") for one in tuple(transports.values())}
            inside = {fd for fd in asked if _name(transports[fd], "peername") in ends}
            self._asked -= inside
            asked -= inside
        # Time must not advance until these sockets have received data.
        owed = (asked | direct) - self._silent
        if owed:
            found = self._real.select(_ANSWER_S)
            if not found:
                self._silent |= owed
            return found
        rest = self._read_at + _REST_S - time.monotonic()
        return self._real.select(rest) if rest > 0 else []


def _name(transport: Any, what: str) -> object:
    """Return the address of one end. The unnamed sockets of a pair are connected to each other."""
    return transport.get_extra_info(what) or ""


def _listens(key: selectors.SelectorKey) -> bool:
    """Return True if this is a listening socket. There is nothing to wait for in this case."""
    try:
        with socket.socket(fileno=key.fd) as sock:
            try:
                return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            finally:
                sock.detach()
    except OSError:
        return False  # a pipe


class LoopClock:
    """The time of the running loop if it is virtual, and the system time otherwise.

    In a thread that has no loop, the loop that used this clock most recently determines the time.
    """

    __slots__ = ("_fallback", "_loop")

    def __init__(self, fallback: Callable[[], float]) -> None:
        self._fallback = fallback
        self._loop: asyncio.AbstractEventLoop | None = None

    def now(self) -> float:
        """Return seconds since the epoch."""
        with suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()
        loop = self._loop
        return loop.time() if isinstance(loop, VirtualTimeLoop) else self._fallback()


def run_virtual(main: Coroutine[Any, Any, T], *, start: float = _START) -> T:
    """Run a coroutine in virtual time and return its result. Similar to `asyncio.run`."""
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start)) as runner:
        return runner.run(main)
