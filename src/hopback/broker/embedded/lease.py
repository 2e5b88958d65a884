"""The lease of a queue with `x-expires`: unused for too long, it is deleted."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from hopback.broker.embedded.journal import Loss
from hopback.broker.embedded.timers import Deadline

if TYPE_CHECKING:
    from hopback.broker.embedded.queue import LiveQueue

__all__ = ["Lease"]

_TICK_S = 5.0
"""How often a quorum queue looks at its lease; a classic queue is exact."""


class Lease:
    """Runs while the queue has no consumers; whoever uses the queue renews it."""

    __slots__ = ("_alarm", "_born", "_last_used", "_queue")

    def __init__(self, queue: LiveQueue) -> None:
        self._queue = queue
        self._alarm = Deadline(queue.node.timers, self._look)
        self._born = queue.node.now()
        self.renew()

    def renew(self) -> None:
        """The queue is used just now, or has other settings."""
        self._last_used = self._queue.node.now()
        self._set()

    def clear(self) -> None:
        """The queue is gone."""
        self._alarm.clear()

    def _set(self) -> None:
        expires = self._queue.settings.expires
        if expires is not None and not self._queue.rota.consumers:
            self._alarm.set(self._end(expires))

    def _end(self, expires: float) -> float:
        end = self._last_used + expires
        if not self._queue.is_quorum:
            return end
        return self._born + _TICK_S * ceil((end - self._born) / _TICK_S)

    def _look(self) -> None:
        expires = self._queue.settings.expires
        if expires is None or self._queue.rota.consumers:
            return
        if self._end(expires) <= self._queue.node.now():
            self._queue.node.remove_queue(self._queue, Loss.QUEUE_EXPIRED)
        else:
            self._set()
