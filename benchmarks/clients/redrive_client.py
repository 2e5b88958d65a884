"""Hopback's re-drive job: frozen selection, marks, header policy, confirmed, pipelined, journal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from benchmarks.clients.measuring import Stopwatch, linger, run_async
from hopback.broker.rabbitmq import RabbitMQ
from hopback.deadletters.discovery import Override
from hopback.deadletters.operations import Operations
from hopback.deadletters.pacing import Pace
from hopback.deadletters.requests import FromHead, RedriveRequest

if TYPE_CHECKING:
    from benchmarks.workload import Job


async def move(job: Job, watch: Stopwatch) -> None:
    overrides = [Override(job.queue, main_queue=job.target)]
    async with Operations(RabbitMQ(job.url), overrides=overrides) as operations:
        request = RedriveRequest(
            queue=job.queue,
            selection=FromHead(limit=job.count),
            reason="benchmark",
            pace=Pace(in_flight=job.window),
        )
        watch.start()
        done = await operations.wait((await operations.start(request)).id)
        watch.stop()
        if done.counts.done != job.count:
            sys.exit(f"expected {job.count} messages, got {done}")
        await linger()


if __name__ == "__main__":
    run_async({"move": move})
