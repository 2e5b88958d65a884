"""Hopback's re-drive job: frozen selection, marks, header policy, confirmed, pipelined, journal.

Variant "sql" keeps the job in a SQLite file, as the command does; "" in memory.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.clients.measuring import Stopwatch, linger, run_async
from hopback.broker.rabbitmq import RabbitMQ
from hopback.clock import SystemClock
from hopback.deadletters.discovery import Override
from hopback.deadletters.operations import Operations
from hopback.deadletters.pacing import Pace
from hopback.deadletters.requests import FromHead, RedriveRequest

if TYPE_CHECKING:
    from benchmarks.workload import Job
    from hopback.deadletters.journal import Journal


async def move(job: Job, watch: Stopwatch) -> None:
    async with AsyncExitStack() as stack:
        journal = await _journal(job, stack)
        overrides = [Override(job.queue, main_queue=job.target)]
        operations = Operations(RabbitMQ(job.url), overrides=overrides, journal=journal)
        await stack.enter_async_context(operations)
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


async def _journal(job: Job, stack: AsyncExitStack) -> Journal | None:
    if job.variant != "sql":
        return None
    from hopback.deadletters.sql_journal import open_journal

    folder = stack.enter_context(tempfile.TemporaryDirectory())
    url = f"sqlite:///{Path(folder) / 'jobs.db'}"
    return await stack.enter_async_context(open_journal(url, SystemClock()))


if __name__ == "__main__":
    run_async({"move": move})
