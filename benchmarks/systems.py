"""Measure the five systems under load, on RabbitMQ and PostgreSQL: `python -m benchmarks.systems`.

Each part is a process, as in the compose files. Each system receives `--rate` messages per second
through its web part. A tenth of the messages fails. Some of them fail permanently, and some fail
until they are parked. At the end, each message that was accepted must be found by its ID, either as
a row or as a dead letter.

A run measures a group of systems on a broker in one form and writes its results to SYSTEMS.md at
the end. The results of other systems, brokers and forms are kept. `make bench-systems` runs all
groups and continues after an interruption.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psycopg
from tests.harness.installation import HOST
from tests.harness.postgres import PostgresNode
from tests.harness.rabbitmq import RabbitNode
from tests.harness.versions import build

from hopback.broker.port import count_now
from hopback.broker.rabbitmq import RabbitMQ
from hopback.systems import load_system

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

PAGE = Path(__file__).with_name("SYSTEMS.md")
RESULTS = Path(__file__).with_name("systems.json")
MESSAGES = {"ratatoskr": 1, "freeflow": 1, "raffle": 1, "event-bus": 2, "file-pipeline": 5}
"""The number of messages per request. Two services receive an event of the bus, and five stages
handle a file.
"""
SHORTENED = {
    "RETRY_TTL_MS": "2000",
    "FREEFLOW_TIERS": "1s,2s,4s",
    "RATATOSKR_RETRY_DELAY_MS": "2000",
}
"""Shorter delays. With FreeFlow's own delays, the last message would be parked after half an hour.
"""
_ACCEPT = ("--accept", "delivery-limit-feeds-retry", "--accept", "looking-deletes")
GROUPS = ("ratatoskr", "freeflow", "raffle,event-bus", "file-pipeline")
"""The systems of each run. With more of them, two cores cannot handle 200 messages per second for
each.
"""
_AT_ONCE = 100
"""The maximum number of requests in flight for a system. When it is reached, the producer waits,
and the page shows the lower rate.
"""
_DRAIN_S = 300.0
"""Seconds to wait for the remaining messages. Ten retries of the event bus take 50 s, and more on a
busy machine.
"""
_FOLLOWED = 50
"""For one of this number of requests, the time until its effect is measured. It is a multiple of
ten, because every tenth request fails.
"""
_BAD_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass
class Outcome:
    """The results of a system in a run."""

    accepted: set[str] = field(default_factory=set)
    """The IDs that the web part has accepted."""
    refused: int = 0
    seconds: float = 0.0
    accept_ms: list[float] = field(default_factory=list)
    effect_ms: list[float] = field(default_factory=list)
    found: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    retries: int = 0
    memory_mb: dict[str, float] = field(default_factory=dict)


class Parts:
    """The processes of a system."""

    def __init__(self, name: str, settings: dict[str, str], folder: Path) -> None:
        self.name = name
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.metrics: list[str] = []
        self.ports: dict[str, int] = {}
        self.received_ids: dict[str, set[str]] = {service: set() for service in _BUS_SERVICES}
        folder.mkdir(parents=True, exist_ok=True)
        for part in load_system(name).parts:
            label = part.target.rpartition(":")[2].removeprefix("create_")
            label = part.target.split(".")[-1].split(":")[0] if label == "app" else label
            if label != "dead_letters":
                self.ports[label] = _free_port()
        if "sample" in self.ports:
            settings = {**settings, "RECEIVER_URL": f"http://127.0.0.1:{self.ports['sample']}"}
        for part in load_system(name).parts:
            label = part.target.rpartition(":")[2].removeprefix("create_")
            label = part.target.split(".")[-1].split(":")[0] if label == "app" else label
            if label == "dead_letters":
                continue  # the dead-letter consumer is not started by default
            port = str(self.ports[label])
            words = [*part.command.split(), "--port", port, "--no-access-log"]
            if not part.is_web:
                words = ["hopback", "run", part.target, "--http", port, "--log-level", "error"]
                words += _ACCEPT if name == "ratatoskr" else ()
                self.metrics.append(f"http://127.0.0.1:{port}/metrics")
            with (folder / f"{label}.log").open("wb") as log:
                self.processes[label] = subprocess.Popen(
                    [sys.executable, "-m", *words],
                    env={**os.environ, **settings},
                    cwd=folder,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        web = "gateway" if "gateway" in self.ports else "web"
        self.url = f"http://127.0.0.1:{self.ports[web]}"

    async def ready(self) -> None:
        """Wait until all parts listen and all consumers consume."""
        for label, port in self.ports.items():
            path = "/" if f"http://127.0.0.1:{port}/metrics" not in self.metrics else "/readyz"
            async with asyncio.timeout(300), httpx.AsyncClient(trust_env=False) as client:
                while True:
                    if self.processes[label].poll() is not None:
                        raise RuntimeError(f"{self.name} {label} has ended")
                    try:
                        answer = await client.get(f"http://127.0.0.1:{port}{path}")
                        if path == "/" or answer.status_code == 200:
                            break
                    except httpx.TransportError:
                        pass
                    await asyncio.sleep(0.2)

    def memory(self) -> dict[str, float]:
        """Return the maximum memory of each part in MB."""
        found = {}
        for label, process in self.processes.items():
            status = Path(f"/proc/{process.pid}/status").read_text()
            found[label] = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]
        return found

    async def count_deliveries(self) -> dict[tuple[str, str], int]:
        """Return the number of deliveries of all consumers by queue and outcome."""
        runs: dict[tuple[str, str], int] = {}
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            for url in self.metrics:
                text = (await client.get(url)).text
                for labels, value in re.findall(
                    r"^hopback_deliveries_total\{(.*)\} (\S+)$", text, re.MULTILINE
                ):
                    fields_ = dict(re.findall(r'(\w+)="([^"]*)"', labels))
                    key = (fields_["queue"], fields_["outcome"])
                    runs[key] = runs.get(key, 0) + int(float(value))
        return runs

    def end(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


# --- requests and their effects ------------------------------------------------------------------------


def _request(name: str, number: int) -> tuple[str, dict[str, Any], str]:
    """Return the path, the arguments and the URL of the effect.

    Every tenth request fails. These fail alternately permanently and temporarily.
    """
    bad, sort = number % 10 == 9, number // 10 % 2
    key = uuid.uuid4().hex
    match name:
        case "raffle":
            email = "taken@example.org" if bad else f"{key}@example.org"
            return "/api/v1/users", {"json": {"name": "Load", "email": email}}, "/api/v1/users/{id}"
        case "ratatoskr":
            order = {"type": "order.placed", "order": key, "sku": "acorn", "quantity": 1}
            if bad:
                early = {"type": "payment.received", "order": key, "cents": 5}
                order = order | {"sku": "coconut"} if sort else early
            return "/events", {"json": order}, f"/orders/{key}"
        case "freeflow":
            if bad and sort:
                return "/events/document.archived", {"json": {"id": key}}, ""
            document = {"id": key} if bad else {"id": key, "title": "Load", "text": "a b c"}
            return "/events/document.created", {"json": document}, f"/documents/{key}"
        case "event-bus":
            event = {"type": "bad" if bad else "good", "payload": {"number": number}}
            return "/buses/wms/events", {"json": event}, ""
        case _:
            text = (f"{number}.txt", f"file {key}".encode(), "text/plain")
            file = (f"{number}.png", _BAD_PNG, "image/png") if bad else text
            return "/files", {"files": {"file": file}}, "/files/{fileId}"


def _id(name: str, arguments: dict[str, Any], answer: dict[str, Any]) -> str:
    """Return the ID of a message, which is in a table or in the body of a dead letter."""
    match name:
        case "ratatoskr":
            return str(arguments["json"]["order"])
        case "freeflow":
            return str(arguments["json"]["id"])
        case "file-pipeline":
            return str(answer["fileId"])
        case _:
            return str(answer["id"])


class WebPart:
    """An HTTP client that keeps its connections open. httpx used as much CPU time as all web parts
    together.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, request: httpx.Request) -> tuple[int, dict[str, Any]]:
        """Send a request and return the status and the content of the response. Raises OSError or
        EOFError if there is none.
        """
        body = request.read()
        head = f"{request.method} {request.url.raw_path.decode()} HTTP/1.1\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        reader, writer = await self._connection()
        writer.write(head.encode() + b"\r\n" + body)
        try:
            async with asyncio.timeout(_DRAIN_S):
                answer = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
                content = await reader.readexactly(int(length[1]) if length else 0)
        except BaseException:
            writer.close()
            raise
        self._idle.append((time.monotonic(), reader, writer))
        status = int(answer.split(b" ", 2)[1])
        return status, json.loads(content) if status in (200, 202) else {}

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            since, reader, writer = self._idle.pop()
            # uvicorn closes idle connections after 5 s
            if time.monotonic() - since < 3 and not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self._port)

    def close(self) -> None:
        for _, _, writer in self._idle:
            writer.close()


