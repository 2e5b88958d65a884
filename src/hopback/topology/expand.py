"""From a failure plan to the queues that carry it out.

The hardened form has three kinds of quorum queue. The main queue sends its dead letters (delivery
limit reached) to the dead-letter queue and never into the retry loop. Retry queues return a message
directly to its main queue. The dead-letter queue never removes messages by itself. The broker moves
messages at least once, so none is lost on the way.
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
"""How often a message may return to a hardened main queue. Its 201st delivery is parked.

A crash costs every prefetched message one delivery, including innocent ones. A message that
returned four times is handled apart from the others (`policy.quarantine`). The limit is therefore
far above the number of crashes that an innocent message can meet, and still ends the loop of a
message that kills its consumer.
"""

NO_DELIVERY_LIMIT = 1_000_000_000
"""The delivery limit of a quorum queue that must never drop a message for being read.

From RabbitMQ 4.0 on the default limit is 20. There -1 removes it, but 3.10 treats -1 as 0 and
deletes the message at the first requeue. An unreachable number works in all versions.
"""

SHADOW = ".migrating"
"""The suffix of a shadow queue, which keeps a queue's messages while that is replaced.

While `NAME.migrating` exists, only the migration creates `NAME`.
"""


def dead_lettering(
    exchange: str, routing_key: str, *, ttl_ms: int | None = None
) -> dict[str, FieldValue]:
    """Queue arguments that send dead letters to `exchange`, for a retry queue after `ttl_ms`."""
    arguments: dict[str, FieldValue] = {} if ttl_ms is None else {"x-message-ttl": ttl_ms}
    arguments["x-dead-letter-exchange"] = exchange
    # A fanout has no use for a key, and an empty one would only hide the original.
    if routing_key:
        arguments["x-dead-letter-routing-key"] = routing_key
    return arguments


def one_tier(delay_ms: int, exchange: str, routing_key: str, queue: str) -> tuple[Tier, ...]:
    """The tiers of a design that has a single retry queue."""
    return (Tier(format_duration(delay_ms), delay_ms, (Route(exchange, routing_key, queue),)),)


def harden(plan: Plan) -> Plan:
    """The plan's hardened form: it leaves and parks by confirmed publish, and comes straight back.

    Attempts are counted in our own header. A snoozed message waits in a retry queue, because a
    quorum queue counts requeues.
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
    """Return the queues of a hardened plan: main, retry and dead-letter queue. All are quorum
    queues.
    """
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
    """Whether a message that the plan's queue rejects ends in its dead-letter queue alone.

    So it is in every hardened form. Where the dead-letter exchange feeds the retry loop it does
    not, and where there is none a rejected message is deleted.
    """
    queue = topology.queue(plan.queue)
    exchange = None if queue is None else queue.arguments.get("x-dead-letter-exchange")
    if queue is None or not isinstance(exchange, str):
        return False
    # A key that is not fixed is the message's own: the way must be the same for any.
    key = queue.arguments.get("x-dead-letter-routing-key")
    keys = ("", "any.other.key") if key is None else (str(key),)
    table = RoutingTable(topology.exchanges, (q.name for q in topology.queues), topology.bindings)
    known = exchange == "" or topology.exchange(exchange) is not None
    return known and all(table.route(exchange, key) == (plan.parking.queue,) for key in keys)


def retry_queues(plan: Plan) -> tuple[tuple[str, int], ...]:
    """Name and delay in milliseconds of each retry queue of the plan, each once."""
    found: dict[str, int] = {}
    for tier in plan.tiers:
        for route in tier.routes:
            found.setdefault(route.queue, tier.delay_ms)
    return tuple(found.items())


def unique_queues(queues: Iterable[Queue]) -> tuple[Queue, ...]:
    """The queues, each name once: several plans may share a dead-letter queue."""
    return tuple({queue.name: queue for queue in queues}.values())


def recommend_plan(queue: str, *, tiers_ms: Sequence[int], attempts: int | None = None) -> Plan:
    """Return Hopback's plan for a new queue: one retry queue per delay, one hop, directly back.

    The default of `attempts` is the number of tiers plus one. Further attempts use the last tier.
    Equal delays share a retry queue. Without delays the first failure parks. InvalidTopology names
    every invalid value.
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
        alone = "1, as there is no delay to wait before another"
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
    """Return a quorum queue that keeps a dead letter until its next queue has confirmed it.

    Without `reject-publish` the broker falls back to at-most-once and reports that only in its log.
    """
    together: dict[str, FieldValue] = {}
    for part in arguments:
        together |= part
    together |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    return Queue(name, QueueType.QUORUM, arguments=together)
