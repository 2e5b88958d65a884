"""The deadlines of a node: one heap, advanced by whoever owns the time."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from hopback.renamed import old_names

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Deadline", "Timers"]


class Timers:
    """All deadlines in order. `on_earlier` is told whenever the next one has come nearer."""

    __slots__ = ("_count", "_heap", "on_earlier")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline]] = []
        self._count = 0
        self.on_earlier: Callable[[float], object] | None = None

    def add(self, due: float, alarm: Deadline) -> None:
        """Let `alarm` go off at `due`, after those that were set for the same moment before."""
        self._count += 1
        heap = self._heap
        heappush(heap, (due, self._count, alarm))
        if self.on_earlier is not None and heap[0][2] is alarm:
            self.on_earlier(due)

    def next(self) -> float | None:
        """When the next alarm is due, or None."""
        heap = self._heap
        while heap and heap[0][2].due != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def run(self, now: float) -> int:
        """Let all alarms go off that are due, each once at most, and tell how many."""
        last = self._count
        fired = 0
        while self._heap and self._heap[0][0] <= now:
            due, number, alarm = self._heap[0]
            if number > last:
                break  # set by one of those that went off just now: for the next turn
            heappop(self._heap)
            if alarm.due == due:
                fired += 1
                alarm.go_off()
        return fired


class Deadline:
    """One recurring purpose with at most one deadline, for example the head of a queue.

    Setting it to a later moment is left out: it goes off early, and its action looks again.
    """

    __slots__ = ("_action", "_timers", "due")

    def __init__(self, timers: Timers, action: Callable[[], object]) -> None:
        self._timers = timers
        self._action = action
        self.due = inf

    def set(self, due: float) -> None:
        """Go off at `due`, or earlier if it was set so before."""
        if due < self.due:
            self.due = due
            self._timers.add(due, self)

    def clear(self) -> None:
        """Do not go off."""
        self.due = inf

    def go_off(self) -> None:
        """Run the action once."""
        self.due = inf
        self._action()


__getattr__ = old_names(__name__, {"Alarm": "Deadline"})
