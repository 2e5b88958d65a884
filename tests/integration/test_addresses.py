"""Programs that create a service, a publisher and a client before their event loop, by an address."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from hopback import App, Context, Publisher, RequestClient, Service
from hopback.broker import EmbeddedBroker
from hopback.broker.server import BrokerServer, ServerSettings
from hopback.errors import ConnectionFailed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hopback.broker import Broker


@pytest.mark.parametrize("kind", ["embedded", "hopback broker", "RabbitMQ"])
def test_service_publisher_and_client_can_be_created_without_loop(
    kind: str, request: pytest.FixtureRequest
) -> None:
    broker: Broker | str = EmbeddedBroker()
    if kind == "hopback broker":
        broker = request.getfixturevalue("hopback_broker").url
    elif kind == "RabbitMQ":
        broker = request.getfixturevalue("amqp_url")

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncGenerator[None]:
        using = asyncio.create_task(use())
        yield
        await using

    app, invoiced, both = App("shop", lifespan=lifespan), list[int](), asyncio.Event()

    @app.handler("orders", retry=["1s"], replies=True)
    def order(number: int, context: Context) -> int:
        """Runs in a thread, which publishes on the service's loop."""
        context.publish_sync("invoices", number)
        return number * number

    @app.batch("invoices", retry=["1s"], wait="10ms")
    async def invoices(numbers: list[int]) -> None:
        invoiced.extend(numbers)
        if len(invoiced) == 2:
            both.set()

    @app.every("1h")
    async def hourly() -> None: ...

    service, publisher, client = Service(app, broker), Publisher(broker), RequestClient(broker)

    async def use() -> None:
        await service.ready.wait()
        async with publisher, client:
            await publisher.publish("orders", 2)
            assert await client.request("orders", 3, returns=int) == 9
        await both.wait()
        service.stop()

    assert asyncio.run(service.run()).handled == 4
    assert sorted(invoiced) == [2, 3]


async def test_tls_address_of_a_plain_port_names_the_right_scheme() -> None:
    async with BrokerServer(ServerSettings(port=0, http_port=None)) as server:
        port = urlsplit(server.url).port
        with pytest.raises(ConnectionFailed, match=f"port {port} does not speak TLS. Use amqp://"):
            async with Publisher(f"amqps://localhost:{port}/"):
                pass


def test_broker_of_wrong_type_is_refused_with_address_form() -> None:
    wrong: Any = 5672
    for create in (
        lambda: Service(App("shop"), wrong),
        lambda: Publisher(wrong),
        lambda: RequestClient(wrong),
    ):
        with pytest.raises(TypeError, match=r"expected an address such as 'amqp://.*, got int"):
            create()
