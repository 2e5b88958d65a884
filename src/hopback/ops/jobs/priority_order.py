"""Detect new messages that a queue delivers before older ones because of their priority.

A job takes the first messages of its queue. If a message with a higher priority arrives meanwhile,
the queue delivers it next, and it would be moved instead of the last selected message.

A classic queue with `x-max-priority` delivers the highest priority first. A quorum queue of RabbitMQ
4.3 does the same with messages that were never delivered. From 4.0 on, it has two classes: for every
normal message, it delivers two with a priority above 4. In all cases, messages of one class keep
their order, so a new message of the class in progress is not detected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.headers.raw import priority_in
from hopback.topology.model import QueueType
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.message import Delivery
    from hopback.topology.model import Queue

_TWO_CLASSES_SINCE = BrokerVersion(4, 0)
_STRICT_SINCE = BrokerVersion(4, 3)
_HIGHEST = 31
"""The highest priority of a quorum queue. Larger values are treated as this one."""
_UNSET = 4
"""The priority of messages without one in a quorum queue, and the highest normal one in 4.0."""
_MOST_NORMAL = 1
"""Consecutive normal messages that a queue with two classes delivers while others are waiting."""


class PriorityOrder:
    """The priorities of the deliveries of a run."""

    def __init__(
        self, queue: Queue | None, version: BrokerVersion, *, is_resumed: bool = False
    ) -> None:
        """`queue` must have its policies applied, and is None if it is unknown.

        A resumed job only sees requeued messages of its earlier runs, so new messages of a quorum
        queue are also compared with these.
        """
        most = None if queue is None else queue.arguments.get("x-max-priority")
        kind = None if queue is None else queue.type
        self._most = most if kind is QueueType.CLASSIC and isinstance(most, int) else None
        is_quorum = kind is QueueType.QUORUM and version >= _TWO_CLASSES_SINCE
        self._has_classes = is_quorum and version < _STRICT_SINCE
        self._is_quorum = is_quorum
        self._is_resumed = is_resumed
        self._lowest: int | None = None
        self._normal = 0

    def is_new(self, delivery: Delivery) -> bool:
        """Return whether a message has arrived after an earlier delivery. Call this for every
        delivery in order.
        """
        if self._most is not None:
            return self._rises(min(_priority_of(delivery) or 0, self._most))
        if not self._is_quorum or (delivery.redelivered and not self._is_resumed):
            return False
        priority = _priority_of(delivery)
        if not self._has_classes:
            rises = self._rises(_UNSET if priority is None else min(priority, _HIGHEST))
            return rises and not delivery.redelivered
        if (priority or 0) <= _UNSET:
            self._normal += 1
            return False
        was_waiting = self._normal <= _MOST_NORMAL
        self._normal = 0
        return not was_waiting and not delivery.redelivered

    def _rises(self, level: int) -> bool:
        rises = self._lowest is not None and level > self._lowest
        self._lowest = level if self._lowest is None else min(level, self._lowest)
        return rises


def _priority_of(delivery: Delivery) -> int | None:
    """Return the priority without decoding the headers, if the encoded properties are available."""
    raw: bytes | None = getattr(delivery, "raw_properties", None)
    return delivery.properties.priority if raw is None else priority_in(raw)
