"""`python -m benchmarks.admin_scale --write`: one service, and a dead-letter queue of a million messages.

A private RabbitMQ holds dead letters of 1 KiB in a classic queue, with `x-death` as a broker writes it and a
home-made header of the failure. `hopback serve` runs as a process of its own, with its jobs in a SQLite
file, and is asked by HTTP, as page and command ask it. Its processor time and its largest memory are read
from the system: those hold whoever else uses the machine. `--write` puts each part into a section of
benchmarks/ADMIN.md.
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

from benchmarks.admin import command, cpu_s, one_by_one, told, write_section
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
_COUNTED_S = 8.0  # the management API counts every 5 s
_TELL_S = 10.0  # between two lines on how far it is


class Taken(NamedTuple):
    """What something took, by the clock and of the service's processor time."""

    messages: int
    seconds: float
    cpu_seconds: float

    def row(self, what: str) -> str:
        """A row of a table."""
        return (
            f"| {what} | {self.messages:,} | {self.messages / self.seconds:,.0f} |"
            f" {self.messages / max(self.cpu_seconds, 0.01):,.0f} |"
        )


_RATES = (
    "| | messages | a second, by the clock | a second of the service's processor time |\n"
    "|---|---|---|---|"
)


class _Site:
    """The node, the service on it, and a client of the service."""

    def __init__(self, node: RabbitNode, pid: int, port: int, count: int) -> None:
        self.node = node
        self.pid = pid
        self.port = port
        self.count = count

    def taken(self, work: Callable[[RemoteDeadLetters], Coroutine[Any, Any, int]]) -> Taken:
        """What one piece of work took; it tells how many messages it saw."""
        from hopback.ops.client import RemoteDeadLetters

        async def timed() -> Taken:
            async with RemoteDeadLetters(f"http://127.0.0.1:{self.port}") as server:
                begun, cpu = time.perf_counter(), cpu_s(self.pid)
                seen = await work(server)
                return Taken(seen, time.perf_counter() - begun, cpu_s(self.pid) - cpu)

        return asyncio.run(timed())

    def section(self, title: str, lines: list[str], goal: str, *, reached: bool) -> _Section:
        """A part of the report; its last line says whether the goal was reached."""
        about = (
            f"{self.count:,} dead letters of 1 KiB in a classic queue of a private RabbitMQ; load average"
            f" {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, shared with the broker.\n"
        )
        verdict = f"\nGoal: {goal}: {'reached' if reached else 'not reached'}."
        return _Section(f"Deep queue: {title}", [about, *lines, verdict], reached)


class _Teller:
    """Prints now and then how far something is: a million messages take minutes."""

    def __init__(self) -> None:
        self._told = time.perf_counter()

    def __call__(self, seen: int, total: int) -> None:
        if time.perf_counter() - self._told > _TELL_S:
            self._told = time.perf_counter()
            print(f"{seen:,} of {total:,}", flush=True)


class _Section(NamedTuple):
    title: str
    lines: list[str]
    reached: bool


_ERRORS = 7  # that the messages tell of, so that there is something to group
_ID = "m-{:09d}"
_FILLED_AT_ONCE = 500  # as many as the window of a channel has places for, and others run


async def _fill(url: str, count: int) -> None:
    """Publish them, each confirmed; what differs is written into properties that are made once."""
    from hopback.broker.declare import declare
    from hopback.broker.rabbitmq import RabbitMQ
    from hopback.fields import Timestamp
    from hopback.message import Properties
    from hopback.topology.model import Queue, Topology
    from hopback.wire.properties import encode_properties

    rests = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": _DLQ}
    queues = (Queue("orders", arguments=rests), Queue(_DLQ), Queue("bare"), Queue("bare.target"))
    connection = await RabbitMQ(url).connect("fill")
    await declare(connection, Topology("bench", queues=queues))
    channel = await connection.open_channel()
    death = {
        "queue": "orders", "reason": "rejected", "count": 1, "exchange": "", "routing-keys": ["orders"],
        "time": Timestamp(1_800_000_000),
    }  # fmt: skip
    made = []
    for error in range(_ERRORS):
        headers = {"x-death": [death], "x-last-error": f"TimeoutError: {error} did not answer"}
        said = Properties(delivery_mode=2, message_id=_ID.format(0), headers=headers)
        made.append(encode_properties(said).split(_ID.format(0).encode()))
    begun = told = time.perf_counter()
    for number in range(count):
        body = b'{"customer": "C-%07d", "text": "' % number
        body += b"x" * (BODY_BYTES - len(body) - 2) + b'"}'
        properties = _ID.format(number).encode().join(made[number % _ERRORS])
        fate = channel.publish_raw("", _DLQ, properties, body)  # type: ignore[attr-defined]
        if number % _FILLED_AT_ONCE == 0:
            await asyncio.sleep(0)
        await channel.room()
        if time.perf_counter() - told > _TELL_S:
            told = time.perf_counter()
            rate = number / (told - begun)
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
    from hopback.ops.contract.requests import Window

    async def look(server: RemoteDeadLetters) -> int:
        session = await server.open_session(_DLQ, Window(limit=100))
        shown = await server.messages(session.id, limit=50)
        await server.groups(session.id)
        await server.release(session.id)
        return len(shown.dead_letters)

    looks = [site.taken(look) for _ in range(_LOOKS)]
    middle = statistics.median(each.seconds for each in looks)
    lines = [
        "Hold the first 100, show 50 of them and their groups, release:"
        f" {middle:.3f} s by the clock (median of {_LOOKS}),"
        f" {sum(each.cpu_seconds for each in looks) / _LOOKS:.3f} s of processor time."
    ]
    goal = f"the first look takes at most {_LOOK_GOAL_S} s"
    return site.section("the first look", lines, goal, reached=middle <= _LOOK_GOAL_S)


