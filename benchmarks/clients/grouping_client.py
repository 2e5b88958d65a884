"""Group a dead-letter queue by fingerprint with Hopback, in one pass."""

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
    """Group the queue. The samples are the memory before and after, and the longest delay of the
    event loop in ms.
    """
    overrides = [Override(job.queue, main_queue=job.target)]
    async with Operations(ManagedBroker(RabbitMQ(job.url), overrides=overrides)) as operations:
        stalls: list[float] = []
        delays = asyncio.create_task(_record_delays(stalls))
        watch.samples.append((0, resident_kib()))
        watch.start()
        found = await survey_queue(operations, job.queue, force=True)
        watch.samples.append((int(max(stalls) * 1000), resident_kib()))
        watch.stop()
        delays.cancel()
        if found.seen != job.count:
            sys.exit(f"expected {job.count} messages, got {found.seen}")


async def _record_delays(stalls: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.005)
        stalls.append(time.perf_counter() - began - 0.005)


if __name__ == "__main__":
    run_async({"group": group})
