"""Measure batches into PostgreSQL, and consumers in several processes: `python -m
benchmarks.batches`.

A private RabbitMQ and a private PostgreSQL are used. The rows are users with id, name and e-mail,
1000 per batch. Three things are measured: a loop without a broker (multi-row INSERT or COPY), a
batch handler of Hopback that consumes a queue with both, and one insert per message. For each, the
CPU time per row of the process, the broker and PostgreSQL is measured. Then the application of the
main benchmark runs in 1, 2 and 4 processes. The runs are interleaved, and the medians are written
to RESULTS.md.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from tests.harness.postgres import PostgresNode
from tests.harness.rabbitmq import RabbitNode

from benchmarks.environment import ROOT
from benchmarks.measured_sections import Table, TableGoal, stamp_now
from benchmarks.report import keep_table
from hopback.broker.declare import declare
from hopback.broker.rabbitmq import RabbitMQ
from hopback.message import Message, Properties
from hopback.runtime.app import App
from hopback.runtime.service import Service
from hopback.store.rows import copy_rows
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.measured_sections import Stamp

BATCH = 1000
QUEUE = "bench.users"
INSERT = "INSERT INTO users (id, name, email) VALUES {} ON CONFLICT (id) DO NOTHING"


@dataclass
class User:
    id: str
    name: str
    email: str


@dataclass(frozen=True, slots=True)
class RunCost:
    """The result of a run: rows per second, and microseconds of CPU time per row for each process.
    `cpu_us` is empty if it was not measured.
    """

    rate: float
    cpu_us: tuple[float, ...] = ()


class Meter:
    """Measures the time and the CPU time of this process, of the broker, and of PostgreSQL with all
    its backends.
    """

    def __init__(self, broker: int, url: str) -> None:
        self._broker = broker
        with psycopg.connect(url) as database:
            # Backends are child processes of the postmaster.
            self._postmaster = int(_stat(database.info.backend_pid)[1])

    def now(self) -> tuple[float, ...]:
        """Return the current time and the CPU time of each process, in seconds."""
        backends = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()]
        spent = 0.0
        for pid in backends:
            try:
                found = _stat(pid)
            except OSError:
                continue  # it has just ended, so the postmaster includes its CPU time
            if pid == self._postmaster:
                spent += _seconds(found, 11, 12, 13, 14)
            elif int(found[1]) == self._postmaster:
                spent += _seconds(found, 11, 12)
        broker = _seconds(_stat(self._broker), 11, 12)
        return time.perf_counter(), time.process_time(), broker, spent

    def cost_since(self, before: tuple[float, ...], rows: int) -> RunCost:
        """Return the cost per row since an earlier time."""
        took, *spent = (now - then for now, then in zip(self.now(), before, strict=True))
        return RunCost(rows / took, tuple(each / rows * 1e6 for each in spent))


def _stat(pid: int) -> list[str]:
    """Return the fields after the process name. The name may contain any character."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _seconds(found: list[str], *places: int) -> float:
    return sum(int(found[place]) for place in places) / os.sysconf("SC_CLK_TCK")


def users(count: int) -> list[User]:
    return [User(str(uuid.uuid4()), f"user {n}", f"user{n}@example.org") for n in range(count)]


def fresh(url: str) -> psycopg.Connection[Any]:
    database = psycopg.connect(url)
    database.execute("DROP TABLE IF EXISTS users")
    database.execute(
        "CREATE TABLE users (id uuid PRIMARY KEY, name text NOT NULL, email text NOT NULL)"
    )
    database.commit()
    return database


def many(rows: list[User]) -> tuple[str, list[str]]:
    """Return an INSERT statement with all rows."""
    marks = ",".join(["(%s,%s,%s)"] * len(rows))
    return INSERT.format(marks), [value for row in rows for value in (row.id, row.name, row.email)]


def plain_insert(meter: Meter, url: str, rows: list[User]) -> RunCost:
    with fresh(url) as database:
        began = meter.now()
        for start in range(0, len(rows), BATCH):
            database.execute(*many(rows[start : start + BATCH]))  # type: ignore[arg-type, unused-ignore]
            database.commit()
        return meter.cost_since(began, len(rows))


def plain_copy(meter: Meter, url: str, rows: list[User]) -> RunCost:
    with fresh(url) as database:
        began = meter.now()
        for start in range(0, len(rows), BATCH):
            with database.cursor().copy("COPY users (id, name, email) FROM STDIN") as copy:
                for row in rows[start : start + BATCH]:
                    copy.write_row((row.id, row.name, row.email))
            database.commit()
        return meter.cost_since(began, len(rows))


async def fill(broker: RabbitMQ, app: App, rows: list[User]) -> None:
    connection = await broker.connect()
    await declare(connection, app.topology)
    channel = await connection.open_channel()
    await channel.purge_queue(QUEUE)
    fates = []
    for row in rows:
        body = json.dumps(row.__dict__).encode()
        await channel.room()
        fates.append(channel.publish(Message("", QUEUE, body, Properties(delivery_mode=2))))
    await asyncio.gather(*fates)
    await connection.close()


