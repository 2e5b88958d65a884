"""The messages that a browse session hands over to a job. The job takes others by `queue_messages`."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from hopback.ops.browse.consumer_series import await_settlements

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.port import Channel, Connection
    from hopback.message import Delivery


class HandedMessages:
    """The chosen messages of a browse session, with its connection. The session held `held` messages in
    total.

    The session has taken its messages before the job began, so it delivers no others. The methods are those
    that a job uses of `QueueMessages`.
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
