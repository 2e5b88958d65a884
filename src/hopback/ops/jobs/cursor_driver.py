"""Take the messages of a selection from a queue: the driver of the cursors.

The driver reads deliveries from `QueueMessages`, reports them to a cursor, and asks the cursor which of them
belong to the selection. It also asks the broker for other consumers of the queue and for the proof that
acks were applied. Both answers are in the consumer count of a passive declare: a quorum queue counts a
cancelled consumer until it has applied the acks of all its messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from hopback.ops.browse.memory import estimate_memory
from hopback.ops.browse.prefetch import ROOM_BYTES
from hopback.ops.jobs.cursor import CursorEvent, CursorState, SelectionCursor

if TYPE_CHECKING:
    from hopback.message import Delivery
    from hopback.ops.browse.queue_messages import QueueMessages
    from hopback.ops.jobs.job_record import Checkpoint

_MOST_FOUND = 10_000
"""Redelivered messages that a job holds before it sends any, in addition to those of its checkpoint. With
more, the job cannot be resumed unless it selected the whole queue."""
_MOST_FOUND_BYTES = 4 * ROOM_BYTES
"""Memory for these messages, by `estimate_memory`."""
_HELD_S = 600.0
"""How long a job with a rate may take to send the messages it holds, in seconds. RabbitMQ closes a channel
that holds a message for 30 minutes."""
_ASK_AGAIN_S = 0.01
"""Seconds between two questions for the consumer count. A quorum queue applies acks in milliseconds."""
_LONGEST_ASK_S = 2.0
"""Seconds that the queue may count an ended consumer of this job. After that it is another consumer."""


class CursorDriver:
    """Takes the messages of a selection, as its cursor decides."""

    def __init__(self, messages: QueueMessages, cursor: SelectionCursor) -> None:
        self.messages = messages
        self.cursor = cursor
        self._waiting: deque[Delivery] = deque()
        self.acked = 0
        """Number of messages that this run has acked."""
        self.is_exhausted = False
        """Whether every message of the selection was taken."""

    @property
    def held(self) -> int:
        """Number of delivered messages that were not acked."""
        return max(self.messages.given - self.acked, 0)

    @property
    def has_delivered(self) -> bool:
        """Whether a delivered message is waiting to be taken."""
        if not self._waiting and (delivery := self.at_hand()) is not None:
            self._waiting.append(delivery)
        return bool(self._waiting)

    async def begin(self, checkpoint: Checkpoint, rate: float | None) -> None:
        """Take messages until the cursor has found the end of the selection or has stopped.

        A job with a `rate` holds no more messages than it sends in ten minutes.
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
        """Return the next message if it has already been delivered."""
        if self._waiting:
            return self._waiting.popleft()
        delivery = self.messages.at_hand()
        if delivery is not None:
            self._receive(delivery)
        return delivery

    async def next(self) -> Delivery | None:
        """Return the next message, or None at the end of the selection."""
        if self._waiting:
            return self._waiting.popleft()
        delivery = await self.messages.next()
        if delivery is not None:
            self._receive(delivery)
        elif self.messages.is_empty:
            self.cursor.handle(CursorEvent.EMPTY)
        return delivery

    def _receive(self, delivery: Delivery) -> None:
        self.cursor.handle(CursorEvent.DELIVERED, delivery)

    def seek(self) -> bool:
        """Take messages from behind the searched part of the queue if chosen messages are missing.

        False if the selection is exhausted.
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
        """Ack a message whose publish was confirmed."""
        self.messages.ack(tag)
        self.acked += 1
        self.cursor.handle(CursorEvent.ACKED, tag)

    def receive_delivered(self) -> None:
        """Report every delivered message to the cursor, so that its checkpoint contains their marks."""
        if self.cursor.accepts(CursorEvent.KEPT):
            while (delivery := self.messages.at_hand()) is not None:
                self._receive(delivery)
                self._waiting.append(delivery)
        if self.cursor.accepts(CursorEvent.SAVING):
            self.cursor.handle(CursorEvent.SAVING)

    async def await_acks(self) -> None:
        """Wait until the queue has applied every ack, as far as the broker can show it.

        A quorum queue counts a consumer that has ended until it has applied the acks of all its messages.
        For consumers that hold kept messages this proves nothing: then the marks of the acks stay in the
        checkpoint.
        """
        await self.messages.finish()
        if self.cursor.needs_proof:
            await self.other_consumers()
            if self.messages.holders or self.messages.is_quorum is None:
                return
        if self.cursor.accepts(CursorEvent.APPLIED):
            self.cursor.handle(CursorEvent.APPLIED)

    async def other_consumers(self) -> int:
        """Return the number of other consumers of the queue, as the broker counts them."""
        until = asyncio.get_running_loop().time() + _LONGEST_ASK_S
        while True:
            others = await self.messages.count_consumers() - self.messages.holders
            if others <= 0 or asyncio.get_running_loop().time() >= until:
                return max(others, 0)
            await asyncio.sleep(_ASK_AGAIN_S)
