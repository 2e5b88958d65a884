"""Compute the cost of browsing a queue, and refuse to browse if messages could be lost.

AMQP has no way to read a message without taking it. When it is requeued, it gets the redelivered
flag, and a quorum queue also counts a delivery. A message that exceeds the delivery limit is
dead-lettered, or deleted if there is no dead-letter exchange. RabbitMQ has a default limit of 20
since version 4.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.broker.limits import is_near_limit
from hopback.errors import UnsafeOperation
from hopback.ops.contract.values import Cost, Price
from hopback.ops.messages.dead_letter import delivery_count
from hopback.topology.effective import MANY_RETURNS, delivery_limit
from hopback.topology.model import Queue, QueueType
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.message import Delivery


def cost_of_browsing(
    queue: Queue | None, version: BrokerVersion, *, why_not_lifted: str = "", killed: bool = False
) -> Cost:
    """Return the cost of one browse session.

    `queue` must have its policies applied, and is None if the queue is unknown. `why_not_lifted`
    explains why a policy cannot lift the delivery limit, or is empty if a policy can. If `killed`
    is True, the result is the cost of a session that loses its connection before it has requeued
    its messages. This can happen to a job.
    """
    if queue is None:
        return _unknown(version)
    if queue.type is QueueType.STREAM:
        return _stream(queue, killed=killed)
    if queue.auto_delete:
        return Cost(
            Price.REFUSED,
            f"refused: {queue.name} is auto-delete, and the broker deletes it with all its messages"
            " when the browsing consumer is cancelled",
            remedy="Keep another consumer on the queue, or accept the risk explicitly.",
        )
    if queue.type is QueueType.CLASSIC:
        return Cost(
            Price.FREE,
            "free: a classic queue does not count deliveries and only sets the redelivered flag",
        )
    limit = delivery_limit(queue, version)
    if not killed and limit is not None and version >= _NACK_IS_FREE_SINCE:
        # A lost connection still counts as a delivery, so a single delivery must use less than half
        # of the limit.
        is_delayed = queue.arguments.get("x-delayed-retry-type") in ("all", "returned")
        if not is_near_limit(1, limit) and not is_delayed:
            return Cost(
                Price.FREE,
                "free: messages are requeued by basic.nack, which this broker does not count. Only a lost"
                f" connection costs each held message one of {limit:,} deliveries",
                limit,
            )
    return _quorum(queue, limit, why_not_lifted)


_NACK_IS_FREE_SINCE = BrokerVersion(4, 3)
"""Since this version, RabbitMQ does not count a nack with requeue as a delivery. It still counts
rejects, closed channels and crashes.
"""


def _stream(queue: Queue, *, killed: bool) -> Cost:
    if not killed:
        return Cost(
            Price.FREE,
            "free: it is a stream, and reading does not remove its messages",
            is_stream=True,
        )
    return Cost(
        Price.REFUSED,
        f"refused: {queue.name} is a stream, and messages cannot be removed from a stream",
        remedy="Export its messages and import the file into a queue.",
        is_stream=True,
    )


def _quorum(queue: Queue, limit: int | None, why_not_lifted: str) -> Cost:
    if limit is None:
        return Cost(
            Price.FREE,
            "free: this quorum queue has no delivery limit and only sets the redelivered flag",
        )
    if limit >= MANY_RETURNS:
        return Cost(
            Price.COUNTED,
            f"1 of {limit:,} allowed deliveries per held message, independent of the number of pages",
            limit,
        )
    return Cost(
        Price.REFUSED,
        f"refused: the queue removes a message that was requeued {limit + 1} times, and each browse"
        " session requeues its messages once",
        limit,
        f"The limit cannot be lifted: {why_not_lifted}. Raise or remove it where it was set, or"
        " accept the risk explicitly."
        if why_not_lifted
        else "Lift the limit (a policy with delivery-limit -1 for this queue), or accept the risk"
        " explicitly.",
        not why_not_lifted,
    )


def _unknown(version: BrokerVersion) -> Cost:
    """Return the cost if the type of the queue is unknown. RabbitMQ has a default limit since
    version 4.0.
    """
    if version.major < 4:
        return Cost(
            Price.FREE,
            f"free unless the queue has a delivery limit: RabbitMQ {version} has no default limit",
        )
    return Cost(
        Price.REFUSED,
        f"refused: the type and limit of the queue are unknown, and RabbitMQ {version} removes messages"
        " of a quorum queue that were requeued 21 times",
        remedy="Declare the queue, specify the management address, or accept the risk explicitly.",
    )


def check_cost(cost: Cost, *, force: bool) -> None:
    """Raise UnsafeOperation if reading could lose messages, unless the caller accepts this with `force`."""
    if cost.price is Price.REFUSED and not force:
        raise UnsafeOperation(f"{cost.text}. {cost.remedy}", can_lift=cost.can_lift)


def check_delivery_count(queue: str, delivery: Delivery, cost: Cost) -> None:
    """Raise UnsafeOperation if a message has used up half of the delivery limit of its queue."""
    count = 0 if cost.limit is None else delivery_count(delivery)
    if is_near_limit(count, cost.limit):
        raise UnsafeOperation(
            f"browsing {queue!r} was stopped: a message was already delivered {count} times, and the queue"
            f" removes it after {cost.limit}. Lift the limit first"
        )
