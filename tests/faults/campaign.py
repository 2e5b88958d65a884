"""A campaign: producers and consumers as processes at work on a real broker, while things are broken."""

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
from tests.faults.inventory import take_stock, unfinished
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
"""A broker may hold a dead letter back for 180 s before it tries again, and for as long once more."""


class Worker:
    """A worker process."""

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
        """Whether it still runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """`kill -9`."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end, and wait."""
        if self.is_alive:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        finally:
            self.kill()


@dataclass
class Campaign:
    """One campaign on one virtual host. An async context manager: everything ends with it."""

    url: str
    management: Management
    design: str = "recommended"
    consumers: int = 2
    batch: tuple[str, ...] = ()
    concurrency: int = 20
    consumer_urls: tuple[str, ...] = ()
    """Where consumers connect, if not at `url`: a proxy, or the nodes of a cluster."""
    slack: float = 2.0
    quiet: float = 1.2
    """Seconds without any change after which a campaign is calm: more than two ticks of the broker."""
    rotates: bool = False
    """Whether its programs have a separate user, whose password can be changed."""
    workers: list[Worker] = field(default_factory=list)
    producers: list[Worker] = field(default_factory=list)
    lives: int = 0
    samples: list[Entry] = field(default_factory=list)
    """Resources of the consumers by second, up to the last verdict."""
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
        """The virtual host, as the HTTP API calls it."""
        return self.url.rpartition("/")[2] or "/"

    def change_password(self) -> None:
        """Change the password of the user of the programs."""
        self.password = secrets.token_hex(8)
        user = {"password": self.password, "tags": ""}
        self.management.call("PUT", f"/users/{self.vhost}", user)

    def tell_password(self) -> None:
        """Now its programs know it too."""
        keep_password(self.folder, self.password)

    # --- processes ---------------------------------------------------------------------------------

    def keep_consumers(self, *, dies: str = "") -> None:
        """Start a consumer for each missing one. With `dies` it kills itself at that step."""
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
        """Start a producer. The options are those of its command line."""
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
    def producing(self) -> bool:
        """Whether a producer or an operator is still at work."""
        return any(producer.is_alive for producer in self.producers)

    def operate(self, *, dies: str = "", discard: bool = False) -> Worker:
        """Start an operator who re-drives or discards every dead letter."""
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
        """Something is broken for the length of the block, and written down as such."""
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
        """How many entries of a kind were written so far."""
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
        """Return as soon as the condition holds.

        Otherwise raise TimeoutError with the last output of the workers.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {seconds:g} s; {self.last_words()}")
            await asyncio.sleep(every)

    async def until_calm(self, seconds: float = _CALM_S) -> None:
        """Return when producers have ended and only dead letters are left."""
        deadline = time.monotonic() + seconds
        since = time.monotonic()
        while time.monotonic() < since + self.quiet:
            self.keep_consumers()
            left = await unfinished(self.url, self.management, self.topology)
            if left != {} or self.producing:
                since = time.monotonic()
            if time.monotonic() > deadline:
                return  # remaining messages are found, and the checkers report them
            await asyncio.sleep(self.quiet / 3)

    async def verdict(self) -> Verdict:
        """Stop everything in order, take stock, and let the checkers speak."""
        for worker in self.workers:
            await asyncio.to_thread(worker.stop)
        await asyncio.to_thread(audit, self.url, self.topology, self.pen)
        return await asyncio.to_thread(self._checked)

    async def interim_verdict(self) -> Verdict:
        """Return the verdict on the messages sent since the last call.

        Consumers continue, dead letters are removed.
        """
        await take_stock(self.url, self.topology, self.pen)
        connection = await RabbitMQ(self.url).connect("campaign")
        channel = await connection.open_channel()
        for queue in {plan.parking.queue for plan in self.topology.plans}:
            await channel.purge_queue(queue)
        await connection.close()
        return await asyncio.to_thread(self._checked)

    def _checked(self) -> Verdict:
        entries = read_entries(self.folder, self._read)
        books = keep_books(entries, self.topology, slack=self.slack)
        self.samples += books.samples
        return check_books(books)

    def last_words(self) -> str:
        """The end of the output of the workers."""
        said = [
            f"{path.name}: {path.read_text(errors='replace')[-600:]}"
            for path in sorted(self.folder.glob("*.log"))
            if path.stat().st_size
        ]
        counted = Counter({kind: self.count(kind) for kind in (Kind.SENT, Kind.CONFIRMED)})
        return f"{dict(counted)}; {' | '.join(said)[-3000:]}"
