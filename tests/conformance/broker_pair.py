"""Two brokers that receive the same requests and must give the same results."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from hopback.errors import BrokerError, ChannelClosed
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hopback.broker.port import Broker, Channel, Connection
    from hopback.fields import FieldValue
    from hopback.message import Delivery

__all__ = ["BrokerPair", "Held", "Step", "describe"]

_SETTLE_SECONDS = 3.0
Step: TypeAlias = "Callable[[Channel], Awaitable[object]]"


@dataclass(frozen=True, slots=True)
class Held:
    """A message that is unacked on both brokers, with its delivery tags."""

    queue: str
    tags: tuple[int, int]


@dataclass(slots=True)
class _Side:
    """One of the two brokers, with a connection, three channels and its consumers' deliveries."""

    broker: Broker
    connection: Connection
    watcher: Channel
    channels: list[Channel]
    arrived: dict[str, list[Delivery]] = field(default_factory=dict)

    @classmethod
    async def open(cls, broker: Broker) -> _Side:
        connection = await broker.connect("broker pair")
        channels = [await connection.open_channel() for _ in range(3)]
        return cls(broker, connection, await connection.open_channel(), channels)

    async def reopen(self, number: int) -> None:
        with contextlib.suppress(BrokerError):
            await self.channels[number].close()
        self.channels[number] = await self.connection.open_channel()

    async def counts(self, queues: list[str]) -> dict[str, object]:
        """Return the ready messages of each queue and the deliveries of each consumer."""
        states = [await self.watcher.declare_queue(Queue(name), passive=True) for name in queues]
        ready: dict[str, object] = {state.name: state.messages for state in states}
        arrived = {tag: list(map(describe, deliveries)) for tag, deliveries in self.arrived.items()}
        return {**ready, "arrived": arrived}


class BrokerPair:
    """Does everything on both brokers and compares. Raises AssertionError if they differ."""

    def __init__(self, left: _Side, right: _Side) -> None:
        self._sides = (left, right)

    @classmethod
    async def open(cls, left: Broker, right: Broker) -> BrokerPair:
        return cls(await _Side.open(left), await _Side.open(right))

    async def do(self, number: int, step: Step) -> object:
        """Run the step on that channel of both brokers and compare the answers. Reopen a closed channel."""
        left, right = [await _answer(step(side.channels[number])) for side in self._sides]
        assert left == right, f"RabbitMQ answered {left!r}, the embedded broker {right!r}"
        if isinstance(left, tuple) and left[0] == "closed":
            await self.reopen(number)
        return left

    async def reopen(self, number: int) -> None:
        """Close a channel on both brokers and open a new one."""
        for side in self._sides:
            await side.reopen(number)

    async def get(self, number: int, queue: str) -> Held | None:
        """Get one message from both brokers and compare."""
        left, right = [await side.channels[number].get(queue) for side in self._sides]
        assert describe(left) == describe(right), (
            f"RabbitMQ gave {describe(left)}, embedded {describe(right)}"
        )
        return None if left is None or right is None else Held(queue, (left.tag, right.tag))

    async def consume(self, number: int, queue: str, tag: str, prefetch: int) -> None:
        """Start a consumer on both brokers."""
        for side in self._sides:
            side.arrived[tag] = []
            await side.channels[number].qos(prefetch)
            await side.channels[number].consume(queue, side.arrived[tag].append, tag=tag)

    def arrivals(self, tag: str, queue: str, since: int) -> list[Held]:
        """Return the consumer's deliveries from that number on."""
        left, right = (side.arrived[tag][since:] for side in self._sides)
        return [Held(queue, (one.tag, two.tag)) for one, two in zip(left, right, strict=True)]

    def settle(self, number: int, held: Held, way: str, **options: Any) -> None:
        """Settle an unacked message in the same way on both brokers."""
        for side, tag in zip(self._sides, held.tags, strict=True):
            getattr(side.channels[number], way)(tag, **options)

    async def agree(self, queues: list[str]) -> None:
        """Wait until both brokers show the same to a client. AssertionError after a timeout."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            left, right = [await side.counts(queues) for side in self._sides]
            if left == right:
                return
            assert time.monotonic() < deadline, f"RabbitMQ shows {left}, embedded {right}"
            await asyncio.sleep(0.01)

    async def close(self, queues: list[str], exchanges: list[str]) -> None:
        """Remove everything and disconnect."""
        for side in self._sides:
            with contextlib.suppress(BrokerError):
                channel = await side.connection.open_channel()
                for name in queues:
                    await channel.delete_queue(name)
                for name in exchanges:
                    await channel.delete_exchange(name)
            await side.connection.close()


async def _answer(step: Awaitable[object]) -> object:
    """Return the value of a step, or the kind of error."""
    try:
        return await step
    except ChannelClosed as error:
        return "closed", error.code
    except BrokerError as error:
        return type(error).__name__


def describe(delivery: Delivery | None) -> object:
    """Return a delivery as a client sees it, without times."""
    if delivery is None:
        return None
    properties = replace(delivery.properties, headers=_timeless(delivery.properties.headers))
    place = (delivery.queue, delivery.exchange, delivery.routing_key)
    return delivery.body, place, delivery.redelivered, properties


def _timeless(headers: Mapping[str, FieldValue]) -> dict[str, Any]:
    """Return the headers without the times of deaths."""
    plain: dict[str, Any] = dict(headers)
    if isinstance(plain.get("x-death"), list | tuple):
        plain["x-death"] = [
            {key: value for key, value in entry.items() if key != "time"}
            for entry in plain["x-death"]
        ]
    return plain
