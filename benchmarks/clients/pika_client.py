"""pika with its asyncio adapter and callbacks. Confirms are counted by their delivery tag."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from benchmarks.clients.measuring import Stopwatch, linger, run_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.workload import Job

_PROPERTIES = pika.BasicProperties(content_type="application/json", delivery_mode=2)


async def _open(job: Job) -> tuple[AsyncioConnection, Any]:
    loop = asyncio.get_running_loop()
    connected: asyncio.Future[AsyncioConnection] = loop.create_future()
    opened: asyncio.Future[Any] = loop.create_future()
    parameters = pika.URLParameters(job.url)
    AsyncioConnection(
        parameters,
        on_open_callback=connected.set_result,
        on_open_error_callback=lambda _, error: connected.set_exception(error),
    )
    connection = await connected
    connection.channel(on_open_callback=opened.set_result)
    channel = await opened
    ready = loop.create_future()
    channel.basic_qos(prefetch_count=job.prefetch, callback=ready.set_result)
    await ready
    return connection, channel


async def _close(connection: AsyncioConnection) -> None:
    closed = asyncio.get_running_loop().create_future()
    connection.add_on_close_callback(lambda *_: closed.set_result(None))
    connection.close()
    await closed


class Confirms:
    """Tracks the confirms of publishes. pika does not do this itself."""

    def __init__(self, channel: Any, on_confirm: Callable[[int], None]) -> None:
        self._on_confirmed = on_confirm
        self._waiting: dict[int, None] = {}
        self._sent = 0
        self._channel = channel

    async def select(self) -> None:
        ready = asyncio.get_running_loop().create_future()
        self._channel.confirm_delivery(self._on_frame, callback=ready.set_result)
        await ready

    def send(self, body: bytes, key: str, exchange: str = "") -> int:
        self._sent += 1
        self._waiting[self._sent] = None
        self._channel.basic_publish(exchange, key, body, _PROPERTIES, mandatory=True)
        return self._sent

    def _on_frame(self, frame: Any) -> None:
        if not isinstance(frame.method, pika.spec.Basic.Ack):
            raise TypeError("a publish was refused")
        tag = frame.method.delivery_tag
        if not frame.method.multiple:
            confirmed = [tag]
        else:
            confirmed = [number for number in self._waiting if number <= tag]
        for number in confirmed:
            del self._waiting[number]
            self._on_confirmed(number)


async def consume(job: Job, watch: Stopwatch) -> None:
    connection, channel = await _open(job)
    done, finished = 0, asyncio.Event()

    def on_message(_: Any, method: Any, properties: Any, body: bytes) -> None:
        nonlocal done
        channel.basic_ack(method.delivery_tag)
        done += 1
        if done == job.count:
            finished.set()

    receive: Any = (
        _with_tracing(on_message, job) if job.variant.endswith("recorded") else on_message
    )
    watch.start()
    channel.basic_consume(job.queue, receive)
    await finished.wait()
    watch.stop()
    await linger()
    await _close(connection)


def _with_tracing(callback: Callable[..., None], job: Job) -> Callable[..., None]:
    """Wrap a callback in the same way as OpenTelemetry's instrumentation of pika.

    The context from the headers is attached, and a consumer span is started in it. If it is
    recorded, it has the same attributes as in the instrumentation. The callback runs within the
    span.
    """
    from opentelemetry import context, propagate, trace

    from benchmarks.clients.tracing import start_tracing

    start_tracing(recorded=job.variant == "recorded")
    tracer = trace.get_tracer("pika")

    def receive(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        token = context.attach(propagate.extract(properties.headers or {}))
        destination = method.exchange or method.routing_key
        span = tracer.start_span(f"{destination} receive", kind=trace.SpanKind.CONSUMER)
        if span.is_recording():
            span.set_attribute("messaging.system", "rabbitmq")
            span.set_attribute("messaging.operation", "receive")
            span.set_attribute("messaging.destination", destination)
            span.set_attribute("net.peer.name", job.host)
            span.set_attribute("net.peer.port", job.port)
        try:
            with trace.use_span(span, end_on_exit=True):
                callback(channel, method, properties, body)
        finally:
            context.detach(token)

    return receive


async def _publish(
    job: Job, watch: Stopwatch, window: int, exchange: str = "", key: str = ""
) -> None:
    connection, channel = await _open(job)
    confirmed, sent, body, finished = 0, 0, job.bytes, asyncio.Event()

    def send() -> None:
        nonlocal sent
        while sent < job.count and sent - confirmed < window:
            sent += 1
            confirms.send(body, key or job.queue, exchange)

    def on_confirmed(_: int) -> None:
        nonlocal confirmed
        confirmed += 1
        if confirmed == job.count:
            finished.set()
        send()

    confirms = Confirms(channel, on_confirmed)
    await confirms.select()
    watch.start()
    send()
    await finished.wait()
    watch.stop()
    await linger()
    await _close(connection)


async def publish(job: Job, watch: Stopwatch) -> None:
    await _publish(job, watch, job.window)


async def publish_one(job: Job, watch: Stopwatch) -> None:
    await _publish(job, watch, 1)


async def move(job: Job, watch: Stopwatch) -> None:
    connection, channel = await _open(job)
    tags: dict[int, int] = {}
    done, finished = 0, asyncio.Event()

    def on_confirmed(number: int) -> None:
        nonlocal done
        channel.basic_ack(tags.pop(number))
        done += 1
        if done == job.count:
            finished.set()

    def on_message(_: Any, method: Any, properties: Any, body: bytes) -> None:
        tags[confirms.send(body, job.target)] = method.delivery_tag

    confirms = Confirms(channel, on_confirmed)
    await confirms.select()
    watch.start()
    channel.basic_consume(job.queue, on_message)
    await finished.wait()
    watch.stop()
    await linger()
    await _close(connection)


async def retry(job: Job, watch: Stopwatch) -> None:
    connection, channel = await _open(job)
    done, finished = 0, asyncio.Event()

    def on_message(_: Any, method: Any, properties: Any, body: bytes) -> None:
        nonlocal done
        if method.routing_key == "first":
            channel.basic_nack(method.delivery_tag, requeue=False)
            return
        channel.basic_ack(method.delivery_tag)
        done += 1
        if done == job.count:
            finished.set()

    watch.start()
    channel.basic_consume(job.queue, on_message)
    await finished.wait()
    watch.stop()
    await linger()
    await _close(connection)


async def fill(job: Job, watch: Stopwatch) -> None:
    """Fill a queue. The driver uses this if there is no C compiler."""
    await _publish(job, watch, job.window, job.target, "first" if job.target else job.queue)


if __name__ == "__main__":
    run_async(
        {
            "consume": consume,
            "publish": publish,
            "publish-one": publish_one,
            "move": move,
            "retry": retry,
            "fill": fill,
        }
    )
