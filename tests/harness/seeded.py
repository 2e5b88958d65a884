"""A small shop on the embedded broker, with failures and dead letters for tests of the page.

Orders fail with two errors, payments time out, and one queue is empty. Messages whose failure is
repaired succeed after a re-drive, the others fail again.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hopback.broker.declare import declare
from hopback.broker.embedded import EmbeddedBroker
from hopback.broker.embedded.management import EmbeddedManagement
from hopback.designs import DESIGNS
from hopback.message import Message, Properties
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import Settings
from hopback.ops.http import create_app
from hopback.ops.operations import Operations
from hopback.runtime.app import App
from hopback.runtime.service import Service
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from starlette.types import ASGIApp

__all__ = ["MAILS", "ORDERS", "PAYMENTS", "SeededService", "Shop", "publish", "seeded"]

_SEEDED = 50
ORDERS, PAYMENTS, MAILS = "orders.created", "payments.capture", "mails.send"


@dataclass
class Shop:
    """The application, and the failures that have been repaired."""

    app: App = field(default_factory=lambda: App("shop"))
    repaired: set[str] = field(default_factory=set)
    handled: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for queue, key in ((ORDERS, "order.created"), (PAYMENTS, "order.paid"), (MAILS, "mail.#")):
            self.app.handler(queue, retry=("30ms",), attempts=2, bind={"shop.events": key})(
                self._handle
            )

    async def _handle(self, payload: dict[str, Any]) -> None:
        trouble = payload.get("trouble", "")
        if trouble and trouble not in self.repaired:
            _TROUBLES[trouble](payload)
        self.handled.append(payload)


def _out_of_stock(payload: dict[str, Any]) -> None:
    raise LookupError(f"warehouse 7 does not know article {payload['article']}")


def _bad_address(payload: dict[str, Any]) -> None:
    raise ValueError(f"no postal code in the address of customer {payload['customer']}")


def _timeout(payload: dict[str, Any]) -> None:
    raise TimeoutError("the payment provider did not answer within 10 s")


_TROUBLES = {"stock": _out_of_stock, "address": _bad_address, "timeout": _timeout}


@dataclass(frozen=True, slots=True)
class SeededService:
    """The objects that a test may use."""

    broker: EmbeddedBroker
    operations: Operations
    shop: Shop
    asgi: ASGIApp


async def publish(broker: EmbeddedBroker, *messages: Message) -> None:
    """Publish messages like a producer and wait for the confirms."""
    connection = await broker.connect("producer")
    channel = await connection.open_channel()
    await asyncio.gather(*(channel.publish(message) for message in messages))
    await connection.close()


@asynccontextmanager
async def seeded(
    exports: Path | None = None, *, version: BrokerVersion | None = None, **admin: Any
) -> AsyncIterator[SeededService]:
    """Run the shop and wait until it has dead letters. `admin` is passed to `create_app`."""
    broker = EmbeddedBroker(version=version or BrokerVersion(4, 3))
    shop = Shop()
    service = Service(shop.app, broker)
    running = asyncio.create_task(service.run())
    await service.ready.wait()
    await _declare_others(broker)
    await publish(broker, *_orders())
    declared = (shop.app.topology, DESIGNS["file-pipeline"].build())
    view = EmbeddedManagement(broker)
    settings = Settings(exports=exports, editing=True)
    async with Operations(
        ManagedBroker(broker, management=view, topologies=declared), settings=settings
    ) as operations:
        await _wait_until_settled(operations)
        asgi = create_app(operations, **{"first_read_s": None, **admin})
        yield SeededService(broker, operations, shop, asgi)
    service.stop()
    await running


def _orders() -> list[Message]:
    troubles = ["stock"] * 9 + ["address"] * 4
    orders = [
        _message("order.created", "OrderCreated", number, trouble=trouble)
        for number, trouble in enumerate(troubles, 1001)
    ]
    payments = [
        _message("order.paid", "OrderPaid", number, trouble="timeout")
        for number in range(2001, 2038)
    ]
    return [*orders, *payments, _message("order.created", "OrderCreated", 3001)]


def _message(key: str, kind: str, number: int, **more: str) -> Message:
    body = {
        "order": {"id": number, "lines": [{"sku": f"A-{number % 7}", "quantity": 1 + number % 3}]},
        "article": f"A-{number % 7}",
        "customer": f"c-{number % 11}",
        **more,
    }
    properties = Properties(
        content_type="application/json",
        message_id=f"msg-{number}",
        type=kind,
        headers={"x-tenant": "acme" if number % 2 else "globex"},
    )
    return Message("shop.events", key, json.dumps(body).encode(), properties)


async def _declare_others(broker: EmbeddedBroker) -> None:
    """Declare the queues of the file pipeline, which stay empty."""
    connection = await broker.connect("declaring")
    await declare(connection, DESIGNS["file-pipeline"].build())
    await connection.close()


async def _wait_until_settled(operations: Operations) -> None:
    """Wait until all failed messages are in dead-letter queues."""
    async with asyncio.timeout(20):
        while sum(one.depth.total or 0 for one in await operations.queues()) < _SEEDED:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
