"""What looking at a queue costs, known before anyone looks. Pure.

AMQP cannot read without taking. What was taken and given back has the redelivered flag, and in a
quorum queue one more delivery counted; at the limit the broker removes the message, without a word
where there is no dead-letter exchange. RabbitMQ 4.0 and later set a limit of 20 by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.broker.limits import spent
from hopback.deadletters.contract import Cost, Price
from hopback.topology.effective import delivery_limit
from hopback.topology.model import QueueType

if TYPE_CHECKING:
    from hopback.topology.model import Queue
    from hopback.version import BrokerVersion

__all__ = ["MANY_LOOKS", "cost_of_looking", "spent_too_much"]

MANY_LOOKS = 1000
"""A limit from here on is no danger: nobody looks that often before it is noticed."""


def cost_of_looking(queue: Queue | None, version: BrokerVersion) -> Cost:
    """What one browse session costs; `queue` with its policy applied, None if it is not known."""
    if queue is None:
        return _unknown(version)
    if queue.type is QueueType.STREAM:
        return Cost(
            Price.REFUSED,
            f"{queue.name} is a stream: it cannot be taken from message by message",
            remedy="Read it with a stream consumer; reading a stream harms nothing.",
        )
    if queue.auto_delete:
        return Cost(
            Price.REFUSED,
            f"refused: {queue.name} is auto-delete, and the broker deletes it with all its messages"
            " when the consumer that looks ends",
            remedy="Let another consumer stay on the queue meanwhile, or accept the danger explicitly.",
        )
    if queue.type is QueueType.CLASSIC:
        return Cost(
            Price.FREE,
            "free: a classic queue counts no deliveries; only the redelivered flag is set",
        )
    return _quorum(queue, delivery_limit(queue, version))


def spent_too_much(delivery_count: int, cost: Cost) -> bool:
    """Whether a message of this count has used up half of its deliveries: time to stop looking."""
    return spent(delivery_count, cost.limit)


def _quorum(queue: Queue, limit: int | None) -> Cost:
    if limit is None:
        return Cost(
            Price.FREE,
            "free: this quorum queue has no delivery limit; only the redelivered flag is set",
        )
    if limit >= MANY_LOOKS:
        return Cost(
            Price.COUNTED,
            f"one delivery count of {limit} for each message held, however many pages are read",
            limit,
        )
    return Cost(
        Price.REFUSED,
        f"refused: {queue.name} removes a message when it has come back {limit + 1} times, and each"
        f" look is one of them",
        limit,
        "Lift the limit (policy `delivery-limit: -1` for this queue), or accept the danger explicitly.",
    )


def _unknown(version: BrokerVersion) -> Cost:
    """Of a queue we know nothing about: before 4.0 there is no limit unless someone set one."""
    if version.major < 4:
        return Cost(
            Price.FREE, f"free, unless someone set a delivery limit: RabbitMQ {version} has none"
        )
    return Cost(
        Price.REFUSED,
        f"refused: type and limit of the queue are not known, and RabbitMQ {version} removes messages"
        " of a quorum queue when they have come back 21 times",
        remedy="Declare the queue, give the management address, or accept the danger explicitly.",
    )
