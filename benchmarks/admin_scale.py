"""`python -m benchmarks.admin_scale --write`: searching and grouping a deep dead-letter queue of RabbitMQ.

A private node holds the dead letters, of 1 KiB, with `x-death` as a broker writes it and a record of the
failure. Each thing is done in a process of its own, whose processor time and largest memory are told:
those hold whoever else uses the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.harness.rabbitmq import RabbitNode

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

_PAGE = Path(__file__).with_name("DEEP.md")
_BODY_BYTES = 1024
_QUEUES = ("orders", "orders.dlq")


class Row(NamedTuple):
    """What one thing took."""

    what: str
    messages: int
    seconds: float
    cpu_s: float
    memory_mb: float

    def text(self) -> str:
        """A row of the table."""
        rate = self.messages / self.seconds
        by_cpu = self.messages / self.cpu_s
        return f"| {self.what} | {self.messages:,} | {rate:,.0f} | {by_cpu:,.0f} | {self.memory_mb:.0f} |"


async def _fill(url: str, count: int) -> None:
    from hopback.broker.declare import declare
    from hopback.broker.rabbitmq import RabbitMQ
    from hopback.fields import Timestamp
    from hopback.message import Message, Properties
    from hopback.topology.model import Queue, Topology

    rests = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dlq"}
    queues = (Queue("orders", arguments=rests), Queue("orders.dlq"))
    connection = await RabbitMQ(url).connect("fill")
    await declare(connection, Topology("bench", queues=queues))
    channel = await connection.open_channel()
    death = {
        "queue": "orders", "reason": "rejected", "count": 1, "exchange": "", "routing-keys": ["orders"],
        "time": Timestamp(1_800_000_000),
    }  # fmt: skip
    for number in range(count):
        headers = {"x-death": [death], "x-last-error": f"TimeoutError: {number % 7} did not answer"}
        body = b'{"customer": "C-%07d", "text": "' % number
        body += b"x" * (_BODY_BYTES - len(body) - 2) + b'"}'
        said = Properties(delivery_mode=2, message_id=f"m-{number}", headers=headers)
        fate = channel.publish(Message("", "orders.dlq", body, said))
        await channel.room()
        if number % 2000 == 0:
            await fate
    await fate
    await connection.close()


async def _search(url: str, count: int) -> int:
    from hopback.broker.rabbitmq import RabbitMQ
    from hopback.deadletters.search import SearchRequest
    from hopback.deadletters.service import Operations

    async with Operations(RabbitMQ(url), overrides=(_known(),)) as operations:
        request = SearchRequest(f"C-{count - 1:07d}", ("orders.dlq",))
        async for progress in operations.search(request):
            last = progress
    if last.matching != 1:
        raise RuntimeError(f"expected one message to match, got {last.matching}")
    return last.seen


async def _group(url: str, count: int) -> int:
    from hopback.broker.rabbitmq import RabbitMQ
    from hopback.deadletters.service import Operations

    async with Operations(RabbitMQ(url), overrides=(_known(),)) as operations:
        found = await operations.survey("orders.dlq")
    if sum(group.count for group in found.groups) != count:
        raise RuntimeError(f"expected {count} messages in groups, got {found.seen}")
    return found.seen


async def _open(url: str, count: int) -> int:
    from hopback.broker.rabbitmq import RabbitMQ
    from hopback.deadletters.requests import Window
    from hopback.deadletters.service import Operations

    async with Operations(RabbitMQ(url), overrides=(_known(),)) as operations:
        session = await operations.open_session("orders.dlq", Window(limit=20, skip=count - 20))
        await operations.release(session.id)
    return session.skipped + session.held


def _known() -> object:
    from hopback.deadletters.discovery import Override

    return Override("orders.dlq", main_queue="orders")


_THINGS: tuple[tuple[str, Callable[[str, int], object]], ...] = (
    ("search for a word, whole depth", _search),
    ("group by fingerprint, whole depth", _group),
    ("open the last 20 messages", _open),
)


def _measured(number: int, url: str, count: int, line: Connection) -> None:
    import uvloop

    what, thing = _THINGS[number]
    begun, cpu = time.perf_counter(), time.process_time()
    seen = uvloop.run(thing(url, count))  # type: ignore[arg-type]
    seconds, spent = time.perf_counter() - begun, time.process_time() - cpu
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    line.send(Row(what, seen, seconds, spent, memory_mb))


def main() -> int:
    """Measure, print a table, and write it down if that is wanted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admin_scale", description=__doc__)
    parser.add_argument("--letters", type=int, default=200_000)
    parser.add_argument("--write", action="store_true", help="write benchmarks/DEEP.md")
    chosen = parser.parse_args()
    spawning, rows = multiprocessing.get_context("spawn"), list[Row]()
    with RabbitNode() as node:
        asyncio.run(_fill(node.url, chosen.dead_letters))
        for number in range(len(_THINGS)):
            ours, theirs = multiprocessing.Pipe()
            child = spawning.Process(
                target=_measured, args=(number, node.url, chosen.dead_letters, theirs)
            )
            child.start()
            rows.append(ours.recv())
            child.join()
    load = os.getloadavg()[0]
    lines = [
        "# Deep dead-letter queues",
        "",
        f"`python -m benchmarks.admin_scale --write`: {chosen.letters:,} dead letters of 1 KiB in a classic",
        "queue of a private RabbitMQ, each thing in a process of its own. The rate by the clock depends on",
        f"who else uses the machine (load average {load:.1f} at the end, two cores, shared with the broker);",
        "processor time and memory do not.",
        "",
        "| | messages | a second, by the clock | a second of processor time | largest memory, MB |",
        "|---|---|---|---|---|",
        *(row.text() for row in rows),
        "",
    ]
    print("\n".join(lines))
    if chosen.write:
        _PAGE.write_text("\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
