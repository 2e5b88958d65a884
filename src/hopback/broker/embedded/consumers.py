"""Consumers of a queue: round-robin delivery and consumer timeouts."""

from __future__ import annotations

from collections import deque
from math import ceil, inf
from typing import TYPE_CHECKING

from hopback.broker.embedded.refusal import precondition_failed
from hopback.broker.embedded.timers import Deadline

if TYPE_CHECKING:
    from hopback.broker.embedded.queue import LiveQueue
    from hopback.broker.embedded.session import SessionChannel
    from hopback.broker.embedded.stored import UnackedDelivery
    from hopback.fields import Headers


_TICK_S = 60.0
"""Interval of the broker's checks, in seconds."""


class ConsumerTimeout:
    """The consumer timeout of a channel. Uses a single timer for all deliveries.

    If a delivery exceeds the timeout, the channel is closed. RabbitMQ 4.3 cancels the consumer
    instead, and has no timeout for classic queues.
    """

    __slots__ = ("_alarm", "_channel", "_earliest", "_opened")

    def __init__(self, channel: SessionChannel) -> None:
        self._channel = channel
        self._opened = channel.node.now()
        self._alarm = Deadline(channel.node.timers, self._look)
        self._earliest = inf
        """When the timer is set to expire. The timeout takes effect at the next check after that.
        """

    def watch(self, taken: UnackedDelivery) -> None:
        """Start the timeout of a delivery."""
        timeout = self._timeout(taken)
        if timeout is not None and taken.at + timeout < self._earliest:
            self._set(taken.at + timeout)

    def clear(self) -> None:
        self._alarm.clear()

    def _set(self, due: float) -> None:
        self._earliest = due
        ticks = ceil((due - self._opened) / _TICK_S)
        self._alarm.set(self._opened + ticks * _TICK_S)

    def _timeout(self, taken: UnackedDelivery) -> float | None:
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
        if not late:
            if deadlines:
                self._set(min(due for due, _, _ in deadlines))
            return
        cancels = self._channel.node.profile.consumer_timeout_cancels
        for timeout, taken in late:
            if taken.consumer is None or taken.consumer.cancelled or not cancels:
                used = -1 if cancels else round(timeout * 1000)
                self._channel.fail(
                    precondition_failed(
                        f"delivery acknowledgement on channel {self._channel.number} timed out."
                        f" Timeout value used: {used} ms. This timeout value can be configured,"
                        " see consumers doc guide to learn more"
                    )
                )
                return
        for consumer in dict.fromkeys(taken.consumer for _, taken in late):
            if consumer is not None:
                held = [taken for _, taken in late if taken.consumer is consumer]
                self._channel.end_consumer(consumer, held)
        self._look()


class QueueConsumer:
    """A consumer. `prefetch` limits its unsettled deliveries, 0 means no limit."""

    __slots__ = (
        "arguments",
        "cancelled",
        "channel",
        "exclusive",
        "holding",
        "listed",
        "no_ack",
        "prefetch",
        "priority",
        "queue",
        "tag",
    )

    def __init__(
        self,
        tag: str,
        queue: LiveQueue,
        channel: SessionChannel,
        *,
        prefetch: int,
        no_ack: bool,
        exclusive: bool,
        arguments: Headers,
    ) -> None:
        self.tag: str = tag
        self.queue: LiveQueue = queue
        self.channel: SessionChannel = channel
        self.prefetch: int = prefetch
        self.no_ack: bool = no_ack
        self.exclusive: bool = exclusive
        self.arguments: Headers = arguments
        priority = arguments.get("x-priority", 0)
        self.priority: int = priority if isinstance(priority, int) else 0
        self.holding: int = 0
        self.listed: bool = False
        self.cancelled: bool = False

    def has_room(self) -> bool:
        """Whether the consumer can take another delivery."""
        if self.prefetch and self.holding >= self.prefetch and not self.no_ack:
            return False
        return self.channel.has_room(self)


class ConsumerRing:
    """Delivers to consumers in turn. If there is a single active consumer, all messages go to it."""

    __slots__ = ("_ready", "_single", "_tiered", "consumers", "leaving")

    def __init__(self, *, single_active: bool) -> None:
        self.consumers: list[QueueConsumer] = []
        self.leaving: list[QueueConsumer] = []
        """Cancelled consumers that still have unsettled messages, if the queue keeps track of them.
        """
        self._ready: deque[QueueConsumer] = deque()
        self._single = single_active
        self._tiered = False

    @property
    def is_single(self) -> bool:
        """Whether the queue has a single active consumer."""
        return self._single

    @property
    def active(self) -> QueueConsumer | None:
        """The single active consumer, if there is one."""
        return self.consumers[0] if self._single and self.consumers else None

    def add(self, consumer: QueueConsumer) -> None:
        self.consumers.append(consumer)
        self._tiered = len({each.priority for each in self.consumers}) > 1
        self.wake(consumer)

    def remove(self, consumer: QueueConsumer) -> None:
        """Remove a consumer. Another one may become active."""
        consumer.cancelled = True
        self.consumers.remove(consumer)
        if consumer.listed:
            consumer.listed = False
            self._ready.remove(consumer)
        self._tiered = len({each.priority for each in self.consumers}) > 1
        if self._single and self.consumers:
            self.wake(self.consumers[0])

    def wake(self, consumer: QueueConsumer) -> None:
        """Put a consumer back into rotation. It may be able to take deliveries again."""
        if consumer.listed or consumer.cancelled:
            return
        if self._single and consumer is not self.active:
            return
        consumer.listed = True
        self._ready.append(consumer)

    def next(self) -> QueueConsumer | None:
        """Return the next consumer in turn, or None if all of them are busy."""
        ready = self._ready
        while ready:
            # Use the first consumer with the highest priority.
            consumer = max(ready, key=lambda one: one.priority) if self._tiered else ready[0]
            if consumer.has_room():
                if len(ready) > 1:
                    ready.remove(consumer)
                    ready.append(consumer)
                return consumer
            consumer.listed = False
            ready.remove(consumer)
        return None
