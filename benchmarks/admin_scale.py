"""Measure a service whose dead-letter queue has a million messages: `python -m
benchmarks.admin_scale --write`.

A private RabbitMQ contains dead letters of 1 KiB in a classic queue, with the `x-death` header of
the broker and the error header of an application. `hopback serve` runs as a process with its jobs
in a SQLite file, and is used over HTTP like by the page and the commands. Its CPU time and its
maximum memory are read from /proc. `--write` writes the sections to benchmarks/ADMIN.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.harness.rabbitmq import RabbitNode

from benchmarks.admin import command, cpu_s, find_output, one_by_one, write_section
from benchmarks.contestants import CClient
from benchmarks.environment import build_c_client
from benchmarks.workload import BODY_BYTES, Job, Scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from hopback.ops.client import RemoteDeadLetters

_DLQ = "orders.dlq"
_LIST_GOAL_MS, _LOOK_GOAL_S = 50.0, 0.2
_WHOLE_GOAL, _REDRIVE_GOAL, _MEMORY_GOAL_MB = 10_000, 0.8, 250.0
_LOOKS = 10
_ROUNDS = 30
_COUNTED_S = 8.0  # Seconds. The management API updates its counts every 5 s.
_PROGRESS_S = 10.0  # Seconds between two lines of progress.


class Cost(NamedTuple):
    """The duration and the CPU time of the service for some work."""

    messages: int
    seconds: float
    cpu_seconds: float

    def row(self, name: str) -> str:
        """Return a row of a table."""
        return (
            f"| {name} | {self.messages:,} | {self.messages / self.seconds:,.0f} |"
            f" {self.messages / max(self.cpu_seconds, 0.01):,.0f} |"
        )


_RATES = (
    "| | messages | a second, by the clock | a second of the service's processor time |\n"
    "|---|---|---|---|"
)


class _Site:
    """The node, the service that uses it, and a client of the service."""

    def __init__(self, node: RabbitNode, pid: int, port: int, count: int) -> None:
        self.node = node
        self.pid = pid
        self.port = port
        self.count = count

    def measure(self, work: Callable[[RemoteDeadLetters], Coroutine[Any, Any, int]]) -> Cost:
        """Measure some work, which returns its number of messages."""
        from hopback.ops.client import RemoteDeadLetters

        async def run() -> Cost:
            async with RemoteDeadLetters(f"http://127.0.0.1:{self.port}") as server:
                begun, cpu = time.perf_counter(), cpu_s(self.pid)
                seen = await work(server)
                return Cost(seen, time.perf_counter() - begun, cpu_s(self.pid) - cpu)

        return asyncio.run(run())

    def section(self, title: str, lines: list[str], goal: str, *, reached: bool) -> _Section:
        """Return a section of the report. Its last line contains the goal and the result."""
        about = (
            f"{self.count:,} dead letters of 1 KiB in a classic queue of a private RabbitMQ; load average"
            f" {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, shared with the broker.\n"
        )
        verdict = f"\nGoal: {goal}: {'reached' if reached else 'not reached'}."
        return _Section(f"Deep queue: {title}", [about, *lines, verdict], reached)


class _Progress:
    """Prints the progress from time to time, because a million messages take minutes."""

    def __init__(self) -> None:
        self._printed_at = time.perf_counter()

    def __call__(self, seen: int, total: int) -> None:
        if time.perf_counter() - self._printed_at > _PROGRESS_S:
            self._printed_at = time.perf_counter()
            print(f"{seen:,} of {total:,}", flush=True)


class _Section(NamedTuple):
    title: str
    lines: list[str]
    reached: bool


_ERRORS = 7  # the number of different errors, for the grouping
_ID = "m-{:09d}"
_FILLED_AT_ONCE = 500  # Messages. This is the window of a channel. Other tasks run in between.


async def _fill(url: str, count: int) -> None:
    """Publish the messages and wait for the confirms. Except for the ID, their properties are only
    encoded once for each error.
    """
    from hopback.broker.declare import declare
    from hopback.broker.rabbitmq import RabbitMQ
    from hopback.fields import Timestamp
    from hopback.message import Properties
    from hopback.topology.model import Queue, Topology
    from hopback.wire.properties import encode_properties

    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": _DLQ}
    queues = (
        Queue("orders", arguments=arguments),
        Queue(_DLQ),
        Queue("bare"),
        Queue("bare.target"),
    )
    connection = await RabbitMQ(url).connect("fill")
    await declare(connection, Topology("bench", queues=queues))
    channel = await connection.open_channel()
    death = {
        "queue": "orders", "reason": "rejected", "count": 1, "exchange": "", "routing-keys": ["orders"],
        "time": Timestamp(1_800_000_000),
    }  # fmt: skip
    templates = []
    for error in range(_ERRORS):
        headers = {"x-death": [death], "x-last-error": f"TimeoutError: {error} did not answer"}
        properties_ = Properties(delivery_mode=2, message_id=_ID.format(0), headers=headers)
        templates.append(encode_properties(properties_).split(_ID.format(0).encode()))
    begun = printed_at = time.perf_counter()
    for number in range(count):
        body = b'{"customer": "C-%07d", "text": "' % number
        body += b"x" * (BODY_BYTES - len(body) - 2) + b'"}'
        properties = _ID.format(number).encode().join(templates[number % _ERRORS])
        fate = channel.publish_raw("", _DLQ, properties, body)  # type: ignore[attr-defined]
        if number % _FILLED_AT_ONCE == 0:
            await asyncio.sleep(0)
        await channel.room()
        if time.perf_counter() - printed_at > _PROGRESS_S:
            printed_at = time.perf_counter()
            rate = number / (printed_at - begun)
            print(f"filled {number:,} of {count:,}, {rate:,.0f} a second", flush=True)
    await fate
    await connection.close()


def _list_page(site: _Site) -> _Section:
    found = asyncio.run(one_by_one(site.port, site.pid, ("/", f"/queues/{_DLQ}"), _ROUNDS))
    head = "| | first ms | median ms | 99 % ms | server CPU ms |\n|---|---|---|---|---|"
    lines = [head, *(each.row() for each in found)]
    goal = f"the list costs at most {_LIST_GOAL_MS:.0f} ms of processor time"
    return site.section("the list", lines, goal, reached=found[0].cpu_ms <= _LIST_GOAL_MS)


def _first_look(site: _Site) -> _Section:
    from hopback.ops.contract.requests import SessionRequest

    async def look(server: RemoteDeadLetters) -> int:
        session = await server.open_session(_DLQ, SessionRequest(limit=100))
        shown = await server.messages(session.id, limit=50)
        await server.groups(session.id)
        await server.release(session.id)
        return len(shown.dead_letters)

    looks = [site.measure(look) for _ in range(_LOOKS)]
    middle = statistics.median(each.seconds for each in looks)
    lines = [
        "Hold the first 100, show 50 of them and their groups, release:"
        f" {middle:.3f} s by the clock (median of {_LOOKS}),"
        f" {sum(each.cpu_seconds for each in looks) / _LOOKS:.3f} s of processor time."
    ]
    goal = f"the first look takes at most {_LOOK_GOAL_S} s"
    return site.section("the first look", lines, goal, reached=middle <= _LOOK_GOAL_S)


def _search(site: _Site) -> _Section:
    from hopback.ops.contract.requests import SessionRequest
    from hopback.ops.contract.search import SearchRequest

    print_progress = _Progress()

    async def search(server: RemoteDeadLetters) -> int:
        request = SearchRequest(f"C-{site.count - 1:07d}", (_DLQ,))
        async for progress in server.search(request):
            last = progress
            print_progress(progress.seen, progress.total)
        if last.matching != 1:
            raise RuntimeError(f"expected one message to match, got {last.matching}")
        return last.seen

    async def open_last(server: RemoteDeadLetters) -> int:
        session = await server.open_session(
            _DLQ,
            SessionRequest(limit=20, skip=site.count - 20),
            on_progress=lambda now: print_progress(now.seen, now.total),
        )
        await server.release(session.id)
        return session.skipped + session.held

    found, opened = site.measure(search), site.measure(open_last)
    rows = [
        _RATES,
        found.row("search for a word that the last message has"),
        opened.row("open the last 20 messages"),
    ]
    goal = f"{_WHOLE_GOAL:,} messages a second"
    return site.section(
        "search the whole", rows, goal, reached=found.messages / found.seconds >= _WHOLE_GOAL
    )


def _group(site: _Site) -> _Section:
    from hopback.ops.contract.search import survey_queue

    async def group(server: RemoteDeadLetters) -> int:
        found = await survey_queue(server, _DLQ)
        if sum(each.count for each in found.groups) != site.count:
            raise RuntimeError(f"expected {site.count} messages in groups, got {found.seen}")
        return found.seen

    found = site.measure(group)
    lines = [_RATES, found.row("group by fingerprint")]
    goal = f"{_WHOLE_GOAL:,} messages a second"
    return site.section(
        "group the whole", lines, goal, reached=found.messages / found.seconds >= _WHOLE_GOAL
    )


def _redrive(site: _Site) -> _Section:
    from hopback.ops.contract.requests import RedriveRequest, Selection
    from hopback.ops.contract.values import JobState

    print_progress = _Progress()

    async def redrive(server: RemoteDeadLetters) -> int:
        request = RedriveRequest(queue=_DLQ, selection=Selection(), reason="the cause is repaired")
        started = await server.start(request)
        async for job in server.events(started.id):
            print_progress(job.counts.done, job.counts.selected)
            if job.counts.done >= site.count:
                break
        if job.state not in (JobState.RUNNING, JobState.COMPLETED):
            raise RuntimeError(f"the job is {job.state}: {job.state_reason}")
        return job.counts.done

    program = build_c_client()
    if program is None:
        lines = ["The C client was not measured, because a C compiler or librabbitmq is missing."]
        return site.section("re-drive", lines, f"{_REDRIVE_GOAL} of the C client", reached=False)
    c_client = CClient("C client", program)
    # Measure before and after, because the load of the machine varies.
    before = _c_move(c_client, site)
    job_cost = site.measure(redrive)
    if job_cost.messages != site.count:
        raise RuntimeError(f"expected {site.count} messages re-driven, got {job_cost.messages}")
    asyncio.run(_empty(site.node.url, "orders"))
    after = _c_move(c_client, site)
    bare = Cost(*(one + other for one, other in zip(before, after, strict=True)))
    share = job_cost.messages / job_cost.seconds / (bare.messages / bare.seconds)
    lines = [
        _RATES.replace("the service's", "its"),
        job_cost.row("re-drive job of the service, with marks, return watch and journal"),
        before.row("C client, move of the same number of messages without headers, before"),
        after.row("the same, afterwards"),
        f"\nThe rate of the job is {share:.2f} of the C client's rate in both runs.",
    ]
    goal = f"at least {_REDRIVE_GOAL} of the C client's move"
    return site.section("re-drive", lines, goal, reached=share >= _REDRIVE_GOAL)


def _c_move(c_client: CClient, site: _Site) -> Cost:
    """Fill a separate queue and move its messages."""
    for scenario, target in ((Scenario.FILL, ""), (Scenario.MOVE, "bare.target")):
        job = Job(
            scenario, "127.0.0.1", site.node.amqp_port, "/", "bare", target, site.count
        )  # fmt: skip
        found = c_client.run(job)
    asyncio.run(_empty(site.node.url, "bare", "bare.target"))
    return Cost(found.count, found.seconds, found.cpu_seconds)


async def _empty(url: str, *queues: str) -> None:
    """Purge queues, because another million messages would use memory that the next part needs."""
    from hopback.broker.rabbitmq import RabbitMQ

    connection = await RabbitMQ(url).connect("empty")
    channel = await connection.open_channel()
    for queue in queues:
        await channel.purge_queue(queue)
    await connection.close()


def _peak_mb(site: _Site) -> float:
    with open(f"/proc/{site.pid}/status") as file:
        (peak_kib,) = (int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    return peak_kib * 1024 / 1e6


def _memory(site: _Site) -> _Section:
    peak_mb = _peak_mb(site)
    lines = [
        f"The service used at most {peak_mb:.0f} MB, from its start through all measurements above."
    ]
    goal = f"at most {_MEMORY_GOAL_MB:.0f} MB throughout"
    return site.section("memory", lines, goal, reached=peak_mb <= _MEMORY_GOAL_MB)


_PARTS: dict[str, Callable[[_Site], _Section]] = {
    "list": _list_page,
    "look": _first_look,
    "search": _search,
    "group": _group,
    "re-drive": _redrive,
    "memory": _memory,
}


def main() -> int:
    """Measure and print each part, and write it if `--write` is given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admin_scale", description=__doc__)
    parser.add_argument("--letters", dest="dead_letters", type=int, default=1_000_000)
    parser.add_argument(
        "--write", action="store_true", help="write the sections of benchmarks/ADMIN.md"
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=_PARTS,
        default=list(_PARTS),
        help="only these parts, in this order",
    )
    options = parser.parse_args()
    found: list[_Section] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        node = stack.enter_context(RabbitNode())
        asyncio.run(_fill(node.url, options.dead_letters))
        service = stack.enter_context(
            command(
                *(
                    "serve",
                    "--http",
                    "0",
                    "--broker",
                    node.url,
                    "--management",
                    node.management_url,
                ),
                *("--store", f"sqlite:///{Path(folder)}/jobs.db"),
            )
        )
        port = int(find_output(service, r"Serving http://\S*?:(\d+)/"))
        time.sleep(_COUNTED_S)
        site = _Site(node, service.pid, port, options.dead_letters)
        for measure in map(_PARTS.__getitem__, options.parts):
            begun = time.perf_counter()
            section = measure(site)
            seconds = time.perf_counter() - begun
            print(f"{section.title}: {seconds:.0f} s, at most {_peak_mb(site):.0f} MB", flush=True)
            found.append(section)
            print(f"## {section.title}\n\n" + "\n".join(section.lines) + "\n", flush=True)
            if options.write:
                write_section(section.title, section.lines)
    return 0 if all(section.reached for section in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
