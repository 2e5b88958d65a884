"""The source of a job's messages: a queue, or a browse session."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.port import Channel
    from hopback.message import Delivery


class Source(Protocol):
    """Where a job takes its messages from, one after the other."""

    @property
    def taken(self) -> int:
        """How many came from the queue since the job began."""

    @property
    def given(self) -> int:
        """How many were ever in our hands."""

    @property
    def fresh(self) -> bool:
        """Whether one came that the queue had never handed out before."""

    def at_hand(self) -> Delivery | None:
        """The next message if it is here already; None says nothing about the queue."""

    async def next(self) -> Delivery | None:
        """The next message, or None when there is none left."""

    @property
    def is_empty(self) -> bool:
        """Whether the last `next` returned None because the queue had no ready message."""

    @property
    def holders(self) -> int:
        """Number of consumers of this source that the broker counts: active ones, and ended ones with
        messages."""

    async def count_consumers(self) -> int:
        """Return the number of consumers of the queue."""

    def more(self, count: int) -> None:
        """So many more are wanted than was said."""

    def limit(self, count: int) -> None:
        """Take no more than `count` messages in all, besides those that were delivered already."""

    def ack(self, tag: int) -> None:
        """This message is done with for good."""

    def keep(self, tag: int) -> None:
        """This message stays in our hands until the end."""

    def keep_for_now(self, tag: int) -> None:
        """This message stays in our hands, and may be settled yet."""

    async def pause(self) -> None:
        """Let nothing more be handed over until the next one is asked for."""

    async def finish(self) -> None:
        """Return when the broker has read every ack."""

    async def check(self) -> None:
        """Raise if what is in our hands has gone back: a count of the queue would take it for new."""

    async def round_out(self) -> bool:
        """Hold what must be held for everything to come back in order; False if that is too much."""


class Held:
    """Messages that are in our hands already, from a browse session."""

    def __init__(
        self, channel: Channel, queue: str, deliveries: Iterable[Delivery], held: int
    ) -> None:
        self._channel = channel
        self._queue = queue
        self._waiting = deque(deliveries)
        self.given = held
        self.taken = 0
        self.fresh = False
        self.is_empty = True
        self.holders = 0

    async def count_consumers(self) -> int:
        """A session's consumers are not told apart from others."""
        return 0

    def limit(self, count: int) -> None:
        """There is no more than what is held."""

    def at_hand(self) -> Delivery | None:
        """The next message, or None when there is none left."""
        return self._waiting.popleft() if self._waiting else None

    async def next(self) -> Delivery | None:
        """The next message, or None when there is none left."""
        return self.at_hand()

    def more(self, count: int) -> None:
        """There is no more than what is held."""

    def ack(self, tag: int) -> None:
        """This message is done with for good."""
        self._channel.ack(tag)

    def keep(self, tag: int) -> None:
        """This message stays in our hands until the end."""

    keep_for_now = keep

    async def pause(self) -> None:
        """Nothing more is handed over anyway."""

    async def finish(self) -> None:
        """Return when the broker has read every ack."""
        await round_trip(self._channel)

    async def check(self) -> None:
        """Raise if what is in our hands has gone back."""
        await round_trip(self._channel)

    async def round_out(self) -> bool:
        """The session held all that it had to."""
        return True


async def round_trip(channel: Channel) -> None:
    """Settlements are answered by nothing; what is answered after them shows that they were read."""
    await channel.qos(1)
