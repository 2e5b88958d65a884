"""A process that resumes a re-drive job, or starts one if the last has failed, and runs until it ends.

``python -m tests.integration.ops.redriving_process URL DATABASE_URL SOURCE TARGET IN_FLIGHT [MANAGEMENT]``
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

from hopback.broker.management import Management, ManagementAddress
from hopback.broker.rabbitmq import RabbitMQ
from hopback.clock import SystemClock
from hopback.ops.brokers.discovery import Override
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import Pace, RedriveRequest, Selection
from hopback.ops.contract.values import JobState
from hopback.ops.jobs.journal import open_journal
from hopback.ops.operations import Operations

LEASE_S = 0.6


async def main(
    url: str, database: str, source: str, target: str, in_flight: int, management: str = ""
) -> None:
    """Run one job and print its final state to stdout."""
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(
            open_journal(database, SystemClock(), lease_s=LEASE_S)
        )
        view = None
        if management:
            address = ManagementAddress.derive(None, management)
            view = await stack.enter_async_context(Management(address))
        operations = Operations(
            ManagedBroker(
                RabbitMQ(url), management=view, overrides=[Override(source, main_queue=target)]
            ),
            journal=journal,
        )
        async with operations:
            known = await operations.jobs(queue=source)
            while known and known[0].is_active:  # its killer was quicker than its lease
                await asyncio.sleep(0.05)
                known = await operations.jobs(queue=source)
            job = await (
                operations.resume(known[0].id)
                if known and known[0].state is not JobState.FAILED
                else operations.start(
                    RedriveRequest(
                        queue=source,
                        selection=Selection(),
                        reason="repaired",
                        pace=Pace(in_flight=in_flight),
                    )
                )
            )
            sys.stdout.write("going\n")
            sys.stdout.flush()
            done = await operations.wait(job.id)
            sys.stdout.write(f"{done.state} {done.counts} {done.state_reason}\n")


if __name__ == "__main__":
    _url, _database, _source, _target, _window, *_management = sys.argv[1:]
    asyncio.run(main(_url, _database, _source, _target, int(_window), *_management))
