"""A consumer of another framework with a plan: `consumer.py KIND URL QUEUE LEDGER`.

It consumes orders from a plain classic queue. One order in twelve fails at its first attempt.
Another one in twelve fails at every attempt, unless REPAIRED is set. Each handled order is a line
of the ledger.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from faststream.rabbit import RabbitMessage  # noqa: TC002 - found by its annotation at run time

RETRY = ["100ms", "200ms"]


class Orders:
    """The handler of orders, which writes the ledger."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handle(self, order: dict[str, int], headers: dict[str, Any] | None) -> None:
        """Record the order or raise an error."""
        number = order["number"]
        time.sleep(0.002)
        if number % 12 == 5 and "REPAIRED" not in os.environ:
            raise LookupError("no such item")
        if number % 12 == 3 and not (headers or {}).get("hopback-attempts"):
            raise ConnectionError("the stock is unreachable")
        os.write(self._ledger, f"{number}\n".encode())


async def _wait_for_sigterm() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


async def with_aio_pika(url: str, queue_name: str, orders: Orders) -> None:
    """Consume as aio-pika's documentation shows."""
    import aio_pika

    from hopback.integrations.aio_pika import AioPikaPlans

    connection = await aio_pika.connect_robust(url, reconnect_interval=1)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=10)
    queue = await channel.declare_queue(queue_name, durable=True)

    async def on_message(message: Any) -> None:
        async with message.process():
            orders.handle(json.loads(message.body), message.headers)

    plans = AioPikaPlans(connection)
    plans.queue(queue_name, retry=RETRY)
    async with connection, plans:
        await plans.consume(queue, on_message)
        await _wait_for_sigterm()


async def with_faststream(url: str, queue_name: str, orders: Orders) -> None:
    """Consume with a subscriber whose queue FastStream declares."""
    from faststream import FastStream
    from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

    from hopback.integrations.faststream import FastStreamPlans

    broker = RabbitBroker(url, reconnect_interval=1, default_channel=Channel(prefetch_count=10))
    plans = FastStreamPlans(broker)
    plans.queue(queue_name, retry=RETRY)

    @broker.subscriber(RabbitQueue(queue_name, durable=True))
    async def on_order(order: dict[str, int], message: RabbitMessage) -> None:
        orders.handle(order, message.headers)

    app = FastStream(broker, on_startup=[plans.start], after_shutdown=[plans.close])
    await app.run()


def with_pika(url: str, queue_name: str, orders: Orders) -> None:
    """Consume with the blocking connection. The callback acks at its end."""
    import pika  # type: ignore[import-untyped]

    from hopback.integrations.pika import PikaPlans

    parameters = pika.URLParameters(url)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.queue_declare(queue_name, durable=True)
    channel.basic_qos(prefetch_count=10)

    def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        orders.handle(json.loads(body), properties.headers)
        channel.basic_ack(method.delivery_tag)

    def stop(*_: object) -> None:
        connection.add_callback_threadsafe(channel.stop_consuming)

    signal.signal(signal.SIGTERM, stop)
    with PikaPlans(parameters) as plans:
        plans.queue(queue_name, retry=RETRY)
        plans.consume(channel, queue_name, on_message)
        channel.start_consuming()
    connection.close()


async def with_pika_asyncio(url: str, queue_name: str, orders: Orders) -> None:
    """Consume with the asyncio adapter. A sync callback on the loop nacks failed messages."""
    import pika
    from pika.adapters.asyncio_connection import AsyncioConnection  # type: ignore[import-untyped]

    from hopback.integrations.pika import PikaPlans

    parameters = pika.URLParameters(url)
    plans = PikaPlans(parameters)
    plans.queue(queue_name, retry=RETRY)
    await asyncio.to_thread(plans.start)
    closed = asyncio.Event()

    def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        try:
            orders.handle(json.loads(body), properties.headers)
        except (ConnectionError, LookupError):
            channel.basic_nack(method.delivery_tag, requeue=True)
        else:
            channel.basic_ack(method.delivery_tag)

    def on_channel(channel: Any) -> None:
        channel.basic_qos(prefetch_count=10)
        plans.consume(channel, queue_name, on_message)

    connection = AsyncioConnection(
        parameters,
        on_open_callback=lambda opened: opened.channel(on_open_callback=on_channel),
        on_close_callback=lambda *_: closed.set(),
        on_open_error_callback=lambda *_: closed.set(),
    )
    stop = asyncio.create_task(_wait_for_sigterm())
    end = asyncio.create_task(closed.wait())
    await asyncio.wait({stop, end}, return_when=asyncio.FIRST_COMPLETED)
    if stop.done():
        connection.close()
        await end
    await asyncio.to_thread(plans.close)


KINDS = {
    "aio-pika": with_aio_pika,
    "faststream": with_faststream,
    "pika": with_pika,
    "pika-asyncio": with_pika_asyncio,
}


def main(kind: str, url: str, queue: str, ledger: str) -> None:
    coroutine = KINDS[kind](url, queue, Orders(Path(ledger)))
    if coroutine is not None:
        asyncio.run(coroutine)


if __name__ == "__main__":
    main(*sys.argv[1:])
