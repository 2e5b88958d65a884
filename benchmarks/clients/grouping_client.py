"""Hopback groups a whole dead-letter queue by fingerprint: one pass, nothing kept."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.clients.measuring import Stopwatch, resident_kib, run_async
from hopback.broker.rabbitmq import RabbitMQ
from hopback.ops.brokers.discovery import Override
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.search import survey_queue
from hopback.ops.operations import Operations

if TYPE_CHECKING:
    from benchmarks.workload import Job


async def group(job: Job, watch: Stopwatch) -> None:
    """Samples: memory before, and the longest time in ms that the loop was held up."""
    overrides = [Override(job.queue, main_queue=job.target)]
    async with Operations(ManagedBroker(RabbitMQ(job.url), overrides=overrides)) as operations:
        stalls: list[float] = []
        pulse = asyncio.create_task(_pulse(stalls))
        watch.samples.append((0, resident_kib()))
        watch.start()
        found = await survey_queue(operations, job.queue, force=True)
        watch.samples.append((int(max(stalls) * 1000), resident_kib()))
        watch.stop()
        pulse.cancel()
        if found.seen != job.count:
            sys.exit(f"expected {job.count} messages, got {found.seen}")


async def _pulse(stalls: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.005)
        stalls.append(time.perf_counter() - began - 0.005)


if __name__ == "__main__":
    run_async({"group": group})