async def _produce(parts: Parts, rate: float, seconds: float, outcome: Outcome) -> None:
    """Send `rate` requests per second, independently of the response times. For some of them, wait
    for the effect.
    """
    name = parts.name
    room, sent, following = asyncio.Semaphore(_AT_ONCE), set(), set()
    if name == "event-bus":
        where = f"http://127.0.0.1:{parts.ports['sample']}/wms-orders/behaviour"
        async with httpx.AsyncClient(trust_env=False) as client:
            answer_ = await client.put(where, json={"status": 422, "type": "bad"})
            answer_.raise_for_status()
    web = WebPart(httpx.URL(parts.url).port or 80)

    async def send(number: int) -> None:
        path, arguments, effect = _request(name, number)
        began = time.perf_counter()
        try:
            status, answer = await web.ask(httpx.Request("POST", parts.url + path, **arguments))
        except (OSError, EOFError):
            outcome.refused += 1
            return
        finally:
            room.release()
        if status not in (200, 202):
            outcome.refused += 1
            return
        outcome.accepted.add(_id(name, arguments, answer))
        outcome.accept_ms.append((time.perf_counter() - began) * 1000)
        if effect and number % _FOLLOWED == 0:
            following.add(asyncio.create_task(follow(effect.format(**answer), began)))

    async def follow(shows: str, began: float) -> None:
        pause = 0.02
        while time.perf_counter() - began < _DRAIN_S:
            status, answer = await web.ask(httpx.Request("GET", parts.url + shows))
            if status == 200 and answer.get("status", "completed") == "completed":
                outcome.effect_ms.append((time.perf_counter() - began) * 1000)
                return
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 1.3)  # long waits must not add load

    began = time.perf_counter()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        await room.acquire()
        if time.perf_counter() - began > seconds:
            break  # if the machine is too busy, the rate is lower, but the run does not take longer
        task = asyncio.create_task(send(number))
        sent.add(task)
        task.add_done_callback(sent.discard)
    await asyncio.gather(*sent)
    outcome.seconds = time.perf_counter() - began
    await asyncio.gather(*following)
    web.close()


