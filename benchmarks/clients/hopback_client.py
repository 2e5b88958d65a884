"""Hopback's broker port with an async callback. Each message is settled separately.

If the variant is "", the callback is run directly, and a task is only created if it suspends.
"task" creates a task for each message. "uvloop" is the same as "" on another event loop. "bare"
publishes messages one by one and only uses asyncio.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from benchmarks.clients.measuring import Stopwatch, linger, run_async
from benchmarks.clients.round_trips import AT_ONCE
from benchmarks.clients.round_trips import round_trips as open_round_trips
from benchmarks.workload import Job
from hopback.broker.rabbitmq import RabbitMQ
from hopback.cli import tune_memory
from hopback.message import Message, Properties
from hopback.wire.frames import METHOD, MIN_FRAME, content_frames, frame
from hopback.wire.methods import METHODS, encode_arguments
from hopback.wire.properties import encode_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hopback.broker.port import Channel, Connection
    from hopback.message import Delivery

_PROPERTIES = Properties(content_type="application/json", delivery_mode=2)


async def _open(job: Job) -> tuple[Connection, Channel]:
    connection = await RabbitMQ(job.url).connect("benchmark")
    channel = await connection.open_channel()
    await channel.qos(job.prefetch)
    return connection, channel


async def _noop(delivery: Delivery) -> None:
    """The handler of all rows that consume."""


def _at_once(work: Coroutine[None, None, None]) -> asyncio.Task[None] | None:
    """Run a coroutine that does not suspend."""
    try:
        work.send(None)
    except StopIteration:
        return None
    raise RuntimeError("the handler of this benchmark never suspends")


async def consume(job: Job, watch: Stopwatch) -> None:
    connection, channel = await _open(job)
    finished = asyncio.Event()
    ack, count, done = channel.ack, job.count, 0

    def on_delivery(delivery: Delivery) -> None:
        nonlocal done
        _at_once(_noop(delivery))
        ack(delivery.tag)
        done += 1
        if done == count:
            finished.set()

    async def handle(delivery: Delivery) -> None:
        nonlocal done
        await _noop(delivery)
        ack(delivery.tag)
        done += 1
        if done == count:
            finished.set()

    def on_delivery_task(delivery: Delivery) -> None:
        task = loop.create_task(handle(delivery))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()
    chosen: Callable[[Delivery], None] = on_delivery_task if job.variant == "task" else on_delivery
    watch.start()
    await channel.consume(job.queue, chosen)
    await finished.wait()
    watch.stop()
    await linger()
    await connection.close()


async def publish(job: Job, watch: Stopwatch) -> None:
    """Keep `window` publishes in flight. Each one has a future that is checked."""
    connection, channel = await _open(job)
    message = Message("", job.queue, job.bytes, _PROPERTIES)
    finished = asyncio.get_running_loop().create_future()
    sent = confirmed = 0

    def send() -> None:
        nonlocal sent
        while sent < job.count and sent - confirmed < job.window:
            sent += 1
            channel.publish(message).add_done_callback(on_confirm)

    def on_confirm(fate: asyncio.Future[None]) -> None:
        nonlocal confirmed
        fate.result()
        confirmed += 1
        if confirmed == job.count:
            finished.set_result(None)
        send()

    watch.start()
    send()
    await finished
    watch.stop()
    await linger()
    await connection.close()


async def publish_one(job: Job, watch: Stopwatch) -> None:
    connection, channel = await _open(job)
    message = Message("", job.queue, job.bytes, _PROPERTIES)
    watch.start()
    for _ in range(job.count):
        await channel.publish(message)
    watch.stop()
    await linger()
    await connection.close()


class _ConfirmProtocol(asyncio.Protocol):
    """A protocol that treats all received data as the expected confirm."""

    def __init__(self) -> None:
        self.confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.confirmed.set_result(None)


async def publish_bare(job: Job, watch: Stopwatch) -> None:
    """Publish messages with asyncio only. The frames are prepared, and confirms are not parsed."""
    connection, _ = await _open(job)
    loop, protocol, frames = asyncio.get_running_loop(), _ConfirmProtocol(), list[bytes]()
    arguments = {"exchange": "", "routing_key": job.queue, "mandatory": True}
    method = frame(METHOD, 1, encode_arguments(METHODS["basic.publish"], arguments))
    content_frames(frames, 1, method, encode_properties(_PROPERTIES), job.bytes, MIN_FRAME)
    message = b"".join(frames)
    transport = connection.wire._transport  # type: ignore[attr-defined]  # noqa: SLF001
    original = transport.get_protocol()
    transport.set_protocol(protocol)
    watch.start()
    for _ in range(job.count):
        protocol.confirmed = loop.create_future()
        transport.write(message)
        await protocol.confirmed
    watch.stop()
    transport.set_protocol(original)
    await linger()
    await connection.close()


async def round_trips(job: Job, watch: Stopwatch) -> None:
    """Run a hundred tasks that take a delivery, make the round trips and ack it. This measures the
    broker port without an application.
    """
    tune_memory()  # the command does the same
    connection, channel = await _open(job)
    arrived: asyncio.Queue[Delivery] = asyncio.Queue()
    finished, done = asyncio.Event(), 0

    async def work() -> None:
        nonlocal done
        while True:
            delivery = await arrived.get()
            await trips.make()
            channel.ack(delivery.tag)
            done += 1
            if done == job.count:
                finished.set()

    async with open_round_trips() as trips:
        tasks = [asyncio.create_task(work()) for _ in range(AT_ONCE)]
        watch.start()
        await channel.consume(job.queue, arrived.put_nowait)
        await finished.wait()
        watch.stop()
        for task in tasks:
            task.cancel()
    await linger()
    await connection.close()


async def move(job: Job, watch: Stopwatch) -> None:
    connection, channel = await _open(job)
    finished = asyncio.Event()
    done = 0

    def on_delivery(delivery: Delivery) -> None:
        message = Message("", job.target, delivery.body, _PROPERTIES)
        tag = delivery.tag

        def settle(fate: asyncio.Future[None]) -> None:
            nonlocal done
            fate.result()
            channel.ack(tag)
            done += 1
            if done == job.count:
                finished.set()

        channel.publish(message).add_done_callback(settle)

    watch.start()
    await channel.consume(job.queue, on_delivery)
    await finished.wait()
    watch.stop()
    await linger()
    await connection.close()


async def retry(job: Job, watch: Stopwatch) -> None:
    connection, channel = await _open(job)
    finished = asyncio.Event()
    done = 0

    def on_delivery(delivery: Delivery) -> None:
        nonlocal done
        if delivery.routing_key == "first":
            channel.nack(delivery.tag, requeue=False)
            return
        channel.ack(delivery.tag)
        done += 1
        if done == job.count:
            finished.set()

    watch.start()
    await channel.consume(job.queue, on_delivery)
    await finished.wait()
    watch.stop()
    await linger()
    await connection.close()


async def flow(job: Job, watch: Stopwatch) -> None:
    """Publish and consume at the same time, so that the queue stays short. The memory is recorded."""
    connection, channel = await _open(job)
    message = Message("", job.queue, job.bytes, _PROPERTIES)
    finished = asyncio.Event()
    every = max(1, job.count // 40)
    sent = confirmed = done = 0

    def send() -> None:
        nonlocal sent
        room = min(job.window + confirmed, 2 * job.window + done, job.count)
        while sent < room:
            sent += 1
            channel.publish(message).add_done_callback(on_confirm)

    def on_confirm(fate: asyncio.Future[None]) -> None:
        nonlocal confirmed
        fate.result()
        confirmed += 1
        send()

    def on_delivery(delivery: Delivery) -> None:
        nonlocal done
        channel.ack(delivery.tag)
        done += 1
        if done % every == 0:
            watch.sample(done)
        if done == job.count:
            finished.set()
        send()

    watch.start()
    await channel.consume(job.queue, on_delivery)
    send()
    await finished.wait()
    watch.stop()
    await linger()
    await connection.close()


if __name__ == "__main__":
    variant = Job.from_json(sys.argv[1]).variant
    if variant == "uvloop":
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    run_async(
        {
            "consume": consume,
            "publish": publish,
            "publish-one": publish_bare if variant == "bare" else publish_one,
            "round-trips": round_trips,
            "move": move,
            "retry": retry,
            "flow": flow,
        }
    )
