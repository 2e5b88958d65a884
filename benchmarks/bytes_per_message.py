"""Measure how much memory and disk space a waiting message needs on RabbitMQ, by queue type and
size.

Run it with `python -m benchmarks.bytes_per_message [SUITE …]`. A suite is one that
`tests.harness.versions` builds (`trixie`, `forky`), or `host` for the installed RabbitMQ. The rows
belong to `src/hopback/rehearse/forecast.py`, together with the date and the versions.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.harness.installation import HOST
from tests.harness.rabbitmq import RabbitNode
from tests.harness.versions import installations

from hopback.broker.rabbitmq import RabbitMQ
from hopback.message import Message, Properties
from hopback.topology.model import Queue, QueueType

if TYPE_CHECKING:
    from pathlib import Path

_COUNTS = {100: 100_000, 1_000: 60_000, 10_000: 10_000, 100_000: 1_500}
"""The number of messages for each body size in bytes. There must be enough to exceed the variation
of the node, but not too many for a small disk.
"""
_REST_S = 10.0
"""Seconds that a node needs for background work after a start or after writes."""


def _disk(folder: Path) -> int:
    ran = subprocess.run(["du", "-sb", str(folder)], capture_output=True, text=True, check=True)
    return int(ran.stdout.split()[0])


def _memory(node: RabbitNode) -> int:
    """Return the memory that Erlang uses. The reserve of the allocator is not included, because it
    varies.
    """
    node.ctl("force_gc")
    time.sleep(3)
    name = node.management.call("GET", "/nodes")[0]["name"]
    found = node.management.call("GET", f"/nodes/{name}/memory")["memory"]
    return int(found["total"]["erlang"])


async def _fill(node: RabbitNode, queue: Queue, size: int, count: int) -> None:
    broker = RabbitMQ(node.url, confirm_timeout=300)
    connection = await broker.connect("bytes per message")
    channel = await connection.open_channel()
    await channel.declare_queue(queue)
    message = Message("", queue.name, b"x" * size, Properties(delivery_mode=2))
    for begin in range(0, count, 500):
        wanted = range(min(500, count - begin))
        await asyncio.gather(*(channel.publish(message) for _ in wanted))
    await connection.close()


def _measure(node: RabbitNode, kind: QueueType, size: int) -> tuple[float, float, float]:
    """Return the bytes per message: the memory, the memory before the log is rolled over, and the
    disk space.
    """
    count = _COUNTS[size]
    memory, disk = _memory(node), _disk(node.folder)
    asyncio.run(_fill(node, Queue(f"{kind}.{size}", kind), size, count))
    time.sleep(_REST_S)
    at_first = _memory(node) - memory
    if kind is QueueType.QUORUM:
        # The write-ahead log of all quorum queues is kept in memory until it has 512 MiB. This is a
        # cost of the node and not of a message.
        node.ctl("eval", "ra_log_wal:force_roll_over(ra_log_wal).")
        time.sleep(_REST_S)
    more, written = _memory(node) - memory, _disk(node.folder) - disk
    return more / count, at_first / count, written / count


def main(suites: list[str]) -> None:
    """Measure each queue type and size on a new node."""
    for suite in suites or ["host"]:
        installation = HOST if suite == "host" else installations()[suite]
        for kind in (QueueType.CLASSIC, QueueType.QUORUM):
            for size in _COUNTS:
                with RabbitNode(installation) as node:
                    version = node.management.call("GET", "/overview")["rabbitmq_version"]
                    time.sleep(_REST_S)
                    each, at_first, disk = _measure(node, kind, size)
                print(
                    f"RabbitMQ {version}: {kind} {size:,} B × {_COUNTS[size]:,}: {each:,.0f} B of memory"
                    f" ({at_first:,.0f} B at first), {disk:,.0f} B of disk for each",
                    flush=True,
                )


if __name__ == "__main__":
    main(sys.argv[1:])
