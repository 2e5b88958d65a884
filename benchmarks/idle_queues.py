"""Measure the memory and CPU time of idle quorum queues on RabbitMQ: `python -m
benchmarks.idle_queues`.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from tests.harness.rabbitmq import RabbitNode

from hopback import RabbitMQ
from hopback.topology.model import Queue, QueueType

_QUEUES = 300
"""The number of queues. It is large enough to exceed the variation of an idle node, and they are
declared within a few seconds.
"""
_SETTLE_S = 20
_IDLE_S = 30


def _memory(node: RabbitNode) -> int:
    """Return the resident memory of the node in bytes."""
    return int(Path(f"/proc/{node.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _cpu(node: RabbitNode) -> float:
    """Return the CPU time of the node in seconds."""
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _idle(node: RabbitNode) -> tuple[int, float]:
    """Return the resident memory in bytes, and the CPU seconds per second while no client is
    active.
    """
    time.sleep(_SETTLE_S)
    before, began = _cpu(node), time.monotonic()
    time.sleep(_IDLE_S)
    return _memory(node), (_cpu(node) - before) / (time.monotonic() - began)


async def _declare(url: str, number: int) -> None:
    connection = await RabbitMQ(url).connect("idle queues")
    channel = await connection.open_channel()
    for one in range(number):
        await channel.declare_queue(Queue(f"idle-{one}", QueueType.QUORUM))
    await connection.close()


def main() -> None:
    with RabbitNode() as node:
        memory, cpu = _idle(node)
        asyncio.run(_declare(node.url, _QUEUES))
        more, busier = _idle(node)
    print(f"{(more - memory) / _QUEUES / 1024:.0f} KiB of memory per idle quorum queue")
    print(f"{(busier - cpu) / _QUEUES * 1000:.3f} ms of CPU time per second and queue")


if __name__ == "__main__":
    main()
