"""Hopback's re-drive job with its selection, marks, header policy, confirms, pipelining and
journal.

It runs as in the command, with uvloop (the extra `speed`), a garbage collector that runs after
50,000 new objects, and a journal in a SQLite file.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import uvloop

from benchmarks.clients.measuring import Stopwatch, linger, run_async
from hopback.broker.rabbitmq import RabbitMQ
from hopback.cli import tune_memory
from hopback.clock import SystemClock
from hopback.ops.brokers.discovery import Override
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import Pace, RedriveRequest, Selection
from hopback.ops.jobs.journal import open_journal
from hopback.ops.operations import Operations

if TYPE_CHECKING:
    from benchmarks.workload import Job


async def move(job: Job, watch: Stopwatch) -> None:
    overrides = [Override(job.queue, main_queue=job.target)]
    tune_memory()  # the command does the same
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'journal.db'}"
        async with (
            open_journal(url, SystemClock()) as journal,
            Operations(
                ManagedBroker(RabbitMQ(job.url), overrides=overrides), journal=journal
            ) as operations,
        ):
            await _redrive(operations, job, watch)


async def _redrive(operations: Operations, job: Job, watch: Stopwatch) -> None:
    request = RedriveRequest(
        queue=job.queue,
        selection=Selection(limit=job.count),
        reason="benchmark",
        pace=Pace(in_flight=job.window),
        force=True,  # the delivery limits are unknown without the management API
    )
    watch.start()
    done = await operations.wait((await operations.start(request)).id)
    watch.stop()
    if done.counts.done != job.count:
        sys.exit(f"expected {job.count} messages, got {done}")
    await linger()


if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    run_async({"move": move, "move-real": move})
