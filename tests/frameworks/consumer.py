"""A consumer written with another framework, and given a plan: `consumer.py KIND URL QUEUE LEDGER`.

It takes orders from a plain classic queue. One order in twelve fails at its first attempt, one in twelve
whenever it is tried, unless REPAIRED is set. What is done is a line of the ledger.
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
    """What is done about an order."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handle(self, order: dict[str, int], headers: dict[str, Any] | None) -> None:
        """Write it down, or fail."""
        number = order["number"]
        time.sleep(0.002)
        if number % 12 == 5 and "REPAIRED" not in os.environ:
            raise LookupError("no such item")
        if number % 12 == 3 and not (headers or {}).get("hopback-attempts"):
            raise ConnectionError("the stock is away")
        os.write(self._ledger, f"{number}\n".encode())


async def _until_told() -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()


async def with_aio_pika(url: str, queue_name: str, orders: Orders) -> None:
    """The idioms of its documentation."""
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
        await _until_told()


async def with_faststream(url: str, queue_name: str, orders: Orders) -> None:
    """A subscriber, its queue by the framework's own declaration."""
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
    """The blocking connection, and a callback that acks at its end."""
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
    """The asyncio adapter: a sync callback on the loop, which rejects by itself."""
    import pika
    from pika.adapters.asyncio_connection import AsyncioConnection  # type: ignore[import-untyped]

    from hopback.integrations.pika import PikaPlans

    parameters = pika.URLParameters(url)
    plans = PikaPlans(parameters)
    plans.queue(queue_name, retry=RETRY)
    await asyncio.to_thread(plans.start)
    over = asyncio.Event()

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
        on_close_callback=lambda *_: over.set(),
        on_open_error_callback=lambda *_: over.set(),
    )
    told = asyncio.create_task(_until_told())
    ended = asyncio.create_task(over.wait())
    await asyncio.wait({told, ended}, return_when=asyncio.FIRST_COMPLETED)
    if told.done():
        connection.close()
        await ended
    await asyncio.to_thread(plans.close)


KINDS = {
    "aio-pika": with_aio_pika,
    "faststream": with_faststream,
    "pika": with_pika,
    "pika-asyncio": with_pika_asyncio,
}


def main(kind: str, url: str, queue: str, ledger: str) -> None:
    """Consume until SIGTERM."""
    working = KINDS[kind](url, queue, Orders(Path(ledger)))
    if working is not None:
        asyncio.run(working)


if __name__ == "__main__":
    main(*sys.argv[1:])
