"""The queues of a real broker as a test of an application sees them: publish, count, look."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.broker.embedded import StoredMessage
from hopback.broker.port import count_now

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.port import Broker, Channel, Connection
    from hopback.message import Message

__all__ = ["QueuesUnderTest"]


class QueuesUnderTest:
    """A connection of a test to a real broker; `letters` are the dead letters seen last, by queue."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self.letters: dict[str, tuple[StoredMessage, ...]] = {}

    @property
    def address(self) -> str:
        """Where the broker is."""
        return self._broker.address

    async def open(self) -> None:
        """Connect; raises what keeps it from connecting."""
        self._connection = await self._broker.connect("hopback test")
        self._channel = await self._connection.open_channel()

    async def close(self) -> None:
        """Leave."""
        if self._connection is not None:
            await self._connection.close()

    async def publish(self, message: Message) -> None:
        """Publish and have it confirmed; a channel that an earlier publish closed is opened again."""
        assert self._connection is not None  # noqa: S101 - opened before it is used
        if self._channel is None:
            self._channel = await self._connection.open_channel()
        channel, self._channel = self._channel, None
        await channel.publish(message, mandatory=message.mandatory)
        self._channel = channel

    async def count(self, queues: Iterable[str]) -> dict[str, int]:
        """How many messages of each queue are ready; those that hold none are left out."""
        assert self._connection is not None  # noqa: S101 - opened before it is used
        found = {queue: await count_now(self._connection, queue) for queue in queues}
        return {queue: state.messages for queue, state in found.items() if state and state.messages}

    async def look(self, queue: str) -> None:
        """Note what a dead-letter queue holds: taken, and given back when the channel closes."""
        assert self._connection is not None  # noqa: S101 - opened before it is used
        channel = await self._connection.open_channel()
        seen: list[StoredMessage] = []
        while (letter := await channel.get(queue)) is not None:
            number = len(seen)
            seen.append(
                StoredMessage(
                    copy=number,
                    origin=number,
                    exchange=letter.exchange,
                    routing_key=letter.routing_key,
                    body=letter.body,
                    properties=letter.properties,
                    redelivered=letter.redelivered,
                    returns=0,
                    failures=0,
                    expires=None,
                )
            )
        await channel.close()
        self.letters[queue] = tuple(seen)