async def serve(
    meter: Meter, broker: RabbitMQ, app: App, finished: asyncio.Event, rows: int
) -> RunCost:
    service = Service(app, broker)
    # As in the loops without a broker, the connection is opened before the measurement.
    (consumer,) = service.consumers
    consumer.pause("until the watch runs")
    running = asyncio.create_task(service.run())
    await service.ready.wait()
    before = gc.get_threshold()
    # the command does the same; the loops without a broker use Python's default
    gc.set_threshold(50_000)
    began = meter.now()
    consumer.resume("the watch runs")
    await finished.wait()
    cost_since = meter.cost_since(began, rows)
    gc.set_threshold(*before)
    await asyncio.sleep(0.3)
    service.stop()
    await running
    return cost_since


async def insert_batches(meter: Meter, broker: RabbitMQ, url: str, rows: list[User]) -> RunCost:
    app, done, finished = App("bench"), 0, asyncio.Event()
    databases = [await psycopg.AsyncConnection.connect(url) for _ in range(2)]

    @app.batch(QUEUE, size=BATCH, wait="1s", batchers=2, retry=["10s"])
    async def insert(payloads: list[User]) -> None:
        nonlocal done
        database = databases.pop()
        await database.execute(*many(payloads))  # type: ignore[arg-type, unused-ignore]
        await database.commit()
        databases.append(database)
        done += len(payloads)
        if done >= len(rows):
            finished.set()

    fresh(url).close()
    await fill(broker, app, rows)
    cost_since = await serve(meter, broker, app, finished, len(rows))
    for database in databases:
        await database.close()
    return cost_since


async def copy_batches(meter: Meter, broker: RabbitMQ, url: str, rows: list[User]) -> RunCost:
    app, done, finished = App("bench"), 0, asyncio.Event()
    databases = [await psycopg.AsyncConnection.connect(url) for _ in range(2)]

    @app.batch(QUEUE, size=BATCH, wait="1s", batchers=2, retry=["10s"])
    async def insert(payloads: list[User]) -> None:
        nonlocal done
        database = databases.pop()
        made = [(user.id, user.name, user.email) for user in payloads]
        await copy_rows(database, "users", ("id", "name", "email"), made)
        await database.commit()
        databases.append(database)
        done += len(payloads)
        if done >= len(rows):
            finished.set()

    fresh(url).close()
    await fill(broker, app, rows)
    cost_since = await serve(meter, broker, app, finished, len(rows))
    for database in databases:
        await database.close()
    return cost_since


async def one_by_one(meter: Meter, broker: RabbitMQ, url: str, rows: list[User]) -> RunCost:
    app, done, finished = App("bench"), 0, asyncio.Event()
    databases = [await psycopg.AsyncConnection.connect(url) for _ in range(10)]

    @app.handler(QUEUE, concurrency=10, retry=["10s"])
    async def insert(row: User) -> None:
        nonlocal done
        database = databases.pop()
        await database.execute(*many([row]))  # type: ignore[arg-type, unused-ignore]
        await database.commit()
        databases.append(database)
        done += 1
        if done >= len(rows):
            finished.set()

    fresh(url).close()
    await fill(broker, app, rows)
    cost_since = await serve(meter, broker, app, finished, len(rows))
    for database in databases:
        await database.close()
    return cost_since


def verify(url: str, rows: list[User], measure: Callable[[], RunCost]) -> RunCost:
    """Run a measurement and check that all rows exist."""
    cost_since = measure()
    with psycopg.connect(url) as database:
        found = database.execute("SELECT count(*) FROM users").fetchone()
    if found is None or found[0] != len(rows):
        raise SystemExit(f"expected {len(rows)} rows, found {found}")
    return cost_since


def scale(node: RabbitNode, processes: int, count: int) -> float:
    """Return the rate at which several processes empty a queue, in messages per second."""
    app = App("bench")
    app.queue("bench.scale", retry=["10s"])
    asyncio.run(_fill_scale(RabbitMQ(node.url), app, count))
    command = [sys.executable, "-m", "benchmarks.batches", "--worker", node.url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, cwd=ROOT, **pipes) for _ in range(processes)]  # type: ignore[call-overload]
    for one in running:
        one.stdout.readline()
    began = time.perf_counter()
    for one in running:
        one.stdin.write("go\n")
        one.stdin.flush()
    asyncio.run(_wait_until_empty(RabbitMQ(node.url)))
    took = time.perf_counter() - began
    for one in running:
        one.terminate()
        one.wait(10)
    return count / took


async def _wait_until_empty(broker: RabbitMQ) -> None:
    connection = await broker.connect()
    channel = await connection.open_channel()
    queue = Queue("bench.scale")
    while (await channel.declare_queue(queue, passive=True)).messages:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await connection.close()


