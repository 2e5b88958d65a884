"""`python -m benchmarks.admin`: how quickly the admin service answers, and what it holds.

The service runs in a process of its own on the embedded broker, with 50 queues and 100,000 dead
letters. Pages are asked one after the other, then the read endpoints at a steady rate.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import resource
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

_PAGES = ("/", "/queues/q-07.dlq", "/jobs", "/topology", "/checks", "/audit", "/you")
_READS = (
    "/admin/dlq/overview", "/admin/dlq/queues", "/admin/dlq/jobs", "/admin/me",
    "/admin/topology/check", "/readyz", "/metrics",
)  # fmt: skip
_GOAL_MS = 100.0
_LINES = 16


@dataclass(frozen=True, slots=True)
class Measured:
    """Latencies of one kind of request, in milliseconds."""

    what: str
    times: tuple[float, ...]
    cpu_ms: float
    """What the server spent on each, whoever else uses the machine."""

    def row(self) -> str:
        """A row of the table."""
        ordered = sorted(self.times)
        p99 = ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)]
        middle = statistics.median(ordered)
        return f"| `{self.what}` | {middle:.1f} | {p99:.1f} | {self.cpu_ms:.1f} |"


async def _serve(queues: int, letters: int, line: Connection) -> None:
    from hopback.admin import create_app, serve
    from hopback.broker.declare import declare
    from hopback.broker.embedded import EmbeddedBroker
    from hopback.broker.embedded.management import EmbeddedManagement
    from hopback.deadletters.service import Operations
    from hopback.runtime.app import App

    app = App("bench")
    for number in range(queues):
        app.queue(f"q-{number:02}", bind={"events": f"event.{number:02}"})
    broker, declared = EmbeddedBroker(), (app.topology,)
    connection = await broker.connect("bench")
    await declare(connection, app.topology)
    await _fill(connection, queues, letters)
    await connection.close()
    view = EmbeddedManagement(broker)
    async with Operations(broker, management=view, topologies=declared) as operations:
        asgi = create_app(operations, broker, view=view, topologies=declared)
        await serve(asgi, port=0, on_ready=lambda _host, port: line.send(port))


async def _fill(connection: object, queues: int, letters: int) -> None:
    from hopback.headers import Failure, failure_json
    from hopback.message import Message, Properties

    channel = await connection.open_channel()  # type: ignore[attr-defined]
    for number in range(letters):
        failure = Failure("TimeoutError", "no answer", fingerprint=f"{number % 5:012x}", last=1e9)
        headers = {"hopback-failure": failure_json(failure) or "", "hopback-attempts": 4}
        properties = Properties(message_id=f"m-{number}", type="Event", headers=headers)
        queue = f"q-{number % queues:02}.dlq"
        fate = channel.publish(Message("", queue, b'{"n": %d}' % number, properties))
        if number % 500 == 0:
            await fate


def _process(queues: int, letters: int, line: Connection) -> None:
    asyncio.run(_serve(queues, letters, line))


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> float:
    """One request on an open line: how long its answer took, in milliseconds."""
    begun = time.perf_counter()
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{path}: {head[:60]!r}")
    length = next(
        int(line.partition(b":")[2]) for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length")
    )  # fmt: skip
    await reader.readexactly(length)
    return (time.perf_counter() - begun) * 1000


async def _one_by_one(port: int, pid: int, paths: Sequence[str], times: int) -> list[Measured]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    for path in paths:
        await _ask(reader, writer, path)  # templates are compiled at their first use
        before = _cpu_s(pid)
        spent = tuple([await _ask(reader, writer, path) for _ in range(times)])
        found.append(Measured(path, spent, (_cpu_s(pid) - before) * 1000 / times))
    writer.close()
    return found


async def _steadily(port: int, pid: int, rate: float, seconds: float) -> Measured:
    """Read endpoints in turn at that rate; a late answer delays only its own line."""
    times: list[float] = []
    begin, before = time.perf_counter(), _cpu_s(pid)

    async def line(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        turn = number
        while (due := turn / rate) < seconds:
            await asyncio.sleep(max(begin + due - time.perf_counter(), 0))
            times.append(await _ask(reader, writer, _READS[turn % len(_READS)]))
            turn += _LINES
        writer.close()

    await asyncio.gather(*(line(number) for number in range(_LINES)))
    spent = time.perf_counter() - begin
    cpu_ms = (_cpu_s(pid) - before) * 1000 / len(times)
    return Measured(f"{len(times) / spent:.0f} reads a second", tuple(times), cpu_ms)


def _cpu_s(pid: int) -> float:
    """The processor time that a process has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    """The memory that a process holds, in MiB."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admin", description=__doc__)
    parser.add_argument("--queues", type=int, default=50)
    parser.add_argument("--letters", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    chosen = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    spawning = multiprocessing.get_context("spawn")
    server = spawning.Process(
        target=_process, args=(chosen.queues, chosen.letters, theirs), daemon=True
    )
    server.start()
    port = ours.recv()
    try:
        pid = server.pid or 0
        pages = asyncio.run(_one_by_one(port, pid, _PAGES, 30))
        before = _resident(pid)
        steady = asyncio.run(_steadily(port, pid, chosen.rate, chosen.seconds))
        after = _resident(pid)
    finally:
        server.terminate()
        server.join()
    print(f"{chosen.queues} queues, {chosen.letters:,} dead letters, embedded broker\n")
    print("| | median ms | 99 % ms | server CPU ms |\n|---|---|---|---|")
    for each in (*pages, steady):
        print(each.row())
    print(
        f"\nMemory: {before:.0f} MiB before, {after:.0f} MiB after {len(steady.times):,} requests"
    )
    slow = [each.what for each in pages if statistics.median(each.times) > _GOAL_MS]
    print(f"Pages slower than {_GOAL_MS:.0f} ms: {', '.join(slow) or 'none'}")
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