async def _wait_until_drained(broker: RabbitMQ, parts: Parts) -> None:
    """Wait until no message is ready or unacked and the counts do not change any more."""
    before: object = None
    for _ in range(int(_DRAIN_S)):
        connection = await broker.connect("load")
        try:
            queues = [queue for queue in await _queues(broker, parts) if not _is_dead(queue)]
            waiting = sum([(await count_now(connection, queue)).messages for queue in queues])
        finally:
            await connection.close()
        now = (waiting, await parts.count_deliveries())
        if not waiting and now == before:
            return
        before = now
        await asyncio.sleep(2)


def _is_dead(queue: str) -> bool:
    return queue.endswith(("dlq", ".dlq")) or ".dlq." in queue


async def _queues(_broker: RabbitMQ, parts: Parts) -> list[str]:
    from hopback.designs import DESIGNS
    from hopback.systems.freeflow.settings import FreeFlowSettings

    if parts.name == "freeflow":
        return [one.name for one in FreeFlowSettings.read(SHORTENED).topology().queues]
    return [one.name for one in DESIGNS[parts.name].build().queues]


_FOUND = {
    "raffle": "SELECT id FROM users",
    "ratatoskr": "SELECT id FROM ratatoskr_orders",
    "freeflow": "SELECT id FROM freeflow_documents",
    "file-pipeline": "SELECT file_id FROM file_pipeline_files WHERE status = 'completed'",
}
_BUS_SERVICES = ("wms-cincout", "wms-orders")
_LOOKED_AT_S = 1.0
"""Seconds between two requests to the sample receiver. It stores 1,000 events of a service, which
is 5 s of 200 messages per second with retries.
"""
_AN_ID = re.compile(rb"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")