async def _fill_scale(broker: RabbitMQ, app: App, count: int) -> None:
    connection = await broker.connect()
    await declare(connection, app.topology)
    channel = await connection.open_channel()
    await channel.purge_queue("bench.scale")
    body = json.dumps({"id": 1, "text": "a" * 1000}).encode()
    fates = []
    for _ in range(count):
        await channel.room()
        fates.append(channel.publish(Message("", "bench.scale", body, Properties(delivery_mode=2))))
    await asyncio.gather(*fates)
    await connection.close()


async def worker(url: str) -> None:
    """Wait for a line on stdin and then consume until the process is terminated."""
    app = App("bench")

    @app.handler("bench.scale", concurrency=100, retry=["10s"])
    async def handle(payload: dict) -> None:  # type: ignore[type-arg]
        pass

    service = Service(app, RabbitMQ(url))
    print("ready", flush=True)
    sys.stdin.readline()
    await service.run()


def measure(
    node: RabbitNode, database: PostgresNode, rounds: int, size: int
) -> dict[str, list[RunCost]]:
    broker, url = RabbitMQ(node.url), database.url()
    meter = Meter(node.pid, url)
    found: dict[str, list[RunCost]] = {}
    for _ in range(rounds):
        rows, few = users(size), users(max(BATCH, size // 10))
        todo: dict[str, tuple[list[User], Callable[[], RunCost]]] = {
            "plain multi-row INSERT, no broker": (
                rows,
                lambda rows=rows: plain_insert(meter, url, rows),
            ),
            "plain COPY, no broker": (rows, lambda rows=rows: plain_copy(meter, url, rows)),
            "Hopback batch handler": (
                rows,
                lambda rows=rows: asyncio.run(insert_batches(meter, broker, url, rows)),
            ),
            "Hopback batch handler with COPY": (
                rows,
                lambda rows=rows: asyncio.run(copy_batches(meter, broker, url, rows)),
            ),
            "one INSERT per message, ten at once": (
                few,
                lambda few=few: asyncio.run(one_by_one(meter, broker, url, few)),
            ),
        }
        for name, (wanted, run) in todo.items():
            found.setdefault(name, []).append(verify(url, wanted, run))
        for processes in (1, 2, 4):
            name = f"{processes} process{'es' if processes > 1 else ''}"
            found.setdefault(name, []).append(RunCost(scale(node, processes, size)))
    return found


def table(found: dict[str, list[RunCost]], stamp: Stamp) -> Table:
    """Return the table with medians, spreads and goals."""
    rates = {name: [cost_since.rate for cost_since in runs] for name, runs in found.items()}
    median = {name: statistics.median(each) for name, each in rates.items()}
    ours, insert = median["Hopback batch handler"], median["plain multi-row INSERT, no broker"]
    by_copy, plain = median["Hopback batch handler with COPY"], median["plain COPY, no broker"]
    single = median["one INSERT per message, ten at once"]
    lines = [
        f"{len(next(iter(found.values())))} interleaved rounds, {BATCH} rows a batch.",
        "",
        "| | rows or messages a second | spread | CPU µs a row: process | broker | PostgreSQL |",
        "|---|---|---|---|---|---|",
        *(
            f"| {name} | {median[name]:,.0f} | {min(rates[name]):,.0f}–{max(rates[name]):,.0f}"
            f" | {' | '.join(_medians(runs))} |"
            for name, runs in found.items()
        ),
        "",
        f"With COPY the batch handler has {by_copy / insert:.2f} of the plain multi-row INSERT and"
        f" {by_copy / plain:.2f} of plain COPY, which cannot skip existing rows. The broker and the"
        " processes share the cores of this machine.",
        "",
    ]
    goals = (
        _times("batches into PostgreSQL", ours / insert, 0.7, "the plain multi-row INSERT"),
        _times("batches beside single inserts", ours / single, 10, "one INSERT per message"),
    )
    title = "Batches into PostgreSQL, and several processes"
    return Table("batches", title, stamp, "\n".join(lines), goals)


def _medians(runs: list[RunCost]) -> list[str]:
    """Return the CPU times, or empty cells if they were not measured."""
    if not runs[0].cpu_us:
        return [""] * 3
    columns = zip(*(cost_since.cpu_us for cost_since in runs), strict=True)
    return [f"{statistics.median(column):.1f}" for column in columns]


def _times(name: str, found: float, wanted: float, against: str) -> TableGoal:
    return TableGoal(name, f"≥ {wanted:g} × {against}", f"{found:.2f} ×", found >= wanted)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batches")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--quick", action="store_true", help="one small round; prints only")
    parser.add_argument("--worker", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        asyncio.run(worker(options.worker))
        return
    database = PostgresNode()
    with RabbitNode() as node:
        database.start()
        rounds, rows = (1, 5000) if options.quick else (options.rounds, options.rows)
        broker = str(node.management.call("GET", "/overview")["rabbitmq_version"])
        found = measure(node, database, rounds, rows)
    database.remove()
    result = table(found, stamp_now(broker, os.getloadavg()[0]))
    print(result.text, *result.goals, sep="\n")
    if not options.quick:
        keep_table(result)


if __name__ == "__main__":
    main()
