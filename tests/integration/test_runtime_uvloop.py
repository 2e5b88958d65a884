"""On uvloop, the quicker event loop of the extra `speed`: the wire, an application, and a cut connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from hopback import App, Context, Publisher, RabbitMQ, Service, compose
from hopback.broker.supervise import Backoff
from hopback.errors import Returned
from hopback.observe.events import Bus
from hopback.runtime import Environment
from hopback.topology import Queue
from tests.integration.proxy import Proxy
from tests.integration.waiting import until

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from hopback.message import Delivery

pytestmark = pytest.mark.broker


def _on_uvloop(work: Coroutine[Any, Any, None]) -> None:
    async def check() -> None:
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        async with asyncio.timeout(60):
            await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check())


def test_connection_runs_on_uvloop(amqp_url: str) -> None:
    """Confirmed publishes, a return, prefetch, and bodies larger than a frame."""

    async def play() -> None:
        connection = await RabbitMQ(amqp_url).connect("test")
        channel = await connection.open_channel()
        await channel.declare_queue(Queue("q"))
        bodies = [bytes([n]) * (n * 5_000) for n in range(60)]
        await asyncio.gather(*(channel.publish(compose("q", body)) for body in bodies))
        with pytest.raises(Returned):
            await channel.publish(compose("nowhere", b""))
        got: list[Delivery] = []
        await channel.qos(7)

        def on_delivery(delivery: Delivery) -> None:
            got.append(delivery)
            channel.ack(delivery.tag)

        await channel.consume("q", on_delivery)
        await until(lambda: len(got) == len(bodies))
        assert [one.body for one in got] == bodies
        await connection.close()

    _on_uvloop(play())


def test_application_runs_on_uvloop(amqp_url: str) -> None:
    """Retries, sync handlers in threads, a cut connection and shutdown."""

    async def play() -> None:
        app, done, told = App("shop"), set[int](), list[str]()

        @app.handler("orders", retry=["50ms"], deadline=10)
        async def handle(number: int, context: Context) -> None:
            if context.attempt == 1 and number % 10 == 0:
                raise ValueError("once more")
            await context.publish("invoices", number)

        @app.handler("invoices", retry=["50ms"])
        def write(number: int) -> None:
            done.add(number)

        async with Proxy(amqp_url) as proxy, Publisher(RabbitMQ(amqp_url)) as publisher:
            environment = Environment(
                bus=Bus(lambda name, _fields: told.append(name)),
                backoff=Backoff(first=0.05, most=0.2),
            )
            service = Service(app, RabbitMQ(proxy.url), environment=environment)
            running = asyncio.create_task(service.run())
            await service.ready.wait()
            for number in range(100):
                await publisher.publish("orders", number)
                if number == 50:
                    proxy.cut()
            await until(lambda: len(done) == 100)
            await until(lambda: not any(one.in_flight for one in service.consumers))
            service.stop()
            report = await running
        assert report.clean
        assert told.count("delivery.retried") >= 10

    _on_uvloop(play())
