"""What a queue last told of itself: the numbers of the management API are as old as its last tick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.renamed import old_names

if TYPE_CHECKING:
    from hopback.broker.embedded.queue import LiveQueue

__all__ = ["TICK_S", "QueueTotals", "Ticks"]

TICK_S = 5.0
"""RabbitMQ's default for the tick of a quorum queue and for the interval of its statistics."""


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """How much there is in a queue at one moment."""

    ready: int = 0
    unacked: int = 0
    held_back: int = 0
    delayed: int = 0
    consumers: int = 0

    @property
    def messages(self) -> int:
        """All of them."""
        return self.ready + self.unacked + self.held_back + self.delayed


class Ticks:
    """Remembers the tally of one queue at the last tick, without a timer of its own.

    Whoever is about to change the queue calls `before_change`. What was there before the first
    change since a tick is what was there at that tick.
    """

    __slots__ = ("_queue", "_tally", "_tick")

    def __init__(self, queue: LiveQueue) -> None:
        self._queue = queue
        self._tick = self._now()
        self._tally = QueueTotals()

    def before_change(self) -> None:
        """The queue is about to change."""
        tick = self._now()
        if tick != self._tick:
            self._tick, self._tally = tick, self.exact()

    def last(self) -> QueueTotals:
        """What there was at the last tick."""
        return self._tally if self._now() == self._tick else self.exact()

    def exact(self) -> QueueTotals:
        """What there is now."""
        queue = self._queue
        return QueueTotals(
            len(queue.ready),
            queue.unacked,
            len(queue.safe),
            len(queue.delays),
            len(queue.rota.consumers),
        )

    def _now(self) -> int:
        return int(self._queue.node.now() // TICK_S)


__getattr__ = old_names(__name__, {"Tally": "QueueTotals"})
