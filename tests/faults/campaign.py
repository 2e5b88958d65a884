"""A campaign. Producers and consumers run as processes on a real broker while faults are injected."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hopback import RabbitMQ
from hopback.broker.declare import declare
from tests.faults.auditor import audit
from tests.faults.credentials import keep_password
from tests.faults.inventory import count_unfinished, take_stock
from tests.faults.ledger.books import keep_books
from tests.faults.ledger.checks import check_books
from tests.faults.ledger.entry import FilePen, Kind, read_entries
from tests.faults.topologies import TOPOLOGIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.faults.ledger.checks import Verdict
    from tests.faults.ledger.entry import Entry
    from tests.harness.management import Management

__all__ = ["Campaign", "Worker"]

_ROOT = Path(__file__).resolve().parents[2]
_CALM_S = 400.0
"""Seconds. A broker may hold a dead letter back for 180 s before it tries again, and this may
happen twice.
"""


class Worker:
    def __init__(self, name: str, module: str, folder: Path, *arguments: object) -> None:
        self.name = name
        command = [sys.executable, "-m", f"tests.faults.{module}", "--folder", str(folder)]
        with (folder / f"{name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--name", name, *map(str, arguments)],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def is_alive(self) -> bool:
        """Whether the process is running."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Send SIGTERM and wait until the process has ended."""
        if self.is_alive:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        finally:
            self.kill()


