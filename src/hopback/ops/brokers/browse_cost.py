"""Compute the cost of browsing a queue, and refuse to browse if that could lose messages. Pure.

AMQP cannot read a message without taking it. A requeued message has the redelivered flag, and a quorum queue
counts one more delivery. At the delivery limit the broker removes the message, without a trace if there is no
dead-letter exchange. RabbitMQ 4.0 and later have a default limit of 20.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.broker.limits import is_near_limit
from hopback.errors import UnsafeOperation
from hopback.ops.contract.values import Cost, Price
from hopback.ops.messages.dead_letter import delivery_count
from hopback.topology.effective import delivery_limit
from hopback.topology.model import Queue, QueueType
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.message import Delivery

MANY_LOOKS = 1000
"""Deliveries. A higher delivery limit is not a risk, because no operator browses a queue that often."""


def cost_of_browsing(
    queue: Queue | None, version: BrokerVersion, *, why_not_lifted: str = "", killed: bool = False
) -> Cost:
    """Return the cost of one browse session. `queue` has its policy applied and is None if unknown.

    `why_not_lifted` is the reason why a policy cannot lift the delivery limit, or an empty string if it can.
    With `killed`, the result is the cost if the connection is lost before the messages are requeued, as can
    happen to a job.
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
            remedy="Keep another consumer on the queue, or accept the danger explicitly.",
        )
    if queue.type is QueueType.CLASSIC:
        return Cost(
            Price.FREE,
            "free: a classic queue does not count deliveries and only sets the redelivered flag",
        )
    limit = delivery_limit(queue, version)
    if not killed and limit is not None and version >= _NACK_IS_FREE_SINCE:
        # A lost connection still counts as a delivery. Browsing is not free if a single delivery is half of
        # the limit.
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
"""Since this version, a nack with requeue is not counted. Rejects, closed channels and crashes still are."""


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
    if limit >= MANY_LOOKS:
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
        " accept the danger explicitly."
        if why_not_lifted
        else "Lift the limit (a policy with delivery-limit -1 for this queue), or accept the danger"
        " explicitly.",
        not why_not_lifted,
    )


def _unknown(version: BrokerVersion) -> Cost:
    """Return the cost for a queue of unknown type. RabbitMQ has a default limit since version 4.0."""
    if version.major < 4:
        return Cost(
            Price.FREE,
            f"free unless the queue has a delivery limit: RabbitMQ {version} has no default limit",
        )
    return Cost(
        Price.REFUSED,
        f"refused: the type and limit of the queue are unknown, and RabbitMQ {version} removes messages"
        " of a quorum queue that were requeued 21 times",
        remedy="Declare the queue, specify the management address, or accept the danger explicitly.",
    )


def check_cost(cost: Cost, *, force: bool) -> None:
    """Raise UnsafeOperation if reading could lose messages and the caller has not accepted that."""
    if cost.price is Price.REFUSED and not force:
        raise UnsafeOperation(f"{cost.text}. {cost.remedy}", can_lift=cost.can_lift)


def check_delivery_count(queue: str, delivery: Delivery, cost: Cost) -> None:
    """Raise UnsafeOperation if a message has used up half of its queue's delivery limit."""
    count = 0 if cost.limit is None else delivery_count(delivery)
    if is_near_limit(count, cost.limit):
        raise UnsafeOperation(
            f"looking at {queue!r} stopped: a message was delivered {count} times already and the queue"
            f" removes it after {cost.limit}. Lift the limit before looking again"
        )
