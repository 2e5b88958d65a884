"""The broker port: the one screen that every broker must fill.

RabbitMQ over our wire and the embedded broker both fill it and pass the same conformance suite.
Names and semantics are AMQP 0-9-1's. All calls are made on the event loop's thread.

After a channel error (404, 406, …) the channel is closed, as in RabbitMQ: the call that caused it
raises the error, later calls raise it again, and everything unsettled goes back to its queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from hopback.errors import BrokerError, NotFound
from hopback.topology.model import Binding, Exchange, Queue

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

    from hopback.fields import Headers
    from hopback.message import Delivery, Message
    from hopback.version import BrokerVersion

REPLY_TO = "amq.rabbitmq.reply-to"
"""Direct reply-to: who consumes from this, without acks, and publishes requests with this `reply_to` on the
same channel gets the replies there; no queue of that name exists."""

OnDelivery: TypeAlias = "Callable[[Delivery], object]"
"""Called on the loop for each delivery, in order; it must not block and must not raise."""
OnCancel: TypeAlias = "Callable[[str], object]"
"""Called with the consumer tag when the broker ends the consumer by itself."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """What a declare answers: the name (made by the broker if none was given) and exact counts."""

    name: str
    messages: int
    """Ready messages; what is unacked, delayed or held for dead-lettering is not in it."""
    consumers: int


class Broker(Protocol):
    """A broker that can be connected to."""

    @property
    def address(self) -> str:
        """Where it is, fit to be shown: never a password."""

    async def connect(self, name: str = "hopback") -> Connection:
        """A new connection, shown to operators as `name`; ConnectionFailed if it cannot be made."""


class Connection(Protocol):
    """One connection. When it ends, all its channels end."""

    @property
    def version(self) -> BrokerVersion:
        """The broker's version."""

    async def open_channel(self) -> Channel:
        """A new channel in confirm mode."""

    async def close(self) -> None:
        """Close in order; what was unsettled goes back to its queues. Safe to repeat."""

    async def wait_closed(self) -> BrokerError | None:
        """Return when the connection has ended: the reason, or None if we closed it."""


class Channel(Protocol):
    """One channel: declarations, publishing with confirms, consuming, settlement."""

    async def declare_exchange(self, exchange: Exchange, *, passive: bool = False) -> None:
        """Create it, or check it. PreconditionFailed if another exists, NotFound if passive and none."""

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete it; an exchange that does not exist is no error."""

    async def declare_queue(self, queue: Queue, *, passive: bool = False) -> QueueState:
        """Create it, or check it, and count it. Passive ignores everything but the name."""

    async def delete_queue(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete it with its messages and tell how many; a missing queue is no error and counts 0."""

    async def purge_queue(self, name: str) -> int:
        """Remove all ready messages for good and tell how many."""

    async def bind(self, binding: Binding) -> None:
        """Add the binding; one that exists is no error. NotFound if either end is missing."""

    async def unbind(self, binding: Binding) -> None:
        """Remove the binding; a missing one is no error."""

    def publish(self, message: Message, *, mandatory: bool = True) -> Future[None]:
        """Hand the message over, in call order, and return its fate.

        The future ends when the broker has confirmed; it raises Returned, Nacked, ConfirmTimeout
        or PublishInterrupted, each for exactly this message. Nothing is retried here.
        """

    @property
    def has_room(self) -> bool:
        """Whether `room` would return at once."""

    async def room(self) -> None:
        """Return when another publish may be started: the window has room, the connection is not blocked."""

    async def qos(self, prefetch: int) -> None:
        """At most this many unsettled deliveries for each consumer started from now on; 0: no limit."""

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
        """Start a consumer and return its tag; with `no_ack` its deliveries are settled as they leave."""

    async def cancel(self, tag: str) -> None:
        """End the consumer; what it holds stays unsettled on this channel. No delivery comes after."""

    async def get(self, queue: str) -> Delivery | None:
        """Take one message, unsettled, or None if the queue has none ready."""

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Settle as done. Sent with the next write; a tag unknown to the broker closes the channel."""

    def nack(self, tag: int, *, requeue: bool, multiple: bool = False) -> None:
        """Release to the queue, or dead-letter."""

    def reject(self, tag: int, *, requeue: bool) -> None:
        """As nack for one, but RabbitMQ 4.3 counts it as a failed delivery."""

    async def recover(self) -> None:
        """Put everything unsettled on this channel back into its queues (`basic.recover`)."""

    async def close(self) -> None:
        """Close in order; everything unsettled goes back to its queues. Safe to repeat."""

    async def wait_closed(self) -> BrokerError | None:
        """Return when the channel has ended: the reason, or None if we closed it."""


async def count(channel: Channel, queue: str) -> QueueState:
    """What a queue holds at this moment; NotFound, and the channel is closed, if there is none."""
    return await channel.declare_queue(Queue(queue), passive=True)


async def count_now(connection: Connection, queue: str) -> QueueState | None:
    """What a queue holds at this moment, asked on a channel of its own; None if there is none."""
    channel = await connection.open_channel()
    try:
        state = await count(channel, queue)
    except NotFound:
        return None
    await channel.close()
    return state
