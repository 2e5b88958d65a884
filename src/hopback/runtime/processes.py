"""Run several worker processes.

Workers are stopped together, and a worker that dies is restarted. Each worker is connected to its
parent by a socket. It uses the socket to report when it is ready and which deliveries it left
unsettled. If the parent dies, the socket is closed and the worker stops. Workers run in their own
process groups, so Ctrl-C only reaches the parent. systemd sends SIGTERM to the parent and to the
workers. A worker may therefore receive SIGTERM twice for one request, and the parent uses the socket
to request an immediate stop.

`Changes` watches Python files so that workers can be reloaded during development.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopback.broker.supervise import Backoff
from hopback.waiting import first_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

_LOG = logging.getLogger("hopback.run")
_DEATHS = "HOPBACK_DEATHS"
_MOST_BLAMED = 100
"""Maximum number of messages to remember. They are passed to workers in the environment (about 4
KB).
"""
_LONGEST_REPORT = 2**20
"""Maximum bytes of a report of a worker. A longer report is lost. The last report has about 100 bytes
per queue.
"""
_LAST_REPORT_S = 1.0
"""Seconds to read the last reports of a worker after it has ended."""
_HURRY = 5.0
"""Seconds a worker may take to stop after files have changed."""


class ParentConnection:
    """The worker's end of the socket to its parent."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        # Don't let processes started by the application inherit the socket.
        self._socket.set_inheritable(False)

    async def wait_closed(self, on_force: Callable[[], object]) -> None:
        """Wait until the parent process has ended. `on_force` is called when the parent requests an
        immediate stop.
        """
        with suppress(OSError):
            while await asyncio.get_running_loop().sock_recv(self._socket, 1024):
                on_force()

    def send(self, **fact: object) -> None:
        """Send a report to the parent. If the parent has ended, the report is dropped."""
        with suppress(OSError):
            self._socket.send(json.dumps(fact).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The exit code and reports of a worker. The code is negative if a signal killed it.

    `alone` is the token of the message that the worker was handling alone.
    """

    code: int
    ready: bool
    report: Mapping[str, Any] | None
    alone: str | None = None


@dataclass(slots=True, eq=False)
class Child:
    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    asked: int = 0

    @classmethod
    async def start(
        cls, command: Callable[[int], Sequence[str]], environment: Mapping[str, str]
    ) -> Child:
        """Start a worker. `command` is called with the descriptor of its socket."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *command(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
                env=dict(environment),
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours, limit=_LONGEST_REPORT)
        return cls(process, reader, writer)

    async def wait_end(self, on_ready: Callable[[], object]) -> ProcessEnd:
        facts: dict[str, Any] = {}
        reading = asyncio.ensure_future(self._read(facts, on_ready))
        try:
            code = await self.process.wait()
            # A process that the worker has forked may keep the socket open.
            await first_of(reading, within=_LAST_REPORT_S)
        finally:
            reading.cancel()
            self.writer.close()
        return ProcessEnd(code, "ready" in facts, facts.get("report"), facts.get("alone"))

    async def _read(self, facts: dict[str, Any], on_ready: Callable[[], object]) -> None:
        """Read the reports of the worker until the socket is closed."""
        with suppress(ConnectionError):  # the worker ended before it read a request
            async for line in self.reader:
                try:
                    fact = json.loads(line)
                except ValueError:
                    continue
                if not isinstance(fact, dict):
                    continue
                if fact.get("ready") and "ready" not in facts:
                    on_ready()
                facts.update(fact)

    def stop(self) -> None:
        """Stop the worker. Calling this again stops it immediately, and a third call kills it."""
        self.asked += 1
        if self.asked == 2:
            self.writer.write(b"\n")
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM if self.asked < 3 else signal.SIGKILL)


def deaths_in(environment: Mapping[str, str]) -> dict[str, int]:
    """Read the number of crashes per message from the environment."""
    try:
        found = json.loads(environment.get(_DEATHS, "{}"))
    except ValueError:
        return {}
    pairs = found.items() if isinstance(found, dict) else ()
    return {token: deaths for token, deaths in pairs if isinstance(deaths, int)}


