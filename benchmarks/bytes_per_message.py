"""Measure what a waiting message costs a RabbitMQ node: memory and disk, by queue type and size.

Run from the root: `python -m benchmarks.bytes_per_message`. The table goes into
`src/hopback/rehearse/storage.py` with the date and the version.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from typing import TYPE_CHECKING

from tests.harness.rabbitmq import RabbitNode

from hopback.broker.rabbitmq import RabbitMQ
from hopback.message import Message, Properties
from hopback.topology.model import Queue, QueueType

if TYPE_CHECKING:
    from pathlib import Path

_SIZES = (100, 1_000, 10_000, 100_000)
_COUNTS = {100: 100_000, 1_000: 60_000, 10_000: 10_000, 100_000: 1_500}
"""Enough to stand out from what the node uses for itself, few enough for a small disk."""


def _disk(folder: Path) -> int:
    ran = subprocess.run(["du", "-sb", str(folder)], capture_output=True, text=True, check=True)
    return int(ran.stdout.split()[0])


def _memory(node: RabbitNode) -> int:
    """What Erlang uses: what the allocator keeps beyond that comes and goes."""
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
    body = b"x" * size
    properties = Properties(delivery_mode=2)
    for begin in range(0, count, 500):
        await asyncio.gather(
            *(
                channel.publish(Message("", queue.name, body, properties))
                for _ in range(min(500, count - begin))
            )
        )
    await connection.close()


def main() -> None:
    """Measure each type and size on a node of its own, so that nothing of another is counted."""
    for kind in (QueueType.CLASSIC, QueueType.QUORUM):
        for size in _SIZES:
            count = _COUNTS[size]
            with RabbitNode() as node:
                time.sleep(10)
                memory, disk = _memory(node), _disk(node.folder)
                asyncio.run(_fill(node, Queue(f"{kind}.{size}", kind), size, count))
                time.sleep(10)  # until what is written lazily is written
                more, written = _memory(node) - memory, _disk(node.folder) - disk
                print(
                    f"{kind} {size} B × {count}: {more / count:.0f} B of memory,"
                    f" {written / count:.0f} B of disk for each",
                    flush=True,
                )


if __name__ == "__main__":
    main()