def _search(site: _Site) -> _Section:
    from hopback.ops.contract.requests import Window
    from hopback.ops.contract.search import SearchRequest

    tell = _Teller()

    async def search(server: RemoteDeadLetters) -> int:
        request = SearchRequest(f"C-{site.count - 1:07d}", (_DLQ,))
        async for progress in server.search(request):
            last = progress
            tell(progress.seen, progress.total)
        if last.matching != 1:
            raise RuntimeError(f"expected one message to match, got {last.matching}")
        return last.seen

    async def open_last(server: RemoteDeadLetters) -> int:
        session = await server.open_session(
            _DLQ,
            Window(limit=20, skip=site.count - 20),
            on_progress=lambda now: tell(now.seen, now.total),
        )
        await server.release(session.id)
        return session.skipped + session.held

    found, opened = site.taken(search), site.taken(open_last)
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

    found = site.taken(group)
    lines = [_RATES, found.row("group by fingerprint")]
    goal = f"{_WHOLE_GOAL:,} messages a second"
    return site.section(
        "group the whole", lines, goal, reached=found.messages / found.seconds >= _WHOLE_GOAL
    )


def _redrive(site: _Site) -> _Section:
    from hopback.ops.contract.requests import RedriveRequest, Selection
    from hopback.ops.contract.values import JobState

    tell = _Teller()

    async def redrive(server: RemoteDeadLetters) -> int:
        asked = RedriveRequest(queue=_DLQ, selection=Selection(), reason="the cause is repaired")
        begun = await server.start(asked)
        async for job in server.events(begun.id):
            tell(job.counts.done, job.counts.selected)
            if job.counts.done >= site.count:
                break
        if job.state not in (JobState.RUNNING, JobState.COMPLETED):
            raise RuntimeError(f"the job is {job.state}: {job.state_reason}")
        return job.counts.done

    program = build_c_client()
    if program is None:
        lines = ["There is no C compiler or no librabbitmq here, so nothing was compared."]
        return site.section("re-drive", lines, f"{_REDRIVE_GOAL} of the C client", reached=False)
    c_client = CClient("C client", program)
    # Before and after: a machine that others use is not as fast at one time as at another.
    before = _c_move(c_client, site)
    ours = site.taken(redrive)
    if ours.messages != site.count:
        raise RuntimeError(f"expected {site.count} messages re-driven, got {ours.messages}")
    asyncio.run(_empty(site.node.url, "orders"))
    after = _c_move(c_client, site)
    bare = Taken(*(one + other for one, other in zip(before, after, strict=True)))
    share = ours.messages / ours.seconds / (bare.messages / bare.seconds)
    lines = [
        _RATES.replace("the service's", "its"),
        ours.row("re-drive job of the service: marked, watched, kept in a journal"),
        before.row("C client, bare move of as many messages without headers, before it"),
        after.row("the same, after it"),
        f"\nThe job moves {share:.2f} of what the C client moves in both runs together.",
    ]
    goal = f"at least {_REDRIVE_GOAL} of the C client's bare move"
    return site.section("re-drive", lines, goal, reached=share >= _REDRIVE_GOAL)


def _c_move(c_client: CClient, site: _Site) -> Taken:
    """Fill a queue of its own, and move it."""
    for scenario, target in ((Scenario.FILL, ""), (Scenario.MOVE, "bare.target")):
        job = Job(
            scenario, "127.0.0.1", site.node.amqp_port, "/", "bare", target, site.count
        )  # fmt: skip
        found = c_client.run(job)
    asyncio.run(_empty(site.node.url, "bare", "bare.target"))
    return Taken(found.count, found.seconds, found.cpu_seconds)


async def _empty(url: str, *queues: str) -> None:
    """Delete what queues hold: a million messages more are memory that the next part needs."""
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
    lines = [f"The service held {peak_mb:.0f} MB at most, from its start through all of the above."]
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
    """Measure, print each part, and write it down if that is wanted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admin_scale", description=__doc__)
    parser.add_argument("--letters", dest="dead_letters", type=int, default=1_000_000)
    parser.add_argument(
        "--write", action="store_true", help="write the sections of benchmarks/ADMIN.md"
    )
    parser.add_argument(
        "--parts", nargs="+", choices=_PARTS, default=list(_PARTS), help="only these, in this order"
    )
    chosen = parser.parse_args()
    found: list[_Section] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        node = stack.enter_context(RabbitNode())
        asyncio.run(_fill(node.url, chosen.dead_letters))
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
        port = int(told(service, r"Serving http://\S*?:(\d+)/"))
        time.sleep(_COUNTED_S)
        site = _Site(node, service.pid, port, chosen.dead_letters)
        for measure in map(_PARTS.__getitem__, chosen.parts):
            begun = time.perf_counter()
            section = measure(site)
            took = time.perf_counter() - begun
            print(f"{section.title}: {took:.0f} s, at most {_peak_mb(site):.0f} MB", flush=True)
            found.append(section)
            print(f"## {section.title}\n\n" + "\n".join(section.lines) + "\n", flush=True)
            if chosen.write:
                write_section(section.title, section.lines)
    return 0 if all(section.reached for section in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
