"""The timers of a node: deadlines, queue expiry, delayed returns, and the ticks of quorum queues.

They are run by the owner of the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, inf
from typing import TYPE_CHECKING

from hopback.broker.embedded.journal import EventKind, Loss

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.embedded.queue import LiveQueue
    from hopback.broker.embedded.stored import Entry


_TICK_S = 5.0
"""Seconds between checks for expired quorum queues. Classic queues expire exactly on time."""


class QueueExpiry:
    """The expiry of a queue. It is reset when the queue is used, and stopped while there are
    consumers.
    """

    __slots__ = ("_alarm", "_born", "_last_used", "_queue")

    def __init__(self, queue: LiveQueue) -> None:
        self._queue = queue
        self._alarm = Deadline(queue.node.timers, self._look)
        self._born = queue.node.now()
        self.renew()

    def renew(self) -> None:
        """Restart the timer, because the queue was used or its settings have changed."""
        self._last_used = self._queue.node.now()
        self._set()

    def clear(self) -> None:
        self._alarm.clear()

    def _set(self) -> None:
        expires = self._queue.settings.expires
        if expires is not None and not self._queue.ring.consumers:
            self._alarm.set(self._end(expires))

    def _end(self, expires: float) -> float:
        end = self._last_used + expires
        if not self._queue.is_quorum:
            return end
        return self._born + _TICK_S * ceil((end - self._born) / _TICK_S)

    def _look(self) -> None:
        expires = self._queue.settings.expires
        if expires is None or self._queue.ring.consumers:
            return
        if self._end(expires) <= self._queue.node.now():
            self._queue.node.remove_queue(self._queue, Loss.QUEUE_EXPIRED)
        else:
            self._set()


class Delays:
    """The delayed messages of a queue. They are not counted and do not block other messages."""

    __slots__ = ("_alarm", "_heap", "_queue")

    def __init__(self, queue: LiveQueue) -> None:
        self._queue = queue
        self._heap: list[tuple[float, int, Entry]] = []
        self._alarm = Deadline(queue.node.timers, self._wake)

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def entries(self) -> list[Entry]:
        """The delayed messages in the order in which they become ready."""
        return [entry for _, _, entry in sorted(self._heap)]

    def hold(self, entry: Entry, *, failed: bool) -> bool:
        """Delay a returned message if the queue is configured to do so for this kind of return."""
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


TICK_S = 5.0
"""The default interval of RabbitMQ for ticks of quorum queues and for statistics."""


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """The message counts of a queue at a certain time."""

    ready: int = 0
    unacked: int = 0
    held_back: int = 0
    delayed: int = 0
    consumers: int = 0

    @property
    def messages(self) -> int:
        return self.ready + self.unacked + self.held_back + self.delayed


class Ticks:
    """Remembers the message counts of a queue at its last tick. This does not need a timer.

    `before_change` must be called before each change of the queue. The counts before the first
    change after a tick are the counts at the tick.
    """

    __slots__ = ("_queue", "_tally", "_tick")

    def __init__(self, queue: LiveQueue) -> None:
        self._queue = queue
        self._tick = self._now()
        self._tally = QueueTotals()

    def before_change(self) -> None:
        """Save the counts, because the queue is about to change."""
        tick = self._now()
        if tick != self._tick:
            self._tick, self._tally = tick, self.exact()

    def last(self) -> QueueTotals:
        return self._tally if self._now() == self._tick else self.exact()

    def exact(self) -> QueueTotals:
        queue = self._queue
        return QueueTotals(
            len(queue.ready),
            queue.unacked,
            len(queue.safe),
            len(queue.delays),
            len(queue.ring.consumers),
        )

    def _now(self) -> int:
        return int(self._queue.node.now() // TICK_S)


class Timers:
    """All deadlines in order. `on_earlier` is called if the next deadline moves forward."""

    __slots__ = ("_count", "_heap", "on_earlier")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline]] = []
        self._count = 0
        self.on_earlier: Callable[[float], object] | None = None

    def add(self, due: float, alarm: Deadline) -> None:
        """Run `alarm` at `due`. Alarms with the same time are run in the order they were added."""
        self._count += 1
        heap = self._heap
        heappush(heap, (due, self._count, alarm))
        if self.on_earlier is not None and heap[0][2] is alarm:
            self.on_earlier(due)

    def next(self) -> float | None:
        heap = self._heap
        while heap and heap[0][2].due != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def run(self, now: float) -> int:
        """Run all alarms that are due, each of them at most once. Returns how many were run."""
        last = self._count
        fired = 0
        while self._heap and self._heap[0][0] <= now:
            due, number, alarm = self._heap[0]
            if number > last:
                break  # added by an alarm that was just run, so it has to wait for the next call
            heappop(self._heap)
            if alarm.due == due:
                fired += 1
                alarm.go_off()
        return fired


class Deadline:
    """A recurring task with a single deadline, for example for the first message of a queue.

    A later deadline does not replace an earlier one. The task may therefore run early and has to
    check the time.
    """

    __slots__ = ("_action", "_timers", "due")

    def __init__(self, timers: Timers, action: Callable[[], object]) -> None:
        self._timers = timers
        self._action = action
        self.due: float = inf

    def set(self, due: float) -> None:
        """Run at `due`, unless an earlier time is already set."""
        if due < self.due:
            self.due = due
            self._timers.add(due, self)

    def clear(self) -> None:
        self.due = inf

    def go_off(self) -> None:
        self.due = inf
        self._action()
