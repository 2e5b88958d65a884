"""The queue that keeps what a periodic message has reached, and chooses who sends it.

It holds one small message. All processes of an application consume the queue, and the broker gives it to
one of them, its single active consumer: that one sends what is due. If it dies, the message goes to the
next.
"""

from __future__ import annotations

from hopback.topology.expand import NO_DELIVERY_LIMIT
from hopback.topology.model import Queue, QueueType

__all__ = ["schedule_queue", "schedule_queue_name", "scheduled_queue"]

_SCHEDULE = ".schedule"


def schedule_queue_name(queue: str) -> str:
    """The name of the queue that keeps what the periodic messages for `queue` have reached."""
    return queue + _SCHEDULE


def scheduled_queue(name: str) -> str | None:
    """The queue whose periodic messages a queue of this name may keep; None if by its name it is none."""
    return name.removesuffix(_SCHEDULE) if name.endswith(_SCHEDULE) else None


def schedule_queue(queue: str) -> Queue:
    """The queue itself. Processes may die as often as they like: nothing removes its message."""
    return Queue(
        schedule_queue_name(queue),
        QueueType.QUORUM,
        arguments={
            "x-single-active-consumer": True,
            "x-delivery-limit": NO_DELIVERY_LIMIT,
        },
    )
