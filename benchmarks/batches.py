"""`python -m benchmarks.batches`: batches into PostgreSQL, and how consumers scale over processes.

One private RabbitMQ and one private PostgreSQL. Rows of users (id, name, e-mail), 1000 a batch:
what a plain loop reaches without a broker (multi-row INSERT, COPY), what a Hopback batch handler
reaches from a queue by either, and what one insert per message reaches. Then the application row of the main
benchmark in 1, 2 and 4 processes side by side. Interleaved, medians, written to RESULTS.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
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
    """A row."""

    id: str
    name: str
    email: str


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
    """One statement for all rows."""
    marks = ",".join(["(%s,%s,%s)"] * len(rows))
    return INSERT.format(marks), [value for row in rows for value in (row.id, row.name, row.email)]


def plain_insert(url: str, rows: list[User]) -> float:
    with fresh(url) as database:
        began = time.perf_counter()
        for start in range(0, len(rows), BATCH):
            database.execute(*many(rows[start : start + BATCH]))  # type: ignore[arg-type, unused-ignore]
            database.commit()
        return len(rows) / (time.perf_counter() - began)


def plain_copy(url: str, rows: list[User]) -> float:
    with fresh(url) as database:
        began = time.perf_counter()
        for start in range(0, len(rows), BATCH):
            with database.cursor().copy("COPY users (id, name, email) FROM STDIN") as copy:
                for row in rows[start : start + BATCH]:
                    copy.write_row((row.id, row.name, row.email))
            database.commit()
        return len(rows) / (time.perf_counter() - began)


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


async def serve(broker: RabbitMQ, app: App, finished: asyncio.Event) -> float:
    service = Service(app, broker)
    began = time.perf_counter()
    running = asyncio.create_task(service.run())
    await finished.wait()
    took = time.perf_counter() - began
    await asyncio.sleep(0.3)
    service.stop()
    await running
    return took


async def batched(broker: RabbitMQ, url: str, rows: list[User]) -> float:
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
    took = await serve(broker, app, finished)
    for database in databases:
        await database.close()
    return len(rows) / took


async def copied(broker: RabbitMQ, url: str, rows: list[User]) -> float:
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
    took = await serve(broker, app, finished)
    for database in databases:
        await database.close()
    return len(rows) / took


async def one_by_one(broker: RabbitMQ, url: str, rows: list[User]) -> float:
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
    took = await serve(broker, app, finished)
    for database in databases:
        await database.close()
    return len(rows) / took


def verified(url: str, rows: list[User], measure: Callable[[], float]) -> float:
    """A rate counts only if every row is there."""
    rate = measure()
    with psycopg.connect(url) as database:
        found = database.execute("SELECT count(*) FROM users").fetchone()
    if found is None or found[0] != len(rows):
        raise SystemExit(f"expected {len(rows)} rows, found {found}")
    return rate


def scaled(node: RabbitNode, processes: int, count: int) -> float:
    """The rate of several consuming processes on one queue, from the word go to an empty queue."""
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
    asyncio.run(_until_empty(RabbitMQ(node.url)))
    took = time.perf_counter() - began
    for one in running:
        one.terminate()
        one.wait(10)
    return count / took


async def _until_empty(broker: RabbitMQ) -> None:
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
    """Consume forever, once told to begin."""
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
) -> dict[str, list[float]]:
    broker, url = RabbitMQ(node.url), database.url()
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        rows, few = users(size), users(max(BATCH, size // 10))
        todo: dict[str, tuple[list[User], Callable[[], float]]] = {
            "plain multi-row INSERT, no broker": (rows, lambda rows=rows: plain_insert(url, rows)),
            "plain COPY, no broker": (rows, lambda rows=rows: plain_copy(url, rows)),
            "Hopback batch handler": (
                rows,
                lambda rows=rows: asyncio.run(batched(broker, url, rows)),
            ),
            "Hopback batch handler with COPY": (
                rows,
                lambda rows=rows: asyncio.run(copied(broker, url, rows)),
            ),
            "one INSERT per message, ten at once": (
                few,
                lambda few=few: asyncio.run(one_by_one(broker, url, few)),
            ),
        }
        for name, (wanted, run) in todo.items():
            found.setdefault(name, []).append(verified(url, wanted, run))
        for processes in (1, 2, 4):
            name = f"{processes} process{'es' if processes > 1 else ''}"
            found.setdefault(name, []).append(scaled(node, processes, size))
    return found


def table(found: dict[str, list[float]], stamp: Stamp) -> Table:
    """Medians, spread, and the goals."""
    median = {name: statistics.median(rates) for name, rates in found.items()}
    ours, insert = median["Hopback batch handler"], median["plain multi-row INSERT, no broker"]
    by_copy, plain = median["Hopback batch handler with COPY"], median["plain COPY, no broker"]
    single = median["one INSERT per message, ten at once"]
    databases = [
        f"{len(next(iter(found.values())))} interleaved rounds, {BATCH} rows a batch.",
        "",
        "| | rows or messages a second | spread |",
        "|---|---|---|",
        *(
            f"| {name} | {median[name]:,.0f} | {min(rates):,.0f}–{max(rates):,.0f} |"
            for name, rates in found.items()
        ),
        "",
        f"With COPY the batch handler has {by_copy / insert:.2f} of the plain multi-row INSERT and"
        f" {by_copy / plain:.2f} of plain COPY, which cannot leave alone what is there already. The"
        " broker and the processes share the cores of this machine.",
        "",
    ]
    goals = (
        _times("batches into PostgreSQL", ours / insert, 0.7, "the plain multi-row INSERT"),
        _times("batches beside single inserts", ours / single, 10, "one INSERT per message"),
    )
    title = "Batches into PostgreSQL, and several processes"
    return Table("batches", title, stamp, "\n".join(databases), goals)


def _times(what: str, found: float, wanted: float, against: str) -> TableGoal:
    return TableGoal(what, f"≥ {wanted:g} × {against}", f"{found:.2f} ×", found >= wanted)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batches")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--quick", action="store_true", help="one small round; prints only")
    parser.add_argument("--worker", metavar="URL", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        asyncio.run(worker(chosen.worker))
        return
    database = PostgresNode()
    with RabbitNode() as node:
        database.start()
        rounds, rows = (1, 5000) if chosen.quick else (chosen.rounds, chosen.rows)
        broker = str(node.management.call("GET", "/overview")["rabbitmq_version"])
        found = measure(node, database, rounds, rows)
    database.remove()
    made = table(found, stamp_now(broker, os.getloadavg()[0]))
    print(made.text, *made.goals, sep="\n")
    if not chosen.quick:
        keep_table(made)


if __name__ == "__main__":
    main()
