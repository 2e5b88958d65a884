"""The messages of a job: those at the head of a queue, or those that a browse session hands over."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from hopback.ops.browse.consumer_series import await_settlements

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.port import Channel, Connection
    from hopback.message import Delivery


class JobMessages(Protocol):
    """Delivers the messages of a job one after the other and settles them."""

    @property
    def taken(self) -> int:
        """Number of messages delivered since the job began."""

    @property
    def given(self) -> int:
        """Number of messages that this process has held, with those of a browse session."""

    @property
    def is_empty(self) -> bool:
        """Whether the last `next` returned None because the queue had no ready message."""

    @property
    def holders(self) -> int:
        """Number of consumers of these messages that the broker counts: active ones, and ended ones with
        messages."""

    async def count_consumers(self) -> int:
        """Return the number of consumers of the queue."""

    def at_hand(self) -> Delivery | None:
        """Return the next message if it was delivered already. None does not mean an empty queue."""

    async def next(self) -> Delivery | None:
        """Return the next message, or None if no more are left."""

    def more(self, count: int) -> None:
        """Take `count` more messages than requested before."""

    def limit(self, count: int) -> None:
        """Take no more than `count` messages in all, besides those that were delivered already."""

    def ack(self, tag: int) -> None:
        """Remove a message from the queue."""

    def keep(self, tag: int) -> None:
        """Hold a message until the channel closes."""

    def keep_for_now(self, tag: int) -> None:
        """Hold a message that may be settled later."""

    async def pause(self) -> None:
        """Stop deliveries until the next call of `next`."""

    async def finish(self) -> None:
        """Stop deliveries and wait until the broker has read every ack."""

    async def check(self) -> None:
        """Raise BrokerError if the broker has requeued held messages, which would count as new ones."""

    async def round_out(self) -> bool:
        """Hold further messages so that all are requeued in order. Return False if they are too many."""


class HandedMessages:
    """The chosen messages of a browse session that held `held` messages in all, with its connection.

    The session has taken its messages before the job began, so it delivers no others.
    """

    def __init__(
        self, connection: Connection, channel: Channel, deliveries: Iterable[Delivery], held: int
    ) -> None:
        self.connection = connection
        self._channel = channel
        self._waiting = deque(deliveries)
        self.given = held
        self.taken = 0
        self.is_empty = True
        self.holders = 0

    async def count_consumers(self) -> int:
        """Return 0: the consumers of a session cannot be distinguished from others."""
        return 0

    def at_hand(self) -> Delivery | None:
        return self._waiting.popleft() if self._waiting else None

    async def next(self) -> Delivery | None:
        return self.at_hand()

    def more(self, count: int) -> None:
        pass

    def limit(self, count: int) -> None:
        pass

    def ack(self, tag: int) -> None:
        self._channel.ack(tag)

    def keep(self, tag: int) -> None:
        pass  # the session holds its messages until its channel closes

    keep_for_now = keep

    async def pause(self) -> None:
        pass

    async def finish(self) -> None:
        await await_settlements(self._channel)

    check = finish

    async def round_out(self) -> bool:
        """Return True: the session held the messages that keep the order."""
        return True
