"""Delayed retry of 4.3: returned messages that wait before they are ready again."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from hopback.broker.embedded.journal import EventKind
from hopback.broker.embedded.timers import Deadline

if TYPE_CHECKING:
    from hopback.broker.embedded.journal import Loss
    from hopback.broker.embedded.queue import LiveQueue
    from hopback.broker.embedded.stored import Entry

__all__ = ["Delays"]


class Delays:
    """The delayed messages of one queue: they block nobody and are in no count."""

    __slots__ = ("_alarm", "_heap", "_queue")

    def __init__(self, queue: LiveQueue) -> None:
        self._queue = queue
        self._heap: list[tuple[float, int, Entry]] = []
        self._alarm = Deadline(queue.node.timers, self._wake)

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def entries(self) -> list[Entry]:
        """Those that wait, soonest first."""
        return [entry for _, _, entry in sorted(self._heap)]

    def hold(self, entry: Entry, *, failed: bool) -> bool:
        """Delay a returned copy if the queue wants that for this kind of return."""
        settings = self._queue.settings
        if settings.retry_delay not in ("all", "failed" if failed else "returned"):
            return False
        delay = min(settings.retry_min * max(1, entry.failed), settings.retry_max)
        due = self._queue.node.now() + delay
        heappush(self._heap, (due, entry.number, entry))
        self._alarm.set(due)
        self._tell(EventKind.DELAYED, entry, "")
        return True

    def abandon(self, loss: Loss) -> None:
        """Let all of them go."""
        for entry in self.entries:
            self._tell(EventKind.DROPPED, entry, loss)
        self._heap.clear()
        self._alarm.clear()

    def _wake(self) -> None:
        now = self._queue.node.now()
        while self._heap and self._heap[0][0] <= now:
            self._queue.put_back(heappop(self._heap)[2])
        if self._heap:
            self._alarm.set(self._heap[0][0])
        self._queue.pump()

    def _tell(self, kind: EventKind, entry: Entry, reason: str) -> None:
        journal = self._queue.node.journal
        if journal is not None:
            journal.entry(kind, entry, self._queue.name, reason)