async def _collect_received(parts: Parts, received_ids: dict[str, set[str]]) -> None:
    """Collect the events that each service has received, until this is cancelled."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        while True:
            for service in _BUS_SERVICES:
                where = f"http://127.0.0.1:{parts.ports['sample']}/{service}/events"
                for event in (await client.get(where)).json()["events"]:
                    if event["answered"] == 200:
                        received_ids[service].add(event["id"])
            await asyncio.sleep(_LOOKED_AT_S)


async def _dead_ids(broker: RabbitMQ, queue: str) -> set[str]:
    """Return the IDs in the bodies of the messages in a queue. The messages are requeued when the
    connection is closed.
    """
    found: set[str] = set()
    connection = await broker.connect("load")
    try:
        channel = await connection.open_channel()
        while delivery := await channel.get(queue):
            found.update(one.decode() for one in _AN_ID.findall(delivery.body))
    finally:
        await connection.close()
    return found


async def _account(broker: RabbitMQ, parts: Parts, database: str, outcome: Outcome) -> None:
    """Find the rows and the dead letters of the accepted messages."""
    runs = await parts.count_deliveries()
    outcome.retries = sum(count for (_, what), count in runs.items() if what == "retry")
    outcome.memory_mb = parts.memory()
    dead = {
        queue: await _dead_ids(broker, queue)
        for queue in await _queues(broker, parts)
        if _is_dead(queue)
    }
    outcome.dead = set[str]().union(*dead.values()) & outcome.accepted
    if parts.name == "event-bus":  # each service must have received it or have its dead letter
        dead_of = [dead[f"wms.dlq.{service}"] for service in _BUS_SERVICES]
        of_each = [
            parts.received_ids[one] | gone for one, gone in zip(_BUS_SERVICES, dead_of, strict=True)
        ]
        outcome.found = set.intersection(*of_each) - outcome.dead
        outcome.dead &= set.intersection(*of_each)
        return
    with psycopg.connect(database) as rows:
        outcome.found = {str(one) for (one,) in rows.execute(_FOUND[parts.name])}


@contextmanager
def _database(node: PostgresNode) -> Iterator[str]:
    name = f"load{uuid.uuid4().hex[:8]}"
    with psycopg.connect(node.url(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[call-overload]
    yield node.url(name)


async def _run(
    node: RabbitNode,
    postgres: PostgresNode,
    names: list[str],
    rate: float,
    seconds: float,
    hardened: bool,
) -> tuple[str, dict[str, Any]]:
    """Run a group of systems. Returns the version of the broker and the result of each system."""
    broker = RabbitMQ(node.url)
    outcomes = {name: Outcome() for name in names}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        systems: dict[str, tuple[Parts, str]] = {}
        for name in names:
            database = stack.enter_context(_database(postgres))
            settings = {
                **SHORTENED,
                "HOPBACK_BROKER": node.url,
                "DATABASE_URL": database,
                "HARDENED": "1" if hardened else "0",
                "FILES_FOLDER": f"{folder}/{name}/files",
                "PROCESSING_TIMEOUT_SECONDS": "3600",
            }
            parts = Parts(name, settings, Path(folder) / name)
            stack.callback(parts.end)
            systems[name] = (parts, database)
        await _each(systems, lambda parts, _: parts.ready())
        _log("ready")
        looking = [
            asyncio.create_task(_collect_received(parts, parts.received_ids))
            for name, (parts, _) in systems.items()
            if name == "event-bus"
        ]
        await asyncio.gather(
            *(
                _produce(parts, rate / MESSAGES[name], seconds, outcomes[name])
                for name, (parts, _) in systems.items()
            )
        )
        _log("sent")
        await _each(systems, lambda parts, _: _wait_until_drained(broker, parts))
        await asyncio.sleep(2 * _LOOKED_AT_S)  # wait for the last events of the services
        for task in looking:
            if task.done():
                task.result()
            task.cancel()
        await _each(systems, lambda parts, url: _account(broker, parts, url, outcomes[parts.name]))
    connection = await broker.connect("load")
    version = str(connection.version)
    await connection.close()
    measured = {
        "together": len(names),
        "at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "load": os.getloadavg()[1],
    }
    return version, {name: measured | _summarize(one) for name, one in outcomes.items()}


async def _each(
    systems: dict[str, tuple[Parts, str]], act: Callable[[Parts, str], Awaitable[None]]
) -> None:
    async with AsyncExitStack():
        await asyncio.gather(*(act(parts, url) for parts, url in systems.values()))


def _summarize(outcome: Outcome) -> dict[str, Any]:
    """Replace IDs with their number and times with percentiles."""
    summary = asdict(outcome)
    summary["twice"] = len(outcome.found & outcome.dead)
    summary["lost"] = len(outcome.accepted - outcome.found - outcome.dead)
    for name in ("accepted", "found", "dead"):
        summary[name] = len(summary[name] & outcome.accepted)
    for name in ("accept_ms", "effect_ms"):
        times = sorted(summary.pop(name))
        summary[name] = [statistics.median(times), times[int(len(times) * 0.99)]] if times else None
    return summary


def _log(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


# --- the page ------------------------------------------------------------------------------------------


_INTRODUCTION = """\
# The five systems under load

