"""Refuse to read a queue if that could lose messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.broker.limits import is_near_limit
from hopback.errors import UnsafeOperation
from hopback.ops.contract.values import Cost, Price
from hopback.ops.messages.dead_letter import delivery_count

if TYPE_CHECKING:
    from hopback.message import Delivery


def check_cost(cost: Cost, *, forced: bool) -> None:
    """Raise UnsafeOperation if reading could lose messages and the caller has not accepted that."""
    if cost.price is Price.REFUSED and not forced:
        raise UnsafeOperation(f"{cost.text}. {cost.remedy}", can_lift=cost.can_lift)


def check_delivery_count(queue: str, delivery: Delivery, cost: Cost) -> None:
    """Raise UnsafeOperation if a message has used up half of its queue's delivery limit."""
    count = 0 if cost.limit is None else delivery_count(delivery)
    if is_near_limit(count, cost.limit):
        raise UnsafeOperation(
            f"looking at {queue!r} stopped: a message was delivered {count} times already and the queue"
            f" removes it after {cost.limit}. Lift the limit before looking again"
        )
