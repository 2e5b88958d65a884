"""An event loop whose time jumps: when nothing can run, it is at once the next deadline.

`asyncio.sleep`, timeouts and the embedded broker's own deadlines all follow it, so half an hour of
waiting takes no time and every run is the same. Sockets and threads still work: time stands still
while a thread is busy for the loop, and while somebody outside owes it an answer. That is so after
something was written to a socket until something is read from it, while a connection is being made,
and for a moment after each answer, because the rest of it may be on its way. A connection that is
only open, as those of a pool are, holds nothing up; neither does one between two ends in this loop.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from concurrent.futures import Executor

    from _typeshed import FileDescriptorLike

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_START = 1_700_000_000.0
"""14 November 2023: a fixed moment, so that every run gives the same timestamps."""
_LONGEST_RUN_S = 400 * 24 * 3600.0
"""More than a year: no wait that anyone configures is longer, so the program is stuck."""
_ANSWER_S = 10.0
"""Real seconds in which an answer is expected: far more than a database on this machine takes. A peer
that lets them pass is not waited for again before it has spoken: it may only listen, as a log does."""
_REST_S = 0.05
"""Real seconds in which the next part of an answer is expected; loss on a local line is rarer."""
_TURNS_WITHOUT_LOOK = 64
"""Turns of the loop between two looks at its own pipe while there is work: asking costs as much as a turn."""
_IN_THREADS = ("aiosqlite.core", "sqlalchemy.dialects.sqlite.aiosqlite")
"""Something with threads of its own that wakes the loop by a future when they are done."""


class NothingCanHappen(RuntimeError):
    """Every task waits for something that no deadline will bring; the text names the tasks."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, for tests and simulations.

    `loop.time()` is in seconds since 1970, beginning at `start`. When it has run `patience`
    seconds ahead, the program is taken to wait for something that never comes.
    """

    is_virtual = True
    """Read by code that polls, see `hopback.waiting.is_time_virtual`."""

    def __init__(self, start: float = _START, *, patience: float = _LONGEST_RUN_S) -> None:
        self._virtual_now = start
        self._until = start + patience
        self._threads = 0
        self._selector: _JumpingSelector
        super().__init__(_JumpingSelector(self))
        # The loop runs what is due before now + resolution; the usual nanosecond is lost when it
        # is added to seconds since 1970.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """Seconds since 1970, in virtual time."""
        return self._virtual_now

    def now(self) -> float:
        """The same: the loop is also a clock."""
        return self._virtual_now

    def jump(self, seconds: float) -> None:
        """Let `seconds` pass at once."""
        self._virtual_now += seconds
        if self._virtual_now > self._until:
            raise NothingCanHappen(
                f"virtual time ran out at {self._virtual_now:.0f}; {self._waiting()}"
            )

    @property
    def threads_at_work(self) -> int:
        """How many threads work for this loop; time stands still meanwhile."""
        return self._threads

    def stuck(self) -> NothingCanHappen:
        """What to raise when no task can run and no deadline is set."""
        return NothingCanHappen(f"nothing can happen any more; {self._waiting()}")

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
        """As usual; virtual time stands still until it is done."""
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
        """Note when something is written; a server's own end answers and waits for nobody."""
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
        """The descriptor by which threads and signals wake the loop."""
        return int(self._ssock.fileno())  # type: ignore[attr-defined]

    def create_future(self) -> asyncio.Future[Any]:
        """As usual; aiosqlite has threads of its own, and time stands still for those as well."""
        future = super().create_future()
        if sys._getframe(1).f_globals.get("__name__") in _IN_THREADS:  # noqa: SLF001
            self._threads += 1
            future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _future: asyncio.Future[Any]) -> None:
        self._threads -= 1

    async def shutdown_default_executor(self, *args: Any, **options: Any) -> None:
        """As usual; virtual time stands still until it is done."""
        self._threads += 1
        try:
            await super().shutdown_default_executor(*args, **options)
        finally:
            self._threads -= 1


class _JumpingSelector(selectors.BaseSelector):
    """Looks at the sockets and, if there is nothing, lets time pass instead of waiting."""

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
        """Something is written to a socket: its peer may owe an answer."""
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
            # Only the loop's own pipe, which says that there is something to do, and there is already:
            # a glance now and then lets signals in, and the kernel is not asked at every turn.
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
            return self._real.select(None)  # more than the loop's own pipe: a socket may speak
        raise self._loop.stuck()

    def _answers(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait, in real time, for those outside who owe an answer; nothing if nobody does."""
        transports: Mapping[int, Any] = self._loop.transports()
        open_ones = {key.fd: key for key in self._real.get_map().values()}
        # What is registered without a transport is waited for by a task at this moment.
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
        # The sockets that somebody outside has to speak on before time may pass.
        owed = (asked | direct) - self._silent
        if owed:
            found = self._real.select(_ANSWER_S)
            if not found:
                self._silent |= owed
            return found
        rest = self._read_at + _REST_S - time.monotonic()
        return self._real.select(rest) if rest > 0 else []


def _name(transport: Any, what: str) -> object:
    """The address of an end; one of a pair without names is taken for the other."""
    return transport.get_extra_info(what) or ""


def _listens(key: selectors.SelectorKey) -> bool:
    """Whether it is the socket of a server: nobody has to connect."""
    try:
        with socket.socket(fileno=key.fd) as sock:
            try:
                return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            finally:
                sock.detach()
    except OSError:
        return False  # a pipe


class LoopClock:
    """The time of the running loop if that is virtual, else the machine's."""

    __slots__ = ("_fallback",)

    def __init__(self, fallback: Callable[[], float]) -> None:
        self._fallback = fallback

    def now(self) -> float:
        """Seconds since 1970, UTC."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self._fallback()
        return loop.time() if isinstance(loop, VirtualTimeLoop) else self._fallback()


def run_virtual(main: Coroutine[Any, Any, T], *, start: float = _START) -> T:
    """Run a coroutine in virtual time and return what it returns, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start)) as runner:
        return runner.run(main)