@dataclass(slots=True)
class Supervisor:
    """Runs `count` workers.

    If a worker ends before it was ready, all workers are stopped and its exit code becomes `code`.
    If it dies later, it is restarted after a delay. If `changes` is given, workers are also
    restarted when files change. If a worker dies while it was handling a message alone, later
    workers are informed (see `deaths_in`).
    """

    count: int
    command: Callable[[int, int], Sequence[str]]
    environment: Mapping[str, str]
    changes: Callable[[], Awaitable[Sequence[object]]] | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.5, most=30.0))
    chance: Callable[[], float] = random.random
    code: int = 0
    reports: list[Mapping[str, Any]] = field(default_factory=list)
    restarts: int = 0
    deaths: dict[str, int] = field(default_factory=dict)
    """Number of crashes per message."""
    _children: dict[int, Child] = field(default_factory=dict)
    _ending: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Run until stopped, or until a worker fails to start."""
        watching = asyncio.ensure_future(self._watch())
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self.count):
                    group.create_task(self._keep(number))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def stop(self) -> None:
        """Stop all workers. Calling this again stops them immediately."""
        self._ending.set()
        for child in tuple(self._children.values()):
            child.stop()

    async def _keep(self, number: int) -> None:
        """Restart a worker whenever it dies."""
        failures, was_ready = 0, False
        while not self._ending.is_set():
            changed = self._changed
            began = asyncio.get_running_loop().time()
            ended = await self._live(number)
            if self._ending.is_set() or changed.is_set():
                continue
            _LOG.warning("process %d ended by itself with %s", number, _told(ended.code))
            # A worker that was ready once may crash on a message before it reports ready again.
            was_ready = was_ready or ended.ready
            if ended.alone is not None:
                self.deaths[ended.alone] = self.deaths.pop(ended.alone, 0) + 1
                if len(self.deaths) > _MOST_BLAMED:
                    del self.deaths[next(iter(self.deaths))]
            elif not was_ready and ended.code >= 0:
                if self.changes is not None:  # wait until the developer has fixed the file
                    await self._unless_ending(changed, None)
                    continue
                self.code = ended.code or 1
                self.stop()
                continue
            lasted = asyncio.get_running_loop().time() - began
            failures = 1 if lasted >= self.backoff.stable else failures + 1
            self.restarts += 1
            await self._unless_ending(changed, self.backoff.delay(failures, self.chance()))

    async def _live(self, number: int) -> ProcessEnd:
        child = await Child.start(
            lambda descriptor: self.command(number, descriptor),
            {**self.environment, _DEATHS: json.dumps(self.deaths)},
        )
        self._children[number] = child
        if self._ending.is_set():
            child.stop()
        try:
            ended = await child.wait_end(lambda: _LOG.info("process %d is ready", number))
        finally:
            del self._children[number]
        if ended.report is not None:
            self.reports.append(ended.report)
        # A worker that is still starting has not installed its signal handler yet.
        unheard = ended.code == -signal.SIGTERM and not ended.ready
        if self._ending.is_set() and ended.code and not unheard:
            self.code = self.code or (ended.code if ended.code > 0 else 1)
        return ended

    async def _unless_ending(self, changed: asyncio.Event, seconds: float | None) -> None:
        """Sleep until the time is over, the supervisor is stopped or files change."""
        await first_of(self._ending.wait(), changed.wait(), within=seconds)

    async def _watch(self) -> None:
        """Restart the workers whenever files change."""
        while self.changes is not None:
            found = await self.changes()
            _LOG.info("restarting: changed %s", ", ".join(map(str, found[:3])))
            self._changed.set()
            self._changed = asyncio.Event()  # watches for the next change
            leaving = tuple(self._children.values())
            for _ in range(3):
                for child in leaving:
                    if child in self._children.values():
                        child.stop()
                waiting = [asyncio.ensure_future(one.process.wait()) for one in leaving]
                if not waiting:
                    break
                _, pending = await asyncio.wait(waiting, timeout=_HURRY)
                for one in pending:
                    one.cancel()
                if not pending:
                    break


def _told(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})
_LOOK_EVERY = 0.5  # seconds between checks


def python_files(folders: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Return the modification time and size of each Python file. Hidden directories are skipped."""
    found: dict[Path, tuple[int, int]] = {}
    for folder in folders:
        for where, below, names in os.walk(folder):
            below[:] = [one for one in below if not one.startswith(".") and one not in _SKIPPED]
            for name in names:
                if name.endswith(".py"):
                    with suppress(OSError):  # deleted in the meantime
                        state = Path(where, name).stat()
                        found[Path(where, name)] = (state.st_mtime_ns, state.st_size)
    return found


def changed_files(
    before: dict[Path, tuple[int, int]], after: dict[Path, tuple[int, int]]
) -> tuple[Path, ...]:
    return tuple(
        sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    )


class Changes:
    """Waits for changed files."""

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._seen = python_files(folders)

    async def __call__(self) -> tuple[Path, ...]:
        while True:
            now = python_files(self._folders)
            found, self._seen = changed_files(self._seen, now), now
            if found:
                return found
            await asyncio.sleep(_LOOK_EVERY)
