"""Take the messages of a job in batches.

A batch contains the selected messages that are available and match the filter. The job saves one
checkpoint per batch, which takes some milliseconds. For this reason, small batches are extended
while the broker is busy with earlier messages.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.broker.limits import is_near_limit
from hopback.ops.browse.memory import estimate_memory
from hopback.ops.browse.turns import Turns
from hopback.ops.contract.values import JobState
from hopback.ops.jobs.control import EndJob
from hopback.ops.jobs.cursor import CursorEvent
from hopback.ops.jobs.priority_order import PriorityOrder
from hopback.ops.messages.dead_letter import delivery_count, read_dead_letter
from hopback.ops.messages.filters import EVERYTHING, parse_filter

if TYPE_CHECKING:
    from hopback.message import Delivery
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.jobs.cursor_driver import CursorDriver
    from hopback.ops.jobs.job_progress import JobProgress
    from hopback.ops.jobs.job_record import JobRecord
    from hopback.ops.jobs.sender import Sender

_LARGEST = 10_000
"""Messages in a batch. The checkpoint contains a mark for each of them."""
_SMALL = 250
"""Messages. Smaller batches are extended, because a checkpoint takes the same time for fewer messages."""
_GATHER_S = 0.005
"""Seconds to wait for more messages, which is about the time for saving a checkpoint."""
TURN_BYTES = 1024 * 1024
"""Bytes of messages after which other tasks of the process get a chance to run."""


@dataclass(slots=True)
class SelectedMessage:
    """A message to send, with its position in the queue and its approximate memory in bytes."""

    delivery: Delivery
    place: int
    size: int


class BatchReader:
    """Take batches. Messages that are not selected or do not match stay in the queue."""

    def __init__(
        self,
        job: JobRecord,
        snapshot: BrokerSnapshot,
        driver: CursorDriver,
        progress: JobProgress,
    ) -> None:
        self._job = job
        self._queue = snapshot.dead_letter_queue(job.queue)
        self._driver = driver
        self._progress = progress
        self._delivery_limit = None if job.spec.force else snapshot.cost(job.queue).limit
        """Number of deliveries after which the queue removes a message."""
        is_chosen = job.spec.chosen is not None
        self._filter = EVERYTHING if is_chosen else parse_filter(job.spec.filter)
        self._anchor: list[SelectedMessage] = []
        """The last message of the previous batch, which is sent with the next one (see `cursor`)."""
        self._place = 0
        self._order = PriorityOrder(
            snapshot.effective(job.queue), snapshot.version, is_resumed=job.run > 1
        )

    async def take(self, sender: Sender) -> list[SelectedMessage]:
        """Return the next batch. This only waits for its first message.

        The batch is empty if a sent message has failed. Failed messages stay unacked, so the queue
        may not deliver others until they were retried.
        """
        first = None if self._driver.is_exhausted else await self._take_next(sender)
        if first is None and sender.is_troubled:
            return []
        batch, self._anchor = self._anchor, []
        if first is not None:
            self._decide(first, estimate_memory(first), batch)
            taken = 1 + await self._take_at_hand(batch, _LARGEST - 1)
            more = taken
            while more and taken < _SMALL:
                await asyncio.sleep(_GATHER_S)
                more = await self._take_at_hand(batch, _LARGEST - taken)
                taken += more
                if not sender.is_busy:
                    break
            if batch and self._driver.cursor.is_counting:
                self._anchor.append(batch.pop())
        return batch

    async def _take_next(self, sender: Sender) -> Delivery | None:
        """Return the next message, or None at the end of the selection or if a message has failed."""

        def is_over() -> bool:
            return sender.is_troubled

        delivery = await self._driver.next(is_over)
        while delivery is None and not is_over() and self._driver.seek():
            await self._progress.save()
            delivery = await self._driver.next(is_over)
        return delivery

    async def _take_at_hand(self, batch: list[SelectedMessage], most: int) -> int:
        taken, turns = 0, Turns(TURN_BYTES)
        while taken < most and (delivery := self._driver.at_hand()) is not None:
            size = estimate_memory(delivery)
            self._decide(delivery, size, batch)
            taken += 1
            if turns.is_over(size):
                await asyncio.sleep(0)
        return taken

    def _decide(self, delivery: Delivery, size: int, batch: list[SelectedMessage]) -> None:
        self._place += 1
        if self._order.is_new(delivery) and self._driver.cursor.is_counting:
            # The job cannot be resumed, because the first messages are other ones now.
            self._driver.cursor.handle(CursorEvent.SHARED)
            raise EndJob(
                JobState.FAILED,
                f"messages with a higher priority have arrived, and {self._queue.name!r} delivers them"
                " first; end it, then start a new job",
            )
        belongs = matches = self._driver.cursor.belongs(delivery)
        if belongs and self._filter.terms:
            dead_letter = read_dead_letter(delivery, self._place, self._queue)
            matches = self._filter.matches(dead_letter, delivery, self._job.created)
        if matches:
            batch.append(SelectedMessage(delivery, self._place, size))
        else:
            self._keep(delivery)
            self._progress.add(skipped=int(belongs))

    def leave(self, message: SelectedMessage, reason: str, *, is_skipped: bool = False) -> None:
        """Leave a selected message in the queue, and record the reason."""
        self._keep(message.delivery)
        self._progress.add(skipped=int(is_skipped), failed=int(not is_skipped))
        dead_letter = read_dead_letter(message.delivery, message.place, self._queue)
        self._progress.add_failure(dead_letter, reason)

    def _keep(self, delivery: Delivery) -> None:
        self._driver.keep(delivery.tag)
        limit = self._delivery_limit
        if limit is not None and is_near_limit(delivery_count(delivery), limit):
            raise EndJob(
                JobState.FAILED,
                f"a message that stays in the queue was requeued {delivery_count(delivery)} times, and"
                f" {self._queue.name!r} removes it after {limit}: lift the limit first",
            )
