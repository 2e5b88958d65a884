"""Compute the cost of browsing a queue, pure.

AMQP cannot read a message without taking it. A requeued message has the redelivered flag, and a quorum queue
counts one more delivery. At the delivery limit the broker removes the message, without a trace if there is no
dead-letter exchange. RabbitMQ 4.0 and later have a default limit of 20.
"""

from __future__ import annotations

from hopback.broker.limits import spent
from hopback.ops.contract.values import Cost, Price
from hopback.topology.effective import delivery_limit
from hopback.topology.model import Queue, QueueType
from hopback.version import BrokerVersion

MANY_LOOKS = 1000
"""A limit from here on is no danger: nobody looks that often before it is noticed."""


def cost_of_looking(
    queue: Queue | None, version: BrokerVersion, *, why_not_lifted: str = "", killed: bool = False
) -> Cost:
    """What one browse session costs; `queue` with its policy applied, None if it is not known.

    `why_not_lifted` says why no policy can lift its delivery limit; empty if one can. `killed`: what it costs
    if its connection ends before anything can be given back, as that of a job may.
    """
    if queue is None:
        return _unknown(version)
    if queue.type is QueueType.STREAM:
        return _stream(queue, killed=killed)
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
    limit = delivery_limit(queue, version)
    if not killed and limit is not None and version >= _NACK_IS_FREE_SINCE:
        # A lost connection is counted still: a limit of which that is half is none to look under.
        is_delayed = queue.arguments.get("x-delayed-retry-type") in ("all", "returned")
        if not spent(1, limit) and not is_delayed:
            return Cost(
                Price.FREE,
                "free: what is held goes back by basic.nack, which this broker does not count; only a"
                f" connection that is lost meanwhile costs each message one of {limit:,} deliveries",
                limit,
            )
    return _quorum(queue, limit, why_not_lifted)


_NACK_IS_FREE_SINCE = BrokerVersion(4, 3)
"""From then on a nack with requeue is no failed delivery; a reject, a closed channel and a crash are."""


def _stream(queue: Queue, *, killed: bool) -> Cost:
    if not killed:
        return Cost(
            Price.FREE,
            "free: it is a stream, which is read without taking anything away",
            is_stream=True,
        )
    return Cost(
        Price.REFUSED,
        f"refused: {queue.name} is a stream, and nothing can be taken out of a stream",
        remedy="Export it, and import that into a queue.",
        is_stream=True,
    )


def _quorum(queue: Queue, limit: int | None, why_not_lifted: str) -> Cost:
    if limit is None:
        return Cost(
            Price.FREE,
            "free: this quorum queue has no delivery limit; only the redelivered flag is set",
        )
    if limit >= MANY_LOOKS:
        return Cost(
            Price.COUNTED,
            f"one delivery count of {limit:,} for each message held, however many pages are read",
            limit,
        )
    return Cost(
        Price.REFUSED,
        f"refused: the queue removes a message when it has come back {limit + 1} times, and each"
        " look is one of them",
        limit,
        f"The limit cannot be lifted from here: {why_not_lifted}. Raise or remove it where it was set, or"
        " accept the danger explicitly."
        if why_not_lifted
        else "Lift the limit (a policy with delivery-limit -1 for this queue), or accept the danger"
        " explicitly.",
        not why_not_lifted,
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
