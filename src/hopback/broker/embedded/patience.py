"""The consumer timeout: how long a delivery may stay unsettled."""

from __future__ import annotations

from math import ceil, inf
from typing import TYPE_CHECKING

from hopback.broker.embedded.refusal import precondition_failed
from hopback.broker.embedded.timers import Deadline

if TYPE_CHECKING:
    from hopback.broker.embedded.refusal import Refusal
    from hopback.broker.embedded.session import SessionChannel
    from hopback.broker.embedded.stored import Taken

__all__ = ["Patience"]

_TICK_S = 60.0
"""How often the broker looks."""


class Patience:
    """Watches what one channel holds, with one alarm for all of it.

    A delivery held for too long closes the channel; on 4.3 it ends its consumer instead, and
    classic queues wait forever.
    """

    __slots__ = ("_alarm", "_channel", "_earliest", "_opened")

    def __init__(self, channel: SessionChannel) -> None:
        self._channel = channel
        self._opened = channel.node.now()
        self._alarm = Deadline(channel.node.timers, self._look)
        self._earliest = inf
        """The deadline that the alarm was set for; it goes off at the next look after that."""

    def watch(self, taken: Taken) -> None:
        """A delivery has been handed out."""
        timeout = self._timeout(taken)
        if timeout is not None and taken.at + timeout < self._earliest:
            self._set(taken.at + timeout)

    def clear(self) -> None:
        """The channel is gone."""
        self._alarm.clear()

    def _set(self, due: float) -> None:
        self._earliest = due
        ticks = ceil((due - self._opened) / _TICK_S)
        self._alarm.set(self._opened + ticks * _TICK_S)

    def _timeout(self, taken: Taken) -> float | None:
        node, queue = self._channel.node, taken.source
        if node.profile.consumer_timeout_cancels and not queue.is_quorum:
            return None
        own = queue.settings.consumer_timeout
        return node.consumer_timeout if own is None else own

    def _look(self) -> None:
        now = self._channel.node.now()
        self._earliest = inf
        deadlines = [
            (taken.at + timeout, timeout, taken)
            for taken in self._channel.unacked.values()
            if not taken.void and (timeout := self._timeout(taken)) is not None
        ]
        late = [(timeout, taken) for due, timeout, taken in deadlines if due <= now]
        if late:
            self._end(late)
        elif deadlines:
            self._set(min(due for due, _, _ in deadlines))

    def _end(self, late: list[tuple[float, Taken]]) -> None:
        cancels = self._channel.node.profile.consumer_timeout_cancels
        for timeout, taken in late:
            if taken.consumer is None or not cancels:
                self._channel.fail(self._refusal(timeout))
                return
        for _, taken in late:
            if taken.consumer is not None and not taken.void:
                self._channel.end_consumer(taken.consumer)
        self._look()

    def _refusal(self, timeout: float) -> Refusal:
        return precondition_failed(
            f"delivery acknowledgement on channel {self._channel.number} timed out."
            f" Timeout value used: {timeout * 1000:.0f} ms. This timeout value can be configured,"
            " see consumers doc guide to learn more"
        )