Written by `python -m benchmarks.systems`. Each part is a process. All processes, RabbitMQ and PostgreSQL
share one machine with two cores. The producer offers the rate in the column *offered/s* to the web part of
each system, in messages: two services receive an event of the bus, and five stages handle a file.
*rate/s* is the rate that the web part accepted. Every tenth request fails, in turn permanently and until it
is parked. The long waits are shortened: raffle and file pipeline 2 s, FreeFlow 1 s, 2 s and 4 s, Ratatoskr
2 s. The event bus has its ten retries of 5 s.

Every request has an id. *found* counts the ids of rows, or of events that every service has received.
*dead letters* counts the ids in dead-letter queues. *both* counts the ids that are rows and dead letters,
because a message may be delivered twice. *lost* counts the ids that a web part accepted and that are
neither. *accepted in* is the time until the producer has its answer, *effect in* the time until a row can
be read: median and 99th percentile. *memory* is the highest memory of each part. *measured* has the
duration of the load, the number of systems that ran together, the time in UTC and the load average of the
machine."""
_COLUMNS = (
    "system", "offered/s", "rate/s", "accepted", "refused", "found", "dead letters", "both", "lost",
    "retries", "accepted in (ms)", "effect in (ms)", "memory (MB)", "measured",
)  # fmt: skip


def page(results: list[dict[str, Any]]) -> str:
    """Return the text of SYSTEMS.md."""
    lines = [_INTRODUCTION]
    for run in results:
        form = "hardened" if run["hardened"] else "as documented"
        lines += [
            "",
            f"## RabbitMQ {run['version']}, {form}",
            "",
            f"| {' | '.join(_COLUMNS)} |",
            "|---" * len(_COLUMNS) + "|",
        ]
        for name in (name for name in MESSAGES if name in run["systems"]):
            one = run["systems"][name]
            rate = one["accepted"] * MESSAGES[name] / one["seconds"] if one["seconds"] else 0
            memory = ", ".join(f"{part} {size:.0f}" for part, size in one["memory_mb"].items())
            numbers = [
                one[key] for key in ("accepted", "refused", "found", "dead", "twice", "lost")
            ]
            times = (one["retries"], _pair(one["accept_ms"]), _pair(one["effect_ms"]), memory)
            measured = (
                f"{one['seconds']:.0f} s, {one['together']} together, {one['at']},"
                f" load {one['load']:.1f}"
            )
            cells = (name, f"{one['offered']:g}", f"{rate:.1f}", *numbers, *times, measured)
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _pair(times: list[float] | None) -> str:
    return "–" if times is None else f"{times[0]:.0f} / {times[1]:.0f}"


def _add(
    results: list[dict[str, Any]], version: str, hardened: bool, found: dict[str, Any]
) -> None:
    """Replace the results of these systems on a version in one form. All other results are kept."""
    same = [one for one in results if (one["version"], one["hardened"]) == (version, hardened)]
    if not same:
        same = [{"version": version, "hardened": hardened, "systems": {}}]
        results += same
    same[0]["systems"].update(found)
    results.sort(key=lambda one: ([*map(int, one["version"].split("."))], one["hardened"]))


def _source() -> str:
    """Return the git ID of the source code, which is stored with the results."""
    command = ("git", "rev-parse", "--short", "HEAD:src")
    return subprocess.run(
        command, cwd=PAGE.parent, check=True, capture_output=True, text=True
    ).stdout.strip()


def _results() -> list[dict[str, Any]]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else []


def _is_measured(hardened: bool, measured: dict[str, Any], names: list[str]) -> bool:
    """Return True if all these systems have results for the same broker, rate and duration."""
    found = {
        name
        for run in _results()
        if run["hardened"] == hardened
        for name, one in run["systems"].items()
        if measured.items() <= one.items()
    }
    return found.issuperset(names)


def main() -> int:
    """Run the groups of systems and add their results to the page. Returns 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--systems", action="append", help=f"run together, by comma; default: {' '.join(GROUPS)}"
    )
    parser.add_argument("--rate", type=float, default=200.0, help="messages a second, each system")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument(
        "--brokers", default="host,forky", help="host, or a suite of tests.harness.versions"
    )
    parser.add_argument("--forms", default="faithful,hardened")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="skip runs that have results of this rate and duration",
    )
    options = parser.parse_args()
    groups = [group.split(",") for group in options.systems or GROUPS]
    if unknown := {name for group in groups for name in group} - MESSAGES.keys():
        parser.error(f"--systems: expected {', '.join(MESSAGES)}, got {', '.join(sorted(unknown))}")
    runs = [
        (names, suite, form == "hardened")
        for names in groups
        for suite in options.brokers.split(",")
        for form in options.forms.split(",")
    ]
    failed = 0
    postgres = PostgresNode().start()
    try:
        for number, (names, suite, hardened) in enumerate(runs, 1):
            form = "hardened" if hardened else "as documented"
            _log(f"run {number} of {len(runs)}: {', '.join(names)} {form} on {suite}")
            measured = {
                "suite": suite,
                "offered": options.rate,
                "asked_s": options.seconds,
            }
            if options.resume and _is_measured(hardened, measured, names):
                _log("already measured")
                continue
            try:
                installation = HOST if suite == "host" else build(suite)
                with RabbitNode(installation=installation) as node:
                    version, found = asyncio.run(
                        _run(node, postgres, names, options.rate, options.seconds, hardened)
                    )
            except Exception as error:
                failed = 1
                _log(f"failed: {type(error).__name__}: {error}")
                continue
            # Read the results again, because another run may have changed them.
            results = _results()
            found = {name: one | measured | {"source": _source()} for name, one in found.items()}
            _add(results, version, hardened, found)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            PAGE.write_text(page(results))
    finally:
        postgres.remove()
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
