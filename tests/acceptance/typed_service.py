"""A service as users write it: mypy and pyright accept it, both in their strict mode."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

from hopback import (
    App,
    Context,
    Depends,
    Feed,
    Outcome,
    Park,
    Publisher,
    RabbitMQ,
    Retry,
    Router,
    Rule,
    Service,
    Snooze,
    SyncPublisher,
    Verdict,
)
from hopback.broker import EmbeddedBroker
from hopback.ops import ManagedBroker, Operations, RedriveRequest, Selection
from hopback.testing import AppTest, in_virtual_time
from hopback.topology import read_toml
from hopback.topology.check import check

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@dataclass
class Order:
    """A payload."""

    number: int
    urgent: bool = False


class Warehouse:
    """Something that a handler needs."""

    async def take(self, number: int) -> bool:
        """Whether there is one."""
        return number > 0


async def open_warehouse() -> AsyncGenerator[Warehouse]:
    """A dependency."""
    yield Warehouse()


@asynccontextmanager
async def lifespan(
    app: App, warehouse: Annotated[Warehouse, Depends(open_warehouse, scope="application")]
) -> AsyncGenerator[None]:
    """Setup and teardown around the whole run."""
    await warehouse.take(1)
    yield


app = App("shop", lifespan=lifespan)
router = Router("eu.")


@app.handler(
    "orders",
    retry=("30s", timedelta(minutes=5)),
    bind=Feed.topic("shop.events", "order.*"),
    rules=[Rule(KeyError, Verdict.PARK)],
)
async def handle(
    order: Order, context: Context, warehouse: Annotated[Warehouse, Depends(open_warehouse)]
) -> Outcome | None:
    """Every outcome."""
    if not await warehouse.take(order.number):
        return Park("there is none")
    if order.urgent and context.attempt == 1:
        return Retry("not yet", after=timedelta(seconds=5))
    if context.attempt > 2:
        return Snooze(60)
    await context.publish("invoices", {"order": order.number}, priority=3)
    return None


@router.handler("invoices", retry=None)
def invoice(invoice: dict[str, int]) -> None:
    """A sync handler of a router."""


app.include(router)


async def publish(url: str) -> None:
    """From anywhere."""
    async with Publisher(RabbitMQ(url)) as publisher:
        await publisher.publish("orders", Order(1))


def publish_from_a_view(url: str) -> None:
    """From code that does not wait."""
    with SyncPublisher(url) as publisher:
        publisher.publish("orders", {"number": 1})


async def operate(broker: EmbeddedBroker) -> int:
    """Look at dead letters and send them back."""
    async with Operations(ManagedBroker(broker, topologies=[app.topology])) as operations:
        found = await operations.queues()
        for queue in found:
            await operations.plan(
                RedriveRequest(queue=queue.queue, selection=Selection(), reason="it works again")
            )
        return sum(queue.messages or 0 for queue in found)


async def run() -> None:
    """Run as a program."""
    service = Service(app, EmbeddedBroker())
    service.stop()
    report = await service.run()
    for finding in (*check(app.topology), *check(read_toml("name = 'empty'"))):
        print(report.handled, finding.rule, finding.severity.rank)  # noqa: T201


@in_virtual_time
async def test_order_is_done() -> None:
    """As users test it."""
    async with AppTest(app) as shop:
        await shop.publish("orders", {"number": 1})
        await shop.drain()
        shop.assert_done("orders", times=1)
