"""Take the messages of a selection from a queue, as directed by a cursor.

The driver receives deliveries from `QueueMessages`, reports them to the cursor, and asks it which
of them belong to the selection. It also checks whether the queue has other consumers and whether
acks were applied. The consumer count of a passive declare shows both, because a quorum queue counts
a cancelled consumer until it has applied all acks for its messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from hopback.ops.browse.memory import estimate_memory
from hopback.ops.browse.prefetch import ROOM_BYTES
from hopback.ops.jobs.cursor import CursorEvent, CursorState, SelectionCursor

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.message import Delivery
    from hopback.ops.browse.queue_messages import QueueMessages
    from hopback.ops.jobs.job_record import Checkpoint

_MOST_FOUND = 10_000
"""Redelivered messages that a job can hold before it sends any, in addition to those in its
checkpoint. If there are more, the job can only be resumed if it has selected the whole queue.
"""
_MOST_FOUND_BYTES = 4 * ROOM_BYTES
"""Bytes of memory for these messages, as estimated by `estimate_memory`."""
_HELD_S = 600.0
"""Seconds. A job with a rate only holds messages that it can send in this time. RabbitMQ closes a
channel that holds a message for 30 minutes.
"""
_ASK_AGAIN_S = 0.01
"""Seconds between queries of the consumer count. A quorum queue applies acks within milliseconds."""
_LONGEST_ASK_S = 2.0
"""Seconds for which the queue may count a consumer of this job that has ended. After this time, it
must be another consumer.
"""


class CursorDriver:
    """Take the messages that a cursor selects."""

    def __init__(self, messages: QueueMessages, cursor: SelectionCursor) -> None:
        self.messages = messages
        self.cursor = cursor
        self._waiting: deque[Delivery] = deque()
        self.acked: int = 0
        """The number of messages that this run has acked."""
        self.is_exhausted: bool = False
        """Whether all messages of the selection were taken."""

    @property
    def held(self) -> int:
        """The number of messages that were delivered but not acked."""
        return max(self.messages.given - self.acked, 0)

    async def begin(self, checkpoint: Checkpoint, rate: float | None) -> None:
        """Take messages until the cursor has found the selection or has stopped.

        If the job has a `rate`, it does not hold more messages than it can send in ten minutes.
        """
        cursor = self.cursor
        most = _MOST_FOUND if rate is None else min(_MOST_FOUND, int(rate * _HELD_S))
        most += checkpoint.kept + len(checkpoint.window)
        held_bytes, step = 0, 1
        while cursor.state is CursorState.FINDING:
            delivery = await self.messages.next()
            if delivery is not None:
                self._receive(delivery)
                self._waiting.append(delivery)
                self.messages.keep_for_now(delivery.tag)
                held_bytes += estimate_memory(delivery)
                is_full = len(self._waiting) >= most or held_bytes >= _MOST_FOUND_BYTES
                if is_full and cursor.accepts(CursorEvent.TOO_MANY):
                    cursor.handle(CursorEvent.TOO_MANY)
            elif self.messages.is_empty:
                cursor.handle(CursorEvent.EMPTY)
            else:
                self.messages.more(min(step, most - len(self._waiting)))
                step *= 10
        if cursor.state is CursorState.TAKING:
            self.messages.limit(cursor.count)

    def at_hand(self) -> Delivery | None:
        """Return the next message if it was already delivered."""
        if self._waiting:
            return self._waiting.popleft()
        delivery = self.messages.at_hand()
        if delivery is not None:
            self._receive(delivery)
        return delivery

    async def next(self, is_over: Callable[[], bool]) -> Delivery | None:
        """Return the next message, or None at the end of the selection or if `is_over` becomes True."""
        if self._waiting:
            return self._waiting.popleft()
        delivery = await self.messages.next(is_over)
        if delivery is not None:
            self._receive(delivery)
        elif self.messages.is_empty:
            self.cursor.handle(CursorEvent.EMPTY)
        return delivery

    def _receive(self, delivery: Delivery) -> None:
        self.cursor.handle(CursorEvent.DELIVERED, delivery)

    def seek(self) -> bool:
        """If chosen messages are missing, search further messages of the queue.

        Returns False if the selection is exhausted.
        """
        count = self.cursor.more()
        if count:
            self.cursor.handle(CursorEvent.SEEK, count)
            self.messages.more(count)
        self.is_exhausted = not count
        return bool(count)

    def keep(self, tag: int) -> None:
        """Leave a message in the queue."""
        self.messages.keep(tag)
        self.cursor.handle(CursorEvent.KEPT, tag)

    def ack(self, tag: int) -> None:
        """Ack a message after its publish was confirmed."""
        self.messages.ack(tag)
        self.acked += 1
        self.cursor.handle(CursorEvent.ACKED, tag)

    def receive_delivered(self) -> None:
        """Report all delivered messages to the cursor, so that its checkpoint contains their marks."""
        if self.cursor.accepts(CursorEvent.KEPT):
            while (delivery := self.messages.at_hand()) is not None:
                self._receive(delivery)
                self._waiting.append(delivery)

    async def await_acks(self) -> None:
        """Wait until the queue has applied all acks, if the broker can show this.

        A quorum queue counts a cancelled consumer until it has applied the acks for all of its
        messages. This does not help if a consumer holds kept messages. In this case, the marks of
        acked messages stay in the checkpoint.
        """
        await self.messages.finish()
        if self.cursor.needs_proof:
            await self.other_consumers()
            if self.messages.holders or self.messages.is_quorum is None:
                return
        if self.cursor.accepts(CursorEvent.APPLIED):
            self.cursor.handle(CursorEvent.APPLIED)

    async def other_consumers(self) -> int:
        """Return how many other consumers of the queue the broker counts."""
        until = asyncio.get_running_loop().time() + _LONGEST_ASK_S
        while True:
            others = await self.messages.count_consumers() - self.messages.holders
            if others <= 0 or asyncio.get_running_loop().time() >= until:
                return max(others, 0)
            await asyncio.sleep(_ASK_AGAIN_S)
