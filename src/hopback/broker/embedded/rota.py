"""The consumers of a queue, and whose turn it is."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from hopback.renamed import old_names

if TYPE_CHECKING:
    from hopback.broker.embedded.queue import LiveQueue
    from hopback.broker.embedded.session import SessionChannel
    from hopback.fields import Headers

__all__ = ["QueueConsumer", "Rota"]


class QueueConsumer:
    """A consumer: at most `prefetch` unsettled deliveries at once, 0 for no limit."""

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
        self.tag = tag
        self.queue = queue
        self.channel = channel
        self.prefetch = prefetch
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.arguments = arguments
        priority = arguments.get("x-priority", 0)
        self.priority = priority if isinstance(priority, int) else 0
        self.holding = 0
        self.listed = False
        self.cancelled = False

    def has_room(self) -> bool:
        """Whether another delivery may be handed to it."""
        if self.prefetch and self.holding >= self.prefetch and not self.no_ack:
            return False
        return self.channel.has_room(self)


class Rota:
    """Takes turns among the consumers that have room; with one active consumer, only that one."""

    __slots__ = ("_ready", "_single", "_tiered", "consumers", "leaving")

    def __init__(self, *, single_active: bool) -> None:
        self.consumers: list[QueueConsumer] = []
        self.leaving: list[QueueConsumer] = []
        """Those that were cancelled and still hold messages, as far as the queue remembers them."""
        self._ready: deque[QueueConsumer] = deque()
        self._single = single_active
        self._tiered = False

    @property
    def is_single(self) -> bool:
        """Whether only one consumer at a time is served."""
        return self._single

    @property
    def active(self) -> QueueConsumer | None:
        """The single active consumer, where the queue has such a thing."""
        return self.consumers[0] if self._single and self.consumers else None

    def add(self, consumer: QueueConsumer) -> None:
        """A consumer has come."""
        self.consumers.append(consumer)
        self._tiered = len({each.priority for each in self.consumers}) > 1
        self.wake(consumer)

    def remove(self, consumer: QueueConsumer) -> None:
        """A consumer is gone; the next one may become the active one."""
        consumer.cancelled = True
        self.consumers.remove(consumer)
        if consumer.listed:
            consumer.listed = False
            self._ready.remove(consumer)
        self._tiered = len({each.priority for each in self.consumers}) > 1
        if self._single and self.consumers:
            self.wake(self.consumers[0])

    def wake(self, consumer: QueueConsumer) -> None:
        """It may have room again: let it take its turn."""
        if consumer.listed or consumer.cancelled:
            return
        if self._single and consumer is not self.active:
            return
        consumer.listed = True
        self._ready.append(consumer)

    def next(self) -> QueueConsumer | None:
        """Whose turn it is, or None if nobody has room."""
        ready = self._ready
        while ready:
            consumer = self._foremost()
            if consumer.has_room():
                if len(ready) > 1:
                    ready.remove(consumer)
                    ready.append(consumer)
                return consumer
            consumer.listed = False
            ready.remove(consumer)
        return None

    def _foremost(self) -> QueueConsumer:
        """The first in line of those with the highest priority."""
        if not self._tiered:
            return self._ready[0]
        return max(self._ready, key=lambda consumer: consumer.priority)


__getattr__ = old_names(__name__, {"Consumer": "QueueConsumer"})
