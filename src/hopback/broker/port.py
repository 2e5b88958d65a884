"""The interface of a broker.

It is implemented by RabbitMQ and by the embedded broker. Names and semantics are those of AMQP
0-9-1. All methods must be called on the event loop.

A channel error such as 404 or 406 closes the channel. The error is raised by the call that caused
it and by all later calls, and unsettled deliveries are requeued.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from hopback.errors import BrokerError, NotFound
from hopback.topology.model import Binding, Exchange, Queue

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

    from hopback.fields import Headers
    from hopback.message import Delivery, Message
    from hopback.version import BrokerVersion

REPLY_TO = "amq.rabbitmq.reply-to"
"""The name for direct reply-to. Replies are received by consuming from this name without acks, on
the channel that publishes the requests.
"""

OnDelivery: TypeAlias = "Callable[[Delivery], object]"
"""Called for each delivery, in order. It must not block or raise exceptions."""
OnCancel: TypeAlias = "Callable[[str], object]"
"""Called with the consumer tag when the broker cancels the consumer."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """The result of declaring a queue."""

    name: str
    messages: int
    """The number of ready messages. Unacknowledged and held messages are not included."""
    consumers: int


class Broker(Protocol):
    """A broker."""

    @property
    def address(self) -> str:
        """The address of the broker, without the password."""

    async def connect(self, name: str = "hopback") -> Connection:
        """Open a connection with the given name.

        Raises:
            ConnectionFailed: If the connection cannot be opened.
        """


class Connection(Protocol):
    """A connection to a broker."""

    @property
    def version(self) -> BrokerVersion:
        """The RabbitMQ version of the broker."""

    async def open_channel(self) -> Channel:
        """Open a channel in confirm mode."""

    async def close(self) -> None:
        """Close the connection and its channels. Can be called more than once."""

    async def wait_closed(self) -> BrokerError | None:
        """Wait until the connection is closed. Returns the error, or None after `close`."""


class Channel(Protocol):
    """A channel."""

    async def declare_exchange(self, exchange: Exchange, *, passive: bool = False) -> None:
        """Declare an exchange.

        Raises:
            PreconditionFailed: If the exchange exists with different settings.
            NotFound: If `passive` is True and the exchange does not exist.
        """

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange. Does nothing if it does not exist."""

    async def declare_queue(self, queue: Queue, *, passive: bool = False) -> QueueState:
        """Declare a queue and return its state. If `passive` is True, only the name is checked."""

    async def delete_queue(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete a queue and return the number of messages. Returns 0 if it does not exist."""

    async def purge_queue(self, name: str) -> int:
        """Delete all ready messages and return their number."""

    async def bind(self, binding: Binding) -> None:
        """Add a binding. Does nothing if it already exists.

        Raises:
            NotFound: If the source or destination does not exist.
        """

    async def unbind(self, binding: Binding) -> None:
        """Remove a binding. Does nothing if it does not exist."""

    def publish(self, message: Message, *, mandatory: bool = True) -> Future[None]:
        """Publish a message and return a future that is done when it is confirmed.

        The future raises Returned, Nacked, ConfirmTimeout or PublishInterrupted. Messages are sent
        in the order of the calls and are not retried.
        """

    @property
    def has_room(self) -> bool:
        """Whether `room` would return immediately."""

    async def room(self) -> None:
        """Wait until another message can be published."""

    async def qos(self, prefetch: int) -> None:
        """Set the prefetch count of new consumers. 0 means no limit."""

    async def consume(
        self,
        queue: str,
        on_delivery: OnDelivery,
        *,
        on_cancel: OnCancel | None = None,
        tag: str = "",
        exclusive: bool = False,
        no_ack: bool = False,
        arguments: Headers | None = None,
    ) -> str:
        """Start a consumer and return its tag.

        If `no_ack` is True, deliveries are settled automatically.
        """

    async def cancel(self, tag: str) -> None:
        """Cancel a consumer. Its deliveries stay unsettled."""

    async def get(self, queue: str) -> Delivery | None:
        """Get a message from a queue, or None if there is no ready message."""

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Acknowledge a delivery. An unknown tag closes the channel."""

    def nack(self, tag: int, *, requeue: bool, multiple: bool = False) -> None:
        """Requeue or dead-letter a delivery."""

    def reject(self, tag: int, *, requeue: bool) -> None:
        """Requeue or dead-letter a delivery.

        RabbitMQ 4.3 counts this as a failed delivery, unlike nack.
        """

    async def recover(self) -> None:
        """Requeue all unsettled deliveries of this channel."""

    async def close(self) -> None:
        """Close the channel. Unsettled deliveries are requeued. Can be called more than once."""

    async def wait_closed(self) -> BrokerError | None:
        """Wait until the channel is closed. Returns the error, or None after `close`."""


@runtime_checkable
class RawChannel(Protocol):
    """Additional methods of channels that support encoded properties. Check with isinstance."""

    def publish_raw(
        self, exchange: str, routing_key: str, properties: bytes, body: bytes
    ) -> Future[None]:
        """Publish a message whose properties are already encoded."""

    def hold(self, tag: int) -> None:
        """Hold a delivery until the channel is closed. Its tag is not stored."""


async def count(channel: Channel, queue: str) -> QueueState:
    """Return the number of ready messages and consumers of a queue.

    Raises:
        NotFound: If the queue does not exist. This closes the channel.
    """
    return await channel.declare_queue(Queue(queue), passive=True)


async def count_now(connection: Connection, queue: str) -> QueueState | None:
    """Count the messages of a queue, using a separate channel. Returns None if it does not exist."""
    channel = await connection.open_channel()
    try:
        state = await count(channel, queue)
    except NotFound:
        return None
    await channel.close()
    return state
