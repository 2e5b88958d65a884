"""Hopback as an application. Its service runs an async handler for decoded JSON.

If the variant is "", the broker moves failed messages after a reject, as in the documented designs.
If it is "hardened", they are moved by a publish with a confirm.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from benchmarks.clients.measuring import linger, run_async
from benchmarks.clients.round_trips import round_trips as open_round_trips
from benchmarks.workload import RETRY_TTL_MS
from hopback.broker.declare import Ownership
from hopback.broker.rabbitmq import RabbitMQ
from hopback.cli import tune_memory
from hopback.clock import SystemClock
from hopback.observe.events import Bus
from hopback.observe.logs import JsonLog
from hopback.policy.outcome import Retry
from hopback.runtime.app import App
from hopback.runtime.context import Context  # noqa: TC001 - handlers are read at run time
from hopback.runtime.service import Service, ServiceOptions
from hopback.runtime.settling import Environment
from hopback.topology.check import check
from hopback.topology.model import Queue, Topology
from hopback.topology.plan import Count, Leave, Parking, Plan, Redrive, Return, Route, Tier

if TYPE_CHECKING:
    from benchmarks.clients.measuring import Stopwatch
    from benchmarks.workload import Job


def _topology(job: Job) -> Topology:
    """Return a topology with the queues of the setup and a plan."""
    publishes = job.variant == "hardened" or job.scenario in ("fail", "park")
    # Failed messages stay in the target queue, where they are counted.
    waiting = job.target if job.scenario == "fail" else "bench.retry"
    plan = Plan(
        queue=job.queue,
        attempts=1 if job.scenario == "park" else 3,
        tiers=(Tier("retry", RETRY_TTL_MS, (Route("", waiting, waiting),)),),
        leave=Leave.PUBLISH if publishes else Leave.REJECT,
        returns=Return.QUEUE,
        parking=Parking(job.target, Leave.PUBLISH, "", job.target),
        count=Count.HEADER if publishes else Count.X_DEATH,
        redrive=Redrive("", job.queue),
    )
    queues = tuple(Queue(name) for name in (job.queue, "bench.retry", job.target))
    return Topology("benchmark", queues=queues, plans=(plan,))


def _environment(job: Job) -> Environment:
    """Return the same environment as `hopback run --http` or `--otel`."""
    match job.variant:
        case "metrics":
            from hopback.observe.metrics import Metrics

            return Environment(bus=Bus(JsonLog(SystemClock(), level="info"), Metrics()))
        case "unrecorded" | "recorded":
            from benchmarks.clients.tracing import start_tracing
            from hopback.runtime.tracing import trace_batch, trace_run

            start_tracing(recorded=job.variant == "recorded")
            return Environment(wrap_run=trace_run, observe_batch=trace_batch)
        case _:
            return Environment()


async def _serve(app: App, job: Job, watch: Stopwatch, finished: asyncio.Event) -> None:
    tune_memory()  # the command does the same
    accepted = {finding.rule for finding in check(app.topology)}
    options = ServiceOptions(ownership=Ownership.EXTERNAL, accept=accepted)
    service = Service(app, RabbitMQ(job.url), options=options, environment=_environment(job))
    # As for all other clients, the connection is opened before the measurement.
    consumer = service.consumer(job.queue)
    consumer.pause("until the watch runs")
    running = asyncio.create_task(service.run())
    await service.ready.wait()
    watch.start()
    consumer.resume("the watch runs")
    await finished.wait()
    watch.stop()
    await linger()
    service.stop()
    await running


async def consume(job: Job, watch: Stopwatch) -> None:
    app = App("benchmark", topology=_topology(job))
    done, finished = 0, asyncio.Event()

    @app.handler(job.queue, concurrency=100, prefetch=job.prefetch)
    async def handle(payload: dict) -> None:  # type: ignore[type-arg]
        nonlocal done
        if job.variant == "await":
            await asyncio.sleep(0)
        done += 1
        if done == job.count:
            finished.set()

    await _serve(app, job, watch, finished)


async def round_trips(job: Job, watch: Stopwatch) -> None:
    app = App("benchmark", topology=_topology(job))
    done, finished = 0, asyncio.Event()

    @app.handler(job.queue, concurrency=100, prefetch=job.prefetch)
    async def handle(payload: dict) -> None:  # type: ignore[type-arg]
        nonlocal done
        await trips.make()
        done += 1
        if done == job.count:
            finished.set()

    async with open_round_trips() as trips:
        await _serve(app, job, watch, finished)


async def fail(job: Job, watch: Stopwatch) -> None:
    """Let all messages fail. They are retried later, or parked if the plan only has one attempt."""
    app = App("benchmark", topology=_topology(job))
    done, finished = 0, asyncio.Event()

    @app.handler(job.queue, concurrency=100, prefetch=job.prefetch)
    async def handle(payload: dict) -> None:  # type: ignore[type-arg]
        nonlocal done
        done += 1
        if done == job.count:
            asyncio.get_running_loop().call_later(0.05, finished.set)
        raise ValueError("the warehouse does not know article 4711")

    await _serve(app, job, watch, finished)


async def retry(job: Job, watch: Stopwatch) -> None:
    app = App("benchmark", topology=_topology(job))
    done, finished = 0, asyncio.Event()

    @app.handler(job.queue, concurrency=100, prefetch=job.prefetch)
    async def handle(payload: dict, context: Context) -> Retry | None:  # type: ignore[type-arg]
        nonlocal done
        if context.attempt == 1:
            return Retry("the first time fails")
        done += 1
        if done == job.count:
            finished.set()
        return None

    await _serve(app, job, watch, finished)


if __name__ == "__main__":
    run_async(
        {
            "consume": consume,
            "round-trips": round_trips,
            "retry": retry,
            "fail": fail,
            "park": fail,
        }
    )
