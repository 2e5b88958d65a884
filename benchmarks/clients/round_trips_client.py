"""Make the same round trips as the handler without a broker or a library, a hundred at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from benchmarks.clients.measuring import Stopwatch, run_async
from benchmarks.clients.round_trips import AT_ONCE, round_trips
from hopback.cli import tune_memory

if TYPE_CHECKING:
    from benchmarks.workload import Job


async def ask(job: Job, watch: Stopwatch) -> None:
    left = job.count
    tune_memory()  # the command does the same, so that reads have the same cost

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await trips.make()

    async with round_trips() as trips:
        watch.start()
        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        watch.stop()


if __name__ == "__main__":
    run_async({"round-trips": ask})
