"""Create the queues for a failure plan.

The hardened form only uses quorum queues with at-least-once dead-lettering. When the delivery limit
of the main queue is reached, messages are moved to the dead-letter queue. Retry queues return
messages directly to the main queue. Messages are never removed from the dead-letter queue
automatically.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.durations import LONGEST_MS, format_duration
from hopback.errors import InvalidTopology, Problem
from hopback.topology.model import Queue, QueueType, Topology
from hopback.topology.plan import (
    Count,
    Leave,
    Parking,
    Plan,
    Redrive,
    Return,
    Route,
    Tier,
)
from hopback.topology.routing import RoutingTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hopback.fields import FieldValue

DELIVERY_LIMIT = 200
"""The default delivery limit of main queues.

A crash of a consumer increments the delivery count of all its prefetched messages. After four
crashes, each of them is handled alone (see `policy.quarantine`). The limit has to be much higher than
the number of crashes that a harmless message can experience. It must still stop a message that
always crashes its consumer.
"""

NO_DELIVERY_LIMIT = 1_000_000_000
"""A delivery limit for queues that must not drop messages.

The default limit is 20 since RabbitMQ 4.0. The value -1 disables it, but RabbitMQ 3.10 treats -1 as
0 and drops messages when they are requeued. A very large number works with all versions.
"""

SHADOW = ".migrating"
"""The suffix of the queue that stores messages while a queue is being replaced.

While `NAME.migrating` exists, `NAME` must only be created by the migration.
"""


def dead_lettering(
    exchange: str, routing_key: str, *, ttl_ms: int | None = None
) -> dict[str, FieldValue]:
    """Return the queue arguments for dead-lettering to `exchange`, with a TTL for retry queues."""
    arguments: dict[str, FieldValue] = {} if ttl_ms is None else {"x-message-ttl": ttl_ms}
    arguments["x-dead-letter-exchange"] = exchange
    # A fanout exchange does not need a key, and an empty key would replace the original one.
    if routing_key:
        arguments["x-dead-letter-routing-key"] = routing_key
    return arguments


def one_tier(delay_ms: int, exchange: str, routing_key: str, queue: str) -> tuple[Tier, ...]:
    """Return the tiers of a design with a single retry queue."""
    return (Tier(format_duration(delay_ms), delay_ms, (Route(exchange, routing_key, queue),)),)


def harden(plan: Plan) -> Plan:
    """Return the hardened form of a plan.

    Messages are moved with confirmed publishes and return directly to their queue. Attempts are
    counted in Hopback's header. Snoozed messages wait in a retry queue, because requeueing
    increments the delivery count of quorum queues.
    """
    return replace(
        plan,
        leave=Leave.PUBLISH,
        returns=Return.QUEUE,
        count=Count.HEADER,
        parking=replace(plan.parking, by=Leave.PUBLISH),
        snooze=None,
    )


def harden_queues(plan: Plan, *, delivery_limit: int = DELIVERY_LIMIT) -> tuple[Queue, ...]:
    """Return the main, retry and dead-letter queues of a hardened plan."""
    main = at_least_once(
        plan.queue,
        dead_lettering(plan.parking.exchange, plan.parking.routing_key),
        {"x-delivery-limit": delivery_limit},
    )
    waiting = (
        at_least_once(name, dead_lettering("", plan.queue, ttl_ms=delay_ms))
        for name, delay_ms in retry_queues(plan)
    )
    parked = Queue(
        plan.parking.queue, QueueType.QUORUM, arguments={"x-delivery-limit": NO_DELIVERY_LIMIT}
    )
    return (main, *waiting, parked)


def dead_letters_park(topology: Topology, plan: Plan) -> bool:
    """Return True if the broker moves rejected messages to the dead-letter queue of the plan and to no
    other queue.

    This is always the case for hardened plans. In other plans, the dead-letter exchange may be
    missing or lead to the retry queues.
    """
    queue = topology.queue(plan.queue)
    exchange = None if queue is None else queue.arguments.get("x-dead-letter-exchange")
    if queue is None or not isinstance(exchange, str):
        return False
    # Without a fixed key, the route has to be the same for all keys.
    key = queue.arguments.get("x-dead-letter-routing-key")
    keys = ("", "any.other.key") if key is None else (str(key),)
    table = RoutingTable(topology.exchanges, (q.name for q in topology.queues), topology.bindings)
    known = exchange == "" or topology.exchange(exchange) is not None
    return known and all(table.route(exchange, key) == (plan.parking.queue,) for key in keys)


def retry_queues(plan: Plan) -> tuple[tuple[str, int], ...]:
    """Return the name and delay of each retry queue."""
    found: dict[str, int] = {}
    for tier in plan.tiers:
        for route in tier.routes:
            found.setdefault(route.queue, tier.delay_ms)
    return tuple(found.items())


def unique_queues(queues: Iterable[Queue]) -> tuple[Queue, ...]:
    """Remove duplicate queues. A dead-letter queue can be shared by several plans."""
    return tuple({queue.name: queue for queue in queues}.values())


def recommend_plan(queue: str, *, tiers_ms: Sequence[int], attempts: int | None = None) -> Plan:
    """Return the recommended plan for a queue.

    Args:
        queue: The name of the queue.
        tiers_ms: The retry delays in milliseconds. Each distinct delay has its own retry queue.
            Without delays, a message is dead-lettered after the first failure.
        attempts: Maximum number of attempts. Defaults to the number of delays plus one. The last
            delay is used for additional attempts.

    Raises:
        InvalidTopology: If a value is invalid.
    """
    problems = [] if queue else [Problem("queue", "a name", "''")]
    for index, delay_ms in enumerate(tiers_ms):
        if not 1 <= delay_ms <= LONGEST_MS:
            possible = f"1 to {LONGEST_MS} ms"
            problems.append(Problem(f"tiers[{index}]", possible, f"{delay_ms} ms"))
        elif index and delay_ms < tiers_ms[index - 1]:
            longer = f"a delay no shorter than tiers[{index - 1}] ({tiers_ms[index - 1]} ms)"
            problems.append(Problem(f"tiers[{index}]", longer, f"{delay_ms} ms"))
    if attempts is not None and attempts < 1:
        problems.append(Problem("attempts", "at least 1", str(attempts)))
    elif attempts is not None and attempts > 1 and not tiers_ms:
        alone = "1, because there is no delay for a retry"
        problems.append(Problem("attempts", alone, str(attempts)))
    if problems:
        raise InvalidTopology(tuple(problems), where=f"recommended plan of queue {queue!r}")
    tiers = []
    for delay_ms in tiers_ms:
        name = format_duration(delay_ms)
        waiting = f"{queue}.retry.{name}"
        tiers.append(Tier(name, delay_ms, (Route("", waiting, waiting),)))
    return Plan(
        queue=queue,
        attempts=len(tiers_ms) + 1 if attempts is None else attempts,
        tiers=tuple(tiers),
        leave=Leave.PUBLISH,
        returns=Return.QUEUE,
        parking=Parking(f"{queue}.dlq", Leave.PUBLISH, "", f"{queue}.dlq"),
        count=Count.HEADER,
        redrive=Redrive("", queue),
    )


def at_least_once(name: str, *arguments: dict[str, FieldValue]) -> Queue:
    """Return a quorum queue with at-least-once dead-lettering.

    This requires `reject-publish`. Otherwise RabbitMQ falls back to at-most-once and only logs a
    warning.
    """
    together: dict[str, FieldValue] = {}
    for part in arguments:
        together |= part
    together |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    return Queue(name, QueueType.QUORUM, arguments=together)
