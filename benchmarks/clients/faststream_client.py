"""FastStream with a subscriber for bytes and without logging."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

from benchmarks.clients.measuring import Stopwatch, linger, run_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.workload import Job


def _broker(job: Job) -> RabbitBroker:
    channel = Channel(prefetch_count=job.prefetch, publisher_confirms=True, on_return_raises=True)
    return RabbitBroker(
        job.url, logger=None, default_channel=channel, middlewares=_middlewares(job)
    )


def _middlewares(job: Job) -> tuple[Any, ...]:
    """Return the metrics middleware of FastStream if the variant has metrics."""
    if job.variant != "metrics":
        return ()
    from faststream.rabbit.prometheus import RabbitPrometheusMiddleware
    from prometheus_client import CollectorRegistry

    return (RabbitPrometheusMiddleware(registry=CollectorRegistry()),)


async def _undecoded(message: Any) -> bytes:
    """Return the body unchanged. Otherwise FastStream would decode it."""
    return bytes(message.body)


async def _subscribe(
    job: Job,
    watch: Stopwatch,
    broker: RabbitBroker,
    handle: Callable[[bytes], Awaitable[object]] | None,
) -> None:
    done, finished = 0, asyncio.Event()

    @broker.subscriber(RabbitQueue(job.queue, declare=False), decoder=_undecoded)
    async def on_message(body: bytes) -> None:
        nonlocal done
        if handle is not None:
            await handle(body)
        done += 1
        if done == job.count:
            finished.set()

    await broker.connect()
    watch.start()
    await broker.start()
    await finished.wait()
    watch.stop()
    await linger()
    await broker.stop()


async def consume(job: Job, watch: Stopwatch) -> None:
    await _subscribe(job, watch, _broker(job), None)


async def move(job: Job, watch: Stopwatch) -> None:
    broker = _broker(job)

    async def send(body: bytes) -> None:
        await broker.publish(body, job.target, persist=True, content_type="application/json")

    await _subscribe(job, watch, broker, send)


async def publish(job: Job, watch: Stopwatch) -> None:
    room, body = asyncio.Semaphore(job.window), job.bytes
    async with _broker(job) as broker:
        await broker.start()

        async def send() -> None:
            await broker.publish(body, job.queue, persist=True, content_type="application/json")
            room.release()

        watch.start()
        async with asyncio.TaskGroup() as group:
            for _ in range(job.count):
                await room.acquire()
                group.create_task(send())
        watch.stop()
        await linger()


async def publish_one(job: Job, watch: Stopwatch) -> None:
    async with _broker(job) as broker:
        await broker.start()
        watch.start()
        for _ in range(job.count):
            await broker.publish(
                job.bytes, job.queue, persist=True, content_type="application/json"
            )
        watch.stop()
        await linger()


if __name__ == "__main__":
    run_async({"consume": consume, "publish": publish, "publish-one": publish_one, "move": move})
