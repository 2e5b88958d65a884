"""aio-pika, used as in its documentation: `queue.consume` with an async callback."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import aio_pika

from benchmarks.clients.measuring import Stopwatch, linger, run_async
from benchmarks.clients.round_trips import round_trips as open_round_trips

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage

    from benchmarks.workload import Job


async def _open(job: Job) -> tuple[AbstractConnection, AbstractChannel]:
    connection = await aio_pika.connect(job.url)
    channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
    await channel.set_qos(prefetch_count=job.prefetch)
    return connection, channel


def _message(body: bytes) -> aio_pika.Message:
    return aio_pika.Message(
        body, content_type="application/json", delivery_mode=aio_pika.DeliveryMode.PERSISTENT
    )


async def consume(job: Job, watch: Stopwatch) -> None:
    connection, channel = await _open(job)
    queue = await channel.get_queue(job.queue, ensure=False)
    done, finished = 0, asyncio.Event()

    async def on_message(message: AbstractIncomingMessage) -> None:
        nonlocal done
        if job.variant == "await":
            await asyncio.sleep(0)
        await message.ack()
        done += 1
        if done == job.count:
            finished.set()

    watch.start()
    await queue.consume(_with_metrics(on_message, job) if job.variant == "metrics" else on_message)
    await finished.wait()
    watch.stop()
    await linger()
    await connection.close()


async def round_trips(job: Job, watch: Stopwatch) -> None:
    connection, channel = await _open(job)
    queue = await channel.get_queue(job.queue, ensure=False)
    done, finished = 0, asyncio.Event()

    async def on_message(message: AbstractIncomingMessage) -> None:
        nonlocal done
        async with message.process():
            await trips.make()
        done += 1
        if done == job.count:
            finished.set()

    async with open_round_trips() as trips:
        watch.start()
        await queue.consume(on_message)
        await finished.wait()
        watch.stop()
        await linger()
    await connection.close()


def _with_metrics(
    handle: Callable[[AbstractIncomingMessage], Awaitable[None]], job: Job
) -> Callable[[AbstractIncomingMessage], Awaitable[None]]:
    """Wrap a callback with a counter and a histogram per queue, like an application with metrics."""
    from prometheus_client import Counter, Histogram

    done = Counter("deliveries", "By outcome.", ("queue", "outcome"))
    seconds = Histogram("handler_seconds", "How long handlers ran.", ("queue",))

    async def handle_counted(message: AbstractIncomingMessage) -> None:
        began = time.perf_counter()
        await handle(message)
        seconds.labels(job.queue).observe(time.perf_counter() - began)
        done.labels(job.queue, "done").inc()

    return handle_counted


async def publish(job: Job, watch: Stopwatch) -> None:
    connection, channel = await _open(job)
    exchange, room, body = channel.default_exchange, asyncio.Semaphore(job.window), job.bytes

    async def send() -> None:
        await exchange.publish(_message(body), job.queue)
        room.release()

    watch.start()
    async with asyncio.TaskGroup() as group:
        for _ in range(job.count):
            await room.acquire()
            group.create_task(send())
    watch.stop()
    await linger()
    await connection.close()


async def publish_one(job: Job, watch: Stopwatch) -> None:
    connection, channel = await _open(job)
    watch.start()
    for _ in range(job.count):
        await channel.default_exchange.publish(_message(job.bytes), job.queue)
    watch.stop()
    await linger()
    await connection.close()


async def move(job: Job, watch: Stopwatch) -> None:
    connection, channel = await _open(job)
    queue = await channel.get_queue(job.queue, ensure=False)
    done, finished = 0, asyncio.Event()

    async def on_message(message: AbstractIncomingMessage) -> None:
        nonlocal done
        await channel.default_exchange.publish(_message(message.body), job.target)
        await message.ack()
        done += 1
        if done == job.count:
            finished.set()

    watch.start()
    await queue.consume(on_message)
    await finished.wait()
    watch.stop()
    await linger()
    await connection.close()


async def retry(job: Job, watch: Stopwatch) -> None:
    connection, channel = await _open(job)
    queue = await channel.get_queue(job.queue, ensure=False)
    done, finished = 0, asyncio.Event()

    async def on_message(message: AbstractIncomingMessage) -> None:
        nonlocal done
        if message.routing_key == "first":
            await message.nack(requeue=False)
            return
        await message.ack()
        done += 1
        if done == job.count:
            finished.set()

    watch.start()
    await queue.consume(on_message)
    await finished.wait()
    watch.stop()
    await linger()
    await connection.close()


if __name__ == "__main__":
    run_async(
        {
            "consume": consume,
            "round-trips": round_trips,
            "publish": publish,
            "publish-one": publish_one,
            "move": move,
            "move-real": move,
            "fail": move,
            "park": move,
            "retry": retry,
        }
    )
