"""Measure the cost of a rolling restart while 10,000 messages wait: `python -m
benchmarks.restarts`.

Three consumers (`hopback run`, prefetch 40, ten handlers of 20 ms each) consume a quorum queue of a
private RabbitMQ. They run without disturbance, are replaced in turn by SIGTERM as in a deployment,
are replaced by `kill -9`, or the broker is restarted once. Messages that are redelivered after a
crash are handled alone until it is known that they have not caused it. The result shows how long
this takes. The runs are interleaved, and the medians are written to RESTARTS.md.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pika  # type: ignore[import-untyped]
from tests.harness.rabbitmq import RabbitNode

from benchmarks.environment import ROOT

MESSAGES = 10_000
QUEUE = "bench.restarts"
BYTES = 1024
BETWEEN_S = 1.0
"""Seconds between two replacements. A deployment also waits for a new process."""
TIMEOUT_S = 300.0

APP = f"""
import asyncio, os
from hopback import App

app = App("restarts")
done = open(os.environ["DONE"], "ab", buffering=0)

@app.handler("{QUEUE}", retry=["1s"], attempts=3, concurrency=10, prefetch=40)
async def work(body: bytes) -> None:
    await asyncio.sleep(0.02)
    done.write(b"x")
"""


class Consumers:
    """Three processes of the application. For each handled message, they write a byte to a file."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder, self._made = url, folder, 0
        (folder / "restarts.py").write_text(APP)
        self.children = [self._start() for _ in range(3)]

    def _start(self) -> subprocess.Popen[bytes]:
        self._made += 1
        return subprocess.Popen(
            [sys.executable, "-m", "hopback", "run", "restarts:app", "--log-level", "error"],
            cwd=self._folder,
            env={
                **os.environ,
                "HOPBACK_BROKER": self._url,
                "DONE": str(self._folder / f"done-{self._made}"),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def replace(self, by: signal.Signals) -> None:
        """Stop all processes in turn. A new process is started at the same time."""
        for at, child in enumerate(self.children):
            child.send_signal(by)
            self.children[at] = self._start()
            time.sleep(BETWEEN_S)
            child.wait()

    def done(self) -> int:
        return sum(path.stat().st_size for path in self._folder.glob("done-*"))

    def stop(self) -> None:
        for child in self.children:
            child.terminate()
        for child in self.children:
            child.wait()


def ready(url: str, queue: str) -> int:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)
    finally:
        connection.close()


def measure(node: RabbitNode, vhost: str, way: str) -> tuple[float, float, int]:
    """Return the seconds from the first to the last message, the messages per second after the
    restarts, and the number of dead letters.
    """
    url = node.vhost_url(vhost)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        subprocess.run(
            [sys.executable, "-c", APP.replace('os.environ["DONE"]', "os.devnull") + FILL],
            env={**os.environ, "URL": url},
            check=True,
        )
        consumers = Consumers(url, folder)
        try:
            began = _until(consumers, 300)
            match way:
                case "SIGTERM":
                    consumers.replace(signal.SIGTERM)
                case "kill -9":
                    consumers.replace(signal.SIGKILL)
                case "broker":
                    node.restart()
            disturbed, left = time.perf_counter(), MESSAGES - consumers.done()
            ended = _until(consumers, MESSAGES)
            _until_empty(url)
        finally:
            consumers.stop()
        rate = left / (ended - disturbed) if left > 0 else 0.0
        return ended - began, rate, ready(url, f"{QUEUE}.dlq")


FILL = f"""
from hopback import Message, RabbitMQ
from hopback.runtime import Properties
from hopback.broker.declare import declare

async def main() -> None:
    connection = await RabbitMQ(os.environ["URL"]).connect()
    await declare(connection, app.topology)
    channel = await connection.open_channel()
    confirmed = []
    for _ in range({MESSAGES}):
        await channel.room()
        message = Message("", "{QUEUE}", b"x" * {BYTES}, Properties(delivery_mode=2))
        confirmed.append(channel.publish(message))
    await asyncio.gather(*confirmed)
    await connection.close()

asyncio.run(main())
"""


def _until(consumers: Consumers, count: int) -> float:
    deadline = time.perf_counter() + TIMEOUT_S
    while consumers.done() < count:
        if time.perf_counter() > deadline:
            raise TimeoutError(f"{consumers.done():,} of {count:,} done in {TIMEOUT_S:g} s")
        time.sleep(0.02)
    return time.perf_counter()


def _until_empty(url: str) -> None:
    deadline = time.perf_counter() + TIMEOUT_S
    while ready(url, QUEUE) and time.perf_counter() < deadline:
        time.sleep(0.2)


WAYS = {
    "undisturbed": "undisturbed",
    "SIGTERM": "each process replaced by SIGTERM",
    "kill -9": "each process replaced by kill -9",
    "broker": "the broker restarted",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float, int]]] = {way: [] for way in WAYS}
    with RabbitNode() as node:
        version = str(node.management.call("GET", "/overview")["rabbitmq_version"])
        for number in range(options.rounds):
            for way in WAYS:
                found[way].append(measure(node, f"r{number}-{way.replace(' ', '')}", way))
                sys.stdout.write(f"round {number + 1}, {way}: {found[way][-1]}\n")
    lines = [
        f"| {text} | {_median(found[way], 0):.1f} | {_median(found[way], 1):,.0f} |"
        f" {sum(one[2] for one in found[way])} |"
        for way, text in WAYS.items()
    ]
    page = PAGE.format(rounds=options.rounds, version=version, rows="\n".join(lines))
    (ROOT / "benchmarks" / "RESTARTS.md").write_text(page)


def _median(rows: list[tuple[float, float, int]], at: int) -> float:
    return statistics.median(row[at] for row in rows)


PAGE = """# The cost of a rolling restart

Written by `python -m benchmarks.restarts`: 10,000 messages of 1 KiB wait in a quorum queue of RabbitMQ
{version}, consumed by three processes (`hopback run`, prefetch 40, ten concurrent handlers of 20 ms).
Medians of {rounds} interleaved rounds on two cores.

| disturbance | seconds until all messages are handled | messages a second afterwards | parked |
|---|---|---|---|
{rows}

A message that was returned up to three times is handled as usual. From the fourth return on it is handled
alone. A restart therefore costs little more than the start of processes.
"""


if __name__ == "__main__":
    main()
