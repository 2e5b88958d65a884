"""Measure response times and memory of the admin service: `python -m benchmarks.admin`.

The service runs as a process on the embedded broker, with 50 queues and 100,000 dead letters. The
pages are requested one after the other, and then the read endpoints at a constant rate. `--vhosts
50` measures a service with 50 virtual hosts on `hopback broker`, which is another process, or with
`--rabbitmq` on a private RabbitMQ. They contain 2,000 dead-letter queues and `--letters` dead
letters in total. `--write` writes the result to benchmarks/ADMIN.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

_PAGES = ("/", "/queues/q-07.dlq", "/jobs", "/topology", "/checks", "/audit", "/you")
_READS = (
    "/admin/dlq/overview", "/admin/dlq/jobs", "/admin/me",
    "/admin/topology/check", "/readyz", "/metrics",
)  # fmt: skip
_GOAL_MS = 100.0
_LINES = 16
_OVER_ALL = (
    "/",
    "/?find=q-07",
    "/jobs",
    "/audit",
    "/alerts",
    "/you",
    "/admin/brokers/queues",
    "/admin/brokers/metrics",
)
_OF_ONE = (
    "/", "/?find=q-07", "/queues/q-07.dlq", "/queues/q-07.dlq/re-drive", "/queues/q-07.dlq/discard",
    "/errors", "/search", "/jobs", "/topology", "/checks", "/audit", "/alerts",
)  # fmt: skip
_SERVICE_GOAL_MS = 300.0
_FAMILIES = 5  # the number of different errors of the dead letters
_UNCONFIRMED = 500  # the maximum number of unconfirmed publishes, which is the limit of a channel
_WATCHED_S = 20.0  # Seconds. The sweeps that run without requests are repeated several times.
_REPORT = Path(__file__).with_name("ADMIN.md")


@dataclass(frozen=True, slots=True)
class Measured:
    """The latencies of a kind of request, in milliseconds."""

    name: str
    times: tuple[float, ...]
    cpu_ms: float
    """The CPU time of the server per request, which does not depend on the load of the machine."""
    first_ms: float | None = None
    """The latency of the first request after the start, which compiles the templates."""

    def row(self) -> str:
        """Return a row of the table."""
        ordered = sorted(self.times)
        p99 = ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)]
        middle = statistics.median(ordered)
        first = "" if self.first_ms is None else f"{self.first_ms:.1f}"
        return f"| `{self.name}` | {first} | {middle:.1f} | {p99:.1f} | {self.cpu_ms:.1f} |"


async def _serve(queues: int, dead_letters: int, parent: Connection) -> None:
    from hopback.broker.declare import declare
    from hopback.broker.embedded import EmbeddedBroker
    from hopback.broker.embedded.management import EmbeddedManagement
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.http import create_app, serve
    from hopback.ops.operations import Operations
    from hopback.runtime.app import App

    app = App("bench")
    for number in range(queues):
        app.queue(f"q-{number:02}", bind={"events": f"event.{number:02}"})
    broker, declared = EmbeddedBroker(), (app.topology,)
    connection = await broker.connect("bench")
    await declare(connection, app.topology)
    await _fill(connection, queues, dead_letters)
    await connection.close()
    view = EmbeddedManagement(broker)
    async with Operations(
        ManagedBroker(broker, management=view, topologies=declared)
    ) as operations:
        asgi = create_app(operations)
        await serve(asgi, port=0, on_ready=lambda _host, port: parent.send(port))


async def _fill(connection: object, queues: int, dead_letters: int) -> None:
    from hopback.headers import Failure, failure_json
    from hopback.message import Message, Properties

    channel = await connection.open_channel()  # type: ignore[attr-defined]
    for number in range(dead_letters):
        failure = Failure("TimeoutError", "no answer", fingerprint=f"{number % 5:012x}", last=1e9)
        headers = {"hopback-failure": failure_json(failure) or "", "hopback-attempts": 4}
        properties = Properties(message_id=f"m-{number}", type="Event", headers=headers)
        queue = f"q-{number % queues:02}.dlq"
        fate = channel.publish(Message("", queue, b'{"n": %d}' % number, properties))
        if number % 500 == 0:
            await fate


def _process(queues: int, dead_letters: int, parent: Connection) -> None:
    asyncio.run(_serve(queues, dead_letters, parent))


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> float:
    """Send a request on an open connection. Returns the response time in milliseconds."""
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


async def one_by_one(port: int, pid: int, paths: Sequence[str], times: int) -> list[Measured]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    for path in paths:
        first_ms = await _ask(reader, writer, path)
        before = cpu_s(pid)
        spent = tuple([await _ask(reader, writer, path) for _ in range(times)])
        found.append(Measured(path, spent, (cpu_s(pid) - before) * 1000 / times, first_ms))
    writer.close()
    return found


async def _at_rate(port: int, pid: int, rate: float, seconds: float) -> Measured:
    """Request the read endpoints in turn at a constant rate. A slow response only delays its own
    connection.
    """
    times: list[float] = []
    begin, before = time.perf_counter(), cpu_s(pid)

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
    cpu_ms = (cpu_s(pid) - before) * 1000 / len(times)
    return Measured(f"{len(times) / spent:.0f} reads a second", tuple(times), cpu_ms)


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def _definitions(vhosts: int, queues: int) -> dict[str, object]:
    """Return definitions of virtual hosts with queues. Each queue has a dead-letter queue."""
    names = [f"vhost-{number:02}" for number in range(vhosts)]
    found = []
    for vhost in names:
        for number in range(queues):
            dead = f"q-{number:02}.dlq"
            into = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
            for name, arguments in ((f"q-{number:02}", into), (dead, {})):
                found.append(
                    {
                        "name": name, "vhost": vhost, "durable": True, "auto_delete": False,
                        "arguments": {"x-queue-type": "classic", **arguments},
                    }
                )  # fmt: skip
    return {"vhosts": [{"name": name} for name in names], "queues": found}


async def _fill_vhosts(amqp: str, vhosts: int, queues: int, dead_letters: int) -> None:
    from hopback.broker.rabbitmq import RabbitMQ
    from hopback.headers import Failure, failure_json
    from hopback.message import Message, Properties

    now = time.time()
    failures = [
        failure_json(Failure("TimeoutError", "no answer", fingerprint=f"{error:012x}", last=now))
        for error in range(_FAMILIES)
    ]
    for number in range(vhosts):
        connection = await RabbitMQ(f"{amqp}/vhost-{number:02}").connect("bench")
        channel = await connection.open_channel()
        fates = []
        for each in range(dead_letters // vhosts):
            headers = {"hopback-failure": failures[each % _FAMILIES] or "", "hopback-attempts": 4}
            properties = Properties(message_id=f"m-{each}", delivery_mode=2, headers=headers)
            queue = f"q-{each % queues:02}.dlq"
            fates.append(channel.publish(Message("", queue, b'{"n": %d}' % each, properties)))
            if len(fates) == _UNCONFIRMED:
                await asyncio.gather(*fates)
                fates.clear()
        await asyncio.gather(*fates)
        await connection.close()


@contextmanager
def _hopback_broker(definitions: Path) -> Iterator[tuple[str, str]]:
    """Run `hopback broker` and yield the URLs of AMQP and of its management API."""
    with command(
        "broker", "--port", "0", "--http", "0", "--definitions", str(definitions)
    ) as broker:
        amqp, http = (
            find_output(broker, r"amqp://\S*?:(\d+)"),
            find_output(broker, r"http://\S*?:(\d+)"),
        )
        yield f"amqp://guest:guest@127.0.0.1:{amqp}", f"http://127.0.0.1:{http}"


@contextmanager
def _rabbitmq(definitions: Path) -> Iterator[tuple[str, str]]:
    """Run a private RabbitMQ and yield the URLs of AMQP and of its management API."""
    from tests.harness.management import Management
    from tests.harness.rabbitmq import RabbitNode

    with RabbitNode() as node:
        content = json.loads(definitions.read_text())
        access = {"user": "guest", "configure": ".*", "write": ".*", "read": ".*"}
        content["permissions"] = [{**access, "vhost": each["name"]} for each in content["vhosts"]]
        Management(node.management_url, patience=600).call("POST", "/definitions", content)
        yield node.url.rstrip("/"), node.management_url.replace("guest:guest@", "")


def _several(vhosts: int, queues: int, dead_letters: int, *, rabbitmq: bool) -> list[str]:
    """Measure a service with many virtual hosts and return the lines of the table."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        definitions, config = Path(folder) / "definitions.json", Path(folder) / "hopback.toml"
        definitions.write_text(json.dumps(_definitions(vhosts, queues // vhosts)))
        start = _rabbitmq if rabbitmq else _hopback_broker
        amqp, http = stack.enter_context(start(definitions))
        asyncio.run(_fill_vhosts(amqp, vhosts, queues // vhosts, dead_letters))
        listed = ", ".join(f'"vhost-{number:02}"' for number in range(vhosts))
        address = amqp.replace("guest:guest@", "guest@") + "?password_env=BENCH"
        config.write_text(
            f'[[brokers]]\nname = "bench"\nurl = "{address}"\n'
            f'management = "{http}"\nvhosts = [{listed}]\n'
        )
        service = stack.enter_context(
            command("serve", "--config", str(config), "--http", "0", "--store", "memory")
        )
        port = int(find_output(service, r"Serving http://\S*?:(\d+)/"))
        one = f"/brokers/bench:vhost-{min(7, vhosts - 1):02}"
        early = asyncio.run(one_by_one(port, service.pid, ("/", f"{one}/"), 1))
        time.sleep(_WATCHED_S)  # until all virtual hosts have been read
        before = cpu_s(service.pid)
        time.sleep(_WATCHED_S)
        idle = (cpu_s(service.pid) - before) / _WATCHED_S
        groups = _survey(port, one)
        paths = [*_OVER_ALL, *(f"{one}{path}" for path in _OF_ONE), f"{one}/errors/{groups[0]}"]
        pages = asyncio.run(one_by_one(port, service.pid, paths, 30))
        resident = _resident(service.pid)
    slow = [
        each.name for each in (*early, *pages)
        if max(each.first_ms or 0, statistics.median(each.times)) > _SERVICE_GOAL_MS
    ]  # fmt: skip
    server = "a private RabbitMQ" if rabbitmq else "`hopback broker` in another process"
    return [
        f"{vhosts} virtual hosts, {queues:,} dead-letter queues, {2 * queues:,} queues in all,"
        f" {dead_letters:,} dead letters, {server}, read by AMQP and the management API. Load average"
        f" {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores.\n",
        "Right after the start of the service:\n",
        _HEAD,
        *(each.row() for each in early),
        "\nLater, after a survey of one virtual host:\n",
        _HEAD,
        *(each.row() for each in pages),
        f"\nWithout requests, the service reads every virtual host each 5 s: {idle:.2f} of a core."
        f" Memory: {resident:.0f} MiB.",
        f"Pages slower than {_SERVICE_GOAL_MS:.0f} ms: {', '.join(slow) or 'none'}",
    ]


def _survey(port: int, broker: str) -> list[str]:
    """Survey the queues of a virtual host. Returns the fingerprints of the errors."""
    import httpx

    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=600) as client:
        client.post(f"{broker}/admin/dlq/errors/survey").raise_for_status()
        found = client.get(f"{broker}/admin/dlq/errors").raise_for_status().json()
    return [each["fingerprint"] for each in found["items"]]


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Hopback command as a process. Its output can be read with `find_output`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hopback", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "BENCH": "guest", "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        process.terminate()
        # this reads the remaining output; otherwise the process may block and not exit
        process.communicate()


def find_output(process: subprocess.Popen[str], pattern: str) -> str:
    """Return the first group of the first line that matches. All lines are kept for later calls."""
    lines: list[str] = process.__dict__.setdefault("said", [])
    while True:
        for line in lines:
            if found := re.search(pattern, line):
                return found[1]
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise RuntimeError(f"{process.args}: {''.join(lines)}")
        lines.append(line)


_HEAD = "| | first ms | median ms | 99 % ms | server CPU ms |\n|---|---|---|---|---|"


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admin", description=__doc__)
    parser.add_argument("--queues", type=int, default=None)
    parser.add_argument("--letters", dest="dead_letters", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--vhosts", type=int, default=0)
    parser.add_argument("--rabbitmq", action="store_true", help="with --vhosts: on RabbitMQ")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.vhosts:
        lines = _several(
            options.vhosts, options.queues or 2000, options.dead_letters, rabbitmq=options.rabbitmq
        )
    else:
        lines = _one_broker(
            options.queues or 50, options.dead_letters, options.rate, options.seconds
        )
    print("\n".join(lines))
    if options.write:
        title = f"{options.vhosts} virtual hosts" if options.vhosts else "One broker"
        title += ", RabbitMQ" if options.rabbitmq else ""
        write_section(title, lines)
    return 0 if lines[-1].endswith(": none") else 1


def write_section(title: str, lines: list[str]) -> None:
    """Write a section of the report. It replaces the section with the same title."""
    text = _REPORT.read_text() if _REPORT.exists() else "# The admin service\n"
    parts = re.split(r"(?m)^## ", text)
    kept = [part for part in parts[1:] if not part.startswith(f"{title}\n")]
    own = f"{title}\n\n" + "\n".join(lines) + "\n"
    introduction = (
        "Written by `python -m benchmarks.admin --write`, with and without `--vhosts 50`, and by\n"
        "`python -m benchmarks.admin_scale --write` and `python -m benchmarks.admin_commands --write`. CPU\n"
        "is the time that the service or command itself used. Other times depend on the load of the machine."
    )
    _REPORT.write_text(
        f"# The admin service\n\n{introduction}\n\n"
        + "\n".join(f"## {part.rstrip()}\n" for part in sorted([*kept, own]))
    )


def _one_broker(queues: int, dead_letters: int, rate: float, seconds: float) -> list[str]:
    """Measure a service with one broker and return the lines of the table."""
    local, remote = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=_process, args=(queues, dead_letters, remote), daemon=True)
    server.start()
    port = local.recv()
    try:
        pid = server.pid or 0
        pages = asyncio.run(one_by_one(port, pid, _PAGES, 30))
        before = _resident(pid)
        steady = asyncio.run(_at_rate(port, pid, rate, seconds))
        after = _resident(pid)
    finally:
        server.terminate()
        server.join()
    slow = [each.name for each in pages if statistics.median(each.times) > _GOAL_MS]
    return [
        f"{queues} queues, {dead_letters:,} dead letters, embedded broker\n",
        _HEAD,
        *(each.row() for each in (*pages, steady)),
        f"\nMemory: {before:.0f} MiB before, {after:.0f} MiB after {len(steady.times):,} requests",
        f"Pages slower than {_GOAL_MS:.0f} ms: {', '.join(slow) or 'none'}",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