@dataclass
class Campaign:
    """A campaign on a virtual host. This is an async context manager that stops everything at the
    end.
    """

    url: str
    management: Management
    design: str = "recommended"
    consumers: int = 2
    batch: tuple[str, ...] = ()
    concurrency: int = 20
    consumer_urls: tuple[str, ...] = ()
    """The URLs of the consumers if they differ from `url`, for example a proxy or the nodes of a
    cluster.
    """
    slack: float = 2.0
    quiet: float = 1.2
    """A campaign is calm after this number of seconds without a change. This must be longer than
    two ticks of the broker.
    """
    rotates: bool = False
    """Whether the programs use their own user, whose password can be changed."""
    workers: list[Worker] = field(default_factory=list)
    producers: list[Worker] = field(default_factory=list)
    lives: int = 0
    samples: list[Entry] = field(default_factory=list)
    """The resources of the consumers, sampled every second, up to the last verdict."""
    _read: dict[str, int] = field(default_factory=dict)
    _counted: dict[str, tuple[int, Counter[str]]] = field(default_factory=dict)
    _sent: int = 0

    async def __aenter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="hopback-faults-"))
        self.topology = TOPOLOGIES[self.design]()
        self.pen = FilePen(self.folder / "campaign.ledger", "*", time.time)
        self._own_url = self.url
        if self.rotates:
            self._own_url = self.url.replace("guest:guest@", f"{self.vhost}@", 1)
            self.change_password()
            self.tell_password()
            everything = {"configure": ".*", "write": ".*", "read": ".*"}
            self.management.call("PUT", f"/permissions/{self.vhost}/{self.vhost}", everything)
        connection = await RabbitMQ(self.url).connect("campaign")
        await declare(connection, self.topology)
        await connection.close()
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in (*self.workers, *self.producers):
            worker.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def vhost(self) -> str:
        """The name of the virtual host in the HTTP API."""
        return self.url.rpartition("/")[2] or "/"

    def change_password(self) -> None:
        """Change the password of the programs on the broker."""
        self.password = secrets.token_hex(8)
        user = {"password": self.password, "tags": ""}
        self.management.call("PUT", f"/users/{self.vhost}", user)

    def tell_password(self) -> None:
        """Give the programs the new password."""
        keep_password(self.folder, self.password)

    # --- processes ---------------------------------------------------------------------------------

    def keep_consumers(self, *, dies: str = "") -> None:
        """Replace consumers that have ended. With `dies`, the new consumer kills itself at this
        step.
        """
        self.workers = [worker for worker in self.workers if worker.is_alive]
        while len(self.workers) < self.consumers:
            self.lives += 1
            self.workers.append(self._consumer(f"c{self.lives}", dies))

    def _consumer(self, name: str, dies: str) -> Worker:
        urls = [part for url in self.consumer_urls or (self._own_url,) for part in ("--url", url)]
        batch = [part for queue in self.batch for part in ("--batch", queue)]
        options = ["--design", self.design, "--concurrency", self.concurrency, *urls, *batch]
        return Worker(name, "consumer", self.folder, *options, *(("--dies", dies) if dies else ()))

    def produce(self, messages: int, *, urls: tuple[str, ...] = (), **options: object) -> Worker:
        """Start a producer. `options` are passed on its command line."""
        given = [p for url in urls or (self._own_url,) for p in ("--url", url)]
        for name, value in options.items():
            given += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        first = self._sent
        self._sent += messages
        name = f"producer{len(self.producers) + 1}"
        worker = Worker(
            name,
            "producer",
            self.folder,
            *("--design", self.design, "--first", first, "--messages", messages, *given),
        )
        self.producers.append(worker)
        return worker

    @property
    def is_producing(self) -> bool:
        """Whether any producer or operator is still running."""
        return any(producer.is_alive for producer in self.producers)

    def operate(self, *, dies: str = "", discard: bool = False) -> Worker:
        """Start an operator that re-drives or discards all dead letters."""
        self.lives += 1
        given = ["--url", self._own_url, "--design", self.design]
        given += ["--dies", dies] if dies else []
        operator = Worker(
            f"o{self.lives}", "operator", self.folder, *given, *(["--discard"] if discard else [])
        )
        self.producers.append(operator)
        return operator

    # --- faults ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def fault(self, name: str, scope: str, who: str = "*") -> AsyncIterator[None]:
        """Record a fault that lasts until the end of the block."""
        self._note(Kind.FAULT, name, scope, who)
        try:
            yield
        finally:
            self._note(Kind.HEALED, name, scope, who)

    def _note(self, kind: Kind, name: str, scope: str, who: str) -> None:
        self.pen.who = who
        self.pen.write(kind, queue=scope, note=name)
        self.pen.who = "*"

    # --- the end -----------------------------------------------------------------------------------

    def count(self, kind: Kind) -> int:
        """Return how many entries of a kind have been written."""
        for path in self.folder.glob("*.ledger"):
            begin, found = self._counted.get(path.name, (0, Counter()))
            with path.open("rb") as lines:
                lines.seek(begin)
                added, newline, _ = lines.read().rpartition(b"\n")
            found.update(line.split(b" ", 2)[1].decode() for line in added.splitlines())
            self._counted[path.name] = (begin + len(added) + len(newline), found)
        return sum(found[kind] for _, found in self._counted.values())

    async def until(
        self, condition: Callable[[], bool], seconds: float = 60.0, *, every: float = 0.05
    ) -> None:
        """Wait until the condition is true.

        Raises TimeoutError with the last output of the workers if this takes too long.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {seconds:g} s; {self.last_words()}")
            await asyncio.sleep(every)

    async def until_calm(self, seconds: float = _CALM_S) -> None:
        """Wait until all producers have ended and only dead letters are left."""
        deadline = time.monotonic() + seconds
        since = time.monotonic()
        while time.monotonic() < since + self.quiet:
            self.keep_consumers()
            left = await count_unfinished(self.url, self.management, self.topology)
            if left != {} or self.is_producing:
                since = time.monotonic()
            if time.monotonic() > deadline:
                return  # the checkers report the remaining messages
            await asyncio.sleep(self.quiet / 3)

    async def verdict(self) -> Verdict:
        """Stop the workers, list the contents of the queues, and check everything."""
        for worker in self.workers:
            await asyncio.to_thread(worker.stop)
        await asyncio.to_thread(audit, self.url, self.topology, self.pen)
        return await asyncio.to_thread(self._check_entries)

    async def interim_verdict(self) -> Verdict:
        """Return the verdict on the messages that were sent since the last call.

        The consumers keep running. Dead letters are removed.
        """
        await take_stock(self.url, self.topology, self.pen)
        connection = await RabbitMQ(self.url).connect("campaign")
        channel = await connection.open_channel()
        for queue in {plan.parking.queue for plan in self.topology.plans}:
            await channel.purge_queue(queue)
        await connection.close()
        return await asyncio.to_thread(self._check_entries)

    def _check_entries(self) -> Verdict:
        entries = read_entries(self.folder, self._read)
        books = keep_books(entries, self.topology, slack=self.slack)
        self.samples += books.samples
        return check_books(books)

    def last_words(self) -> str:
        """Return the last output of the workers."""
        said = [
            f"{path.name}: {path.read_text(errors='replace')[-600:]}"
            for path in sorted(self.folder.glob("*.log"))
            if path.stat().st_size
        ]
        counted = Counter({kind: self.count(kind) for kind in (Kind.SENT, Kind.CONFIRMED)})
        return f"{dict(counted)}; {' | '.join(said)[-3000:]}"
