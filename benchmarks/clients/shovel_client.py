"""RabbitMQ's shovel plugin, which moves the messages of a queue with `ack-mode: on-confirm`.

The variant is the URL of the management API. The broker does the work, so only the time is
meaningful and not the CPU time. The run ends when the target queue has all messages.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from base64 import b64encode
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from benchmarks.clients.measuring import Stopwatch, run_async
from hopback.broker.rabbitmq import RabbitMQ
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from benchmarks.workload import Job


async def move(job: Job, watch: Stopwatch) -> None:
    connection = await RabbitMQ(job.url).connect("benchmark")
    channel = await connection.open_channel()
    uri = f"amqp:///{job.vhost}"
    value = {
        "src-protocol": "amqp091", "src-uri": uri, "src-queue": job.queue,
        "src-prefetch-count": 1000, "src-delete-after": "queue-length",
        "dest-protocol": "amqp091", "dest-uri": uri, "dest-queue": job.target,
        "ack-mode": "on-confirm",
    }  # fmt: skip
    watch.start()
    await asyncio.to_thread(_put, job.variant, f"/parameters/shovel/{job.vhost}/bench", value)
    while (await channel.declare_queue(Queue(job.target), passive=True)).messages < job.count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    watch.stop()
    await connection.close()


def _put(url: str, place: str, value: object) -> None:
    address = urlsplit(url)
    login = b64encode(f"{address.username}:{address.password}".encode()).decode()
    request = urllib.request.Request(
        f"http://{address.hostname}:{address.port}/api{place}",
        json.dumps({"value": value}).encode(),
        {"Authorization": f"Basic {login}", "Content-Type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(request, timeout=30).close()


if __name__ == "__main__":
    run_async({"move": move})
