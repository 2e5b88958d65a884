"""A broker with a queue, its dead-letter queue and dead letters in it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hopback.designs import DESIGNS
from hopback.message import Message, Properties
from hopback.ops.contract.requests import DiscardRequest, RedriveRequest, Selection, Who
from hopback.version import BrokerVersion
from tests.unit.ops.service import CountingBroker, open_service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from typing import Any

    from hopback.broker.embedded import QueueSnapshot
    from hopback.ops.operations import Operations
    from hopback.topology.model import Topology

__all__ = [
    "ANN",
    "DLQ",
    "MAIN",
    "CountingBroker",
    "Shop",
    "discard",
    "open_shop",
    "properties",
    "redrive",
]

MAIN, DLQ = "orders", "orders.dlq"
ANN = Who("u-1", "Ann")


class Shop:
    """An embedded broker with a topology, and operations on it."""

    def __init__(self, broker: CountingBroker, topology: Topology, operations: Operations) -> None:
        self.broker = broker
        self.topology = topology
        self.operations = operations

    async def publish(self, messages: Iterable[Message]) -> None:
        """Put messages onto the broker."""
        connection = await self.broker.connect("test")
        channel = await connection.open_channel()
        for message in messages:
            await channel.publish(message)
        await connection.close()

    async def park(self, count: int, *, queue: str = DLQ, headers: Any = None) -> None:
        """Put this number of dead letters into the queue, numbered from 0."""
        await self.publish(
            Message("", queue, b"%d" % number, properties(f"m{number}", headers))
            for number in range(count)
        )

    def queue(self, name: str) -> QueueSnapshot:
        """The messages of a queue."""
        return self.broker.snapshot().queue(name)

    def bodies(self, name: str) -> list[bytes]:
        """The bodies of the ready messages, in order."""
        return [message.body for message in self.queue(name).ready]

    def held(self) -> int:
        """How many messages are unacked anywhere."""
        return sum(len(queue.unacked) for queue in self.broker.snapshot().queues)


def properties(ident: str, headers: Any = None) -> Properties:
    """Persistent, with an id and headers."""
    return Properties(message_id=ident, delivery_mode=2, headers=headers or {})


@asynccontextmanager
async def open_shop(
    design: str = "recommended",
    params: dict[str, str] | None = None,
    *,
    version: BrokerVersion = BrokerVersion(3, 10),  # noqa: B008  a frozen value
    **options: Any,
) -> AsyncIterator[Shop]:
    """Operations on a broker with this design. `options` are those of `open_service`."""
    given = {"queue": MAIN} if design in {"recommended", "ratatoskr"} else {}
    topology = DESIGNS[design].build(given if params is None else params)
    async with open_service(topology, version, **options) as (broker, operations):
        yield Shop(broker, topology, operations)


def redrive(**changes: Any) -> RedriveRequest:
    """A request to re-drive everything in the dead-letter queue."""
    plain: dict[str, Any] = {
        "queue": DLQ,
        "selection": Selection(),
        "reason": "repaired",
    }
    return RedriveRequest(**plain | changes)


def discard(**changes: Any) -> DiscardRequest:
    """A request to discard everything in the dead-letter queue, without an export."""
    plain: dict[str, Any] = {
        "queue": DLQ, "selection": Selection(), "reason": "worthless", "confirm": DLQ,
        "export": False,
    }  # fmt: skip
    return DiscardRequest(**plain | changes)
