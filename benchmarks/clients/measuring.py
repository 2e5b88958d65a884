"""Measure a client. This includes the time, the CPU time, a profile, and the result for the driver."""

from __future__ import annotations

import asyncio
import cProfile
import io
import json
import pstats
import resource
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks.workload import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

__all__ = ["LINGER_S", "Stopwatch", "linger", "resident_kib", "run_async", "run_sync"]

LINGER_S = 0.3
"""Seconds. When a channel is closed, it drops data that a quorum queue has not received yet,
including acks.
"""


class Stopwatch:
    """Measures from the start of the work to its last message. The client is already connected at
    the start.
    """

    def __init__(self, job: Job) -> None:
        self._count = job.count
        self._profile = cProfile.Profile() if job.profile else None
        self._answer: dict[str, Any] = {}
        self.samples: list[tuple[int, int]] = []

    def start(self) -> None:
        if self._profile:
            self._profile.enable()
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        if self._profile:
            self._profile.disable()
        self._answer = {
            "count": self._count,
            "seconds": wall - self._wall,
            "cpu_seconds": cpu - self._cpu,
            "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            "samples": self.samples,
            "profile": _profile_text(self._profile) if self._profile else "",
        }

    def sample(self, done: int) -> None:
        self.samples.append((done, resident_kib()))

    def report(self) -> None:
        if not self._answer:
            raise RuntimeError("the work never ended")
        print(json.dumps(self._answer))


async def linger() -> None:
    """Wait until the broker has handled the last acks. This is not measured."""
    await asyncio.sleep(LINGER_S)


def resident_kib() -> int:
    """Return the resident memory of this process in KiB."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() // 1024


def _profile_text(profile: cProfile.Profile) -> str:
    text = io.StringIO()
    pstats.Stats(profile, stream=text).strip_dirs().sort_stats("tottime").print_stats(14)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines() if line.strip())


def run_async(
    scenarios: Mapping[str, Callable[[Job, Stopwatch], Coroutine[Any, Any, None]]],
) -> None:
    """Run the job from the command line on a new event loop and print the result."""
    job = Job.from_json(sys.argv[1])
    watch = Stopwatch(job)
    asyncio.run(scenarios[job.scenario](job, watch))
    watch.report()


def run_sync(scenarios: Mapping[str, Callable[[Job, Stopwatch], None]]) -> None:
    """Run the job from the command line and print the result."""
    job = Job.from_json(sys.argv[1])
    watch = Stopwatch(job)
    scenarios[job.scenario](job, watch)
    watch.report()
