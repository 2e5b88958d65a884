"""Several processes under one: started, watched, restarted after a pause, stopped together.

A child has a socket to its parent. It reports when it is ready and, at its end, its unsettled work.
When the socket closes, the parent is gone and the child stops. Each child is a separate process
group, so that Ctrl-C at a terminal reaches only the parent, which forwards it once.

For development, `Changes` detects changed Python files by polling and without a dependency.
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
"""Number of blamed messages to remember, most recent first: about 4 KB of a child's environment."""
_HURRY = 5.0
"""How long (seconds) a child may take to make way for its successor when files have changed."""


class ParentConnection:
    """The child's end of the connection."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        # Processes started by the application must not keep it open after this process has ended.
        self._socket.set_inheritable(False)

    async def wait_closed(self) -> None:
        """Return when the parent is gone."""
        with suppress(OSError):
            while await asyncio.get_running_loop().sock_recv(self._socket, 1024):
                pass

    def send(self, **fact: object) -> None:
        """Send a fact to the parent. It is dropped if the parent is gone."""
        with suppress(OSError):
            self._socket.send(json.dumps(fact).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of a child: its exit code (negative: the signal) and its reports.

    `alone` is the token of the message that it was handling alone at its end.
    """

    code: int
    ready: bool
    report: Mapping[str, Any] | None
    alone: str | None = None


@dataclass(slots=True, eq=False)
class Child:
    """One child process and our end of the connection to it."""

    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    asked: int = 0

    @classmethod
    async def start(
        cls, command: Callable[[int], Sequence[str]], environment: Mapping[str, str]
    ) -> Child:
        """Start `command(descriptor)`. The descriptor is the child's end of the socket."""
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
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(process, reader, writer)

    async def wait_end(self, on_ready: Callable[[], object]) -> ProcessEnd:
        ready, report, alone = False, None, None
        try:
            async for line in self.reader:
                try:
                    fact = json.loads(line)
                except ValueError:
                    continue
                if not isinstance(fact, dict):
                    continue
                if fact.get("ready") and not ready:
                    ready = True
                    on_ready()
                report = fact.get("report", report)
                alone = fact.get("alone", alone)
            return ProcessEnd(await self.process.wait(), ready, report, alone)
        finally:
            self.writer.close()

    def stop(self) -> None:
        """Stop the child: the first signal is graceful, the second immediate, the third kills it."""
        self.asked += 1
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM if self.asked < 3 else signal.SIGKILL)


def deaths_in(environment: Mapping[str, str]) -> dict[str, int]:
    """Return the parent's record of its children's deaths, by token."""
    try:
        found = json.loads(environment.get(_DEATHS, "{}"))
    except ValueError:
        return {}
    pairs = found.items() if isinstance(found, dict) else ()
    return {token: deaths for token, deaths in pairs if isinstance(deaths, int)}


@dataclass(slots=True)
class Supervisor:
    """Keeps `count` children alive. `command(number, descriptor)` starts one.

    If a child ends before it was ever ready, a restart does not help: all end, and `code` is its
    exit code. A child that dies later is restarted after a pause. With `changes` (an awaitable that
    returns when files have changed) all are restarted on each change, and a child that cannot start
    waits for the next one. If a child dies while it handles a message alone, its successors find
    that message in their environment (`deaths_in` reads it).
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
    """How often a child died while it handled a message alone, by the message's token."""
    _children: dict[int, Child] = field(default_factory=dict)
    _ending: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Run until stopped, or until a child could not start."""
        watching = asyncio.ensure_future(self._watch())
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self.count):
                    group.create_task(self._keep(number))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def stop(self) -> None:
        """Stop all children. A second call stops them immediately."""
        self._ending.set()
        for child in tuple(self._children.values()):
            child.stop()

    async def _keep(self, number: int) -> None:
        """Start a child again and again."""
        failures, was_ready = 0, False
        while not self._ending.is_set():
            changed = self._changed
            began = asyncio.get_running_loop().time()
            ended = await self._live(number)
            if self._ending.is_set() or changed.is_set():
                continue
            _LOG.warning("process %d ended by itself with %s", number, _told(ended.code))
            # Once it was ready, a message may kill it before it reports ready again.
            was_ready = was_ready or ended.ready
            if ended.alone is not None:
                self.deaths[ended.alone] = self.deaths.pop(ended.alone, 0) + 1
                if len(self.deaths) > _MOST_BLAMED:
                    del self.deaths[next(iter(self.deaths))]
            elif not was_ready and ended.code >= 0:
                if self.changes is not None:  # the developer corrects the file
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
        # A child that was still starting had no signal handler yet, and no deliveries either.
        unheard = ended.code == -signal.SIGTERM and not ended.ready
        if self._ending.is_set() and ended.code and not unheard:
            self.code = self.code or (ended.code if ended.code > 0 else 1)
        return ended

    async def _unless_ending(self, changed: asyncio.Event, seconds: float | None) -> None:
        """Wait, but not when the end is asked for or files change."""
        await first_of(self._ending.wait(), changed.wait(), within=seconds)

    async def _watch(self) -> None:
        """Replace the children whenever files have changed."""
        while self.changes is not None:
            found = await self.changes()
            _LOG.info("restarting: changed %s", ", ".join(map(str, found[:3])))
            self._changed.set()
            self._changed = asyncio.Event()  # the next lives wait for the next change
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
_LOOK_EVERY = 0.5  # short for a developer who has just saved a file, and cheap: only times are read


def python_files(folders: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Return modification time and size of all .py files below the folders, except hidden ones."""
    found: dict[Path, tuple[int, int]] = {}
    for folder in folders:
        for where, below, names in os.walk(folder):
            below[:] = [one for one in below if not one.startswith(".") and one not in _SKIPPED]
            for name in names:
                if name.endswith(".py"):
                    with suppress(OSError):  # it went away while we looked
                        state = Path(where, name).stat()
                        found[Path(where, name)] = (state.st_mtime_ns, state.st_size)
    return found


def changed_files(
    before: dict[Path, tuple[int, int]], after: dict[Path, tuple[int, int]]
) -> tuple[Path, ...]:
    """Return the files written, created or removed between two scans."""
    return tuple(
        sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    )


class Changes:
    """Reports the files that changed since the last call."""

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._seen = python_files(folders)

    async def __call__(self) -> tuple[Path, ...]:
        """Wait for changes and return the changed files."""
        while True:
            now = python_files(self._folders)
            found, self._seen = changed_files(self._seen, now), now
            if found:
                return found
            await asyncio.sleep(_LOOK_EVERY)
