"""Two brokers that are told the same, and must be seen to do the same."""

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

__all__ = ["Held", "Step", "Twins", "seen"]

_SETTLE_SECONDS = 3.0
Step: TypeAlias = "Callable[[Channel], Awaitable[object]]"


@dataclass(frozen=True, slots=True)
class Held:
    """One message held on both sides: its tags."""

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
        connection = await broker.connect("side by side")
        channels = [await connection.open_channel() for _ in range(3)]
        return cls(broker, connection, await connection.open_channel(), channels)

    async def reopen(self, number: int) -> None:
        with contextlib.suppress(BrokerError):
            await self.channels[number].close()
        self.channels[number] = await self.connection.open_channel()

    async def counts(self, queues: list[str]) -> dict[str, object]:
        """What a client sees: ready messages and consumers, and what has arrived."""
        states = [await self.watcher.declare_queue(Queue(name), passive=True) for name in queues]
        ready: dict[str, object] = {state.name: state.messages for state in states}
        arrived = {tag: list(map(seen, deliveries)) for tag, deliveries in self.arrived.items()}
        return {**ready, "arrived": arrived}


class Twins:
    """Does everything twice and compares; AssertionError where the two differ."""

    def __init__(self, left: _Side, right: _Side) -> None:
        self._sides = (left, right)

    @classmethod
    async def open(cls, left: Broker, right: Broker) -> Twins:
        """Connect to both."""
        return cls(await _Side.open(left), await _Side.open(right))

    async def do(self, number: int, step: Step) -> object:
        """Take the step on that channel of both; both must answer alike. A dead channel is renewed."""
        left, right = [await _answer(step(side.channels[number])) for side in self._sides]
        assert left == right, f"RabbitMQ answered {left!r}, the embedded broker {right!r}"
        if isinstance(left, tuple) and left[0] == "closed":
            await self.reopen(number)
        return left

    async def reopen(self, number: int) -> None:
        """Close a channel on both sides and open it anew."""
        for side in self._sides:
            await side.reopen(number)

    async def get(self, number: int, queue: str) -> Held | None:
        """Take one message from both; both must give the same one, or none."""
        left, right = [await side.channels[number].get(queue) for side in self._sides]
        assert seen(left) == seen(right), f"RabbitMQ gave {seen(left)}, embedded {seen(right)}"
        return None if left is None or right is None else Held(queue, (left.tag, right.tag))

    async def consume(self, number: int, queue: str, tag: str, prefetch: int) -> None:
        """Start a consumer on both."""
        for side in self._sides:
            side.arrived[tag] = []
            await side.channels[number].qos(prefetch)
            await side.channels[number].consume(queue, side.arrived[tag].append, tag=tag)

    def arrivals(self, tag: str, queue: str, since: int) -> list[Held]:
        """What the consumer has got, from the delivery of that number on."""
        left, right = (side.arrived[tag][since:] for side in self._sides)
        return [Held(queue, (one.tag, two.tag)) for one, two in zip(left, right, strict=True)]

    def settle(self, number: int, held: Held, way: str, **options: Any) -> None:
        """Settle a held message on both, the same way."""
        for side, tag in zip(self._sides, held.tags, strict=True):
            getattr(side.channels[number], way)(tag, **options)

    async def agree(self, queues: list[str]) -> None:
        """Wait until a client sees the same on both; AssertionError if that does not come."""
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
    """What came of a step: its value, or the kind of error."""
    try:
        return await step
    except ChannelClosed as error:
        return "closed", error.code
    except BrokerError as error:
        return type(error).__name__


def seen(delivery: Delivery | None) -> object:
    """A delivery as a client sees it, without what depends on the moment."""
    if delivery is None:
        return None
    properties = replace(delivery.properties, headers=_timeless(delivery.properties.headers))
    place = (delivery.queue, delivery.exchange, delivery.routing_key)
    return delivery.body, place, delivery.redelivered, properties


def _timeless(headers: Mapping[str, FieldValue]) -> dict[str, Any]:
    """The headers with the times of deaths left out."""
    plain: dict[str, Any] = dict(headers)
    if isinstance(plain.get("x-death"), list | tuple):
        plain["x-death"] = [
            {key: value for key, value in entry.items() if key != "time"}
            for entry in plain["x-death"]
        ]
    return plain
