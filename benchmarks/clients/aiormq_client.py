"""aiormq, which aio-pika is based on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiormq

from benchmarks.clients.measuring import Stopwatch, linger, run_async

if TYPE_CHECKING:
    from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage

    from benchmarks.workload import Job

_PROPERTIES = aiormq.spec.Basic.Properties(content_type="application/json", delivery_mode=2)


async def _open(job: Job) -> tuple[AbstractConnection, AbstractChannel]:
    connection = await aiormq.connect(job.url)
    channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
    await channel.basic_qos(prefetch_count=job.prefetch)
    return connection, channel


async def _send(channel: AbstractChannel, body: bytes, key: str) -> None:
    await channel.basic_publish(body, routing_key=key, properties=_PROPERTIES, mandatory=True)


async def consume(job: Job, watch: Stopwatch) -> None:
    connection, channel = await _open(job)
    done, finished = 0, asyncio.Event()

    async def on_message(message: DeliveredMessage) -> None:
        nonlocal done
        await channel.basic_ack(message.delivery_tag)
        done += 1
        if done == job.count:
            finished.set()

    watch.start()
    await channel.basic_consume(job.queue, on_message)
    await finished.wait()
    watch.stop()
    await linger()
    await connection.close()


async def publish(job: Job, watch: Stopwatch) -> None:
    connection, channel = await _open(job)
    room, body = asyncio.Semaphore(job.window), job.bytes

    async def send() -> None:
        await _send(channel, body, job.queue)
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
        await _send(channel, job.bytes, job.queue)
    watch.stop()
    await linger()
    await connection.close()


async def move(job: Job, watch: Stopwatch) -> None:
    connection, channel = await _open(job)
    done, finished = 0, asyncio.Event()

    async def on_message(message: DeliveredMessage) -> None:
        nonlocal done
        await _send(channel, message.body, job.target)
        await channel.basic_ack(message.delivery_tag)
        done += 1
        if done == job.count:
            finished.set()

    watch.start()
    await channel.basic_consume(job.queue, on_message)
    await finished.wait()
    watch.stop()
    await linger()
    await connection.close()


async def retry(job: Job, watch: Stopwatch) -> None:
    connection, channel = await _open(job)
    done, finished = 0, asyncio.Event()

    async def on_message(message: DeliveredMessage) -> None:
        nonlocal done
        if message.routing_key == "first":
            await channel.basic_nack(message.delivery_tag, requeue=False)
            return
        await channel.basic_ack(message.delivery_tag)
        done += 1
        if done == job.count:
            finished.set()

    watch.start()
    await channel.basic_consume(job.queue, on_message)
    await finished.wait()
    watch.stop()
    await linger()
    await connection.close()


if __name__ == "__main__":
    run_async(
        {
            "consume": consume,
            "publish": publish,
            "publish-one": publish_one,
            "move": move,
            "retry": retry,
        }
    )
