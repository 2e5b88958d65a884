"""Ratatoskr, with quorum queues and retries by the broker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.designs.design import count_problems, delay_problems, name_problems, refuse
from hopback.errors import Problem
from hopback.topology.expand import dead_lettering, harden, harden_queues, one_tier
from hopback.topology.model import Binding, Exchange, ExchangeType, Queue, QueueType, Topology
from hopback.topology.plan import Count, Fact, Leave, Parking, Plan, Redrive, Return, Stamp

if TYPE_CHECKING:
    from collections.abc import Sequence

_COUNTER = "x-retry-count"


def ratatoskr(
    queue: str = "my-service.events",
    *,
    hardened: bool = False,
    exchange: str = "ratatoskr.events",
    routing_keys: Sequence[str] = ("#",),
    retry_delay_ms: int = 5_000,
    max_retries: int = 3,
    queue_type: QueueType = QueueType.QUORUM,
) -> Topology:
    """The documented "Ratatoskr RabbitMQ Topology & Message Flow".

    A topic exchange feeds `{queue}`. After a retryable failure, a message is rejected into
    `{queue}.retry`, waits for the retry delay and returns to `{queue}`. After a permanent failure, or
    after `max_retries` retries, it is published to the fanout exchange `{queue}.dlq` and parked in
    the queue of the same name. All queues are quorum queues by default.

    Messages are parked at least once. During the move, a message can be both parked and in the main
    queue. In the faithful form, the broker moves messages into and out of the retry queue at most
    once, so it can lose some. From 4.0 on, the default delivery limit also moves messages into the
    retry loop. The hardened form always uses quorum queues. It has neither hazard and does not lose
    messages.
    """
    problems = [
        *name_problems("params.queue", queue, room=len(".retry")),
        *name_problems("params.exchange", exchange),
        *delay_problems("params.retry_delay", retry_delay_ms),
        *count_problems("params.max_retries", max_retries, least=0),
    ]
    if exchange == f"{queue}.dlq":
        taken = "an exchange other than the fanout of the dead-letter queue"
        problems.append(Problem("params.exchange", taken, repr(exchange)))
    if not routing_keys:
        problems.append(Problem("params.routing_keys", "at least one routing key", "none"))
    if queue_type is QueueType.STREAM:
        problems.append(Problem("params.queue_type", "quorum or classic", "'stream'"))
    refuse(problems, "ratatoskr")
    faithful = _plan(queue, retry_delay_ms, max_retries)
    # If the retry is published by Hopback, the documented counter can be kept.
    plan = replace(harden(faithful), count_header=_COUNTER) if hardened else faithful
    return Topology(
        name="ratatoskr",
        exchanges=(
            Exchange(exchange, ExchangeType.TOPIC),
            Exchange(f"{queue}.dlq", ExchangeType.FANOUT),
        ),
        queues=harden_queues(plan) if hardened else _faithful_queues(plan, queue_type),
        bindings=(
            *(Binding(exchange, queue, key) for key in routing_keys),
            Binding(f"{queue}.dlq", f"{queue}.dlq"),
        ),
        plans=(plan,),
    )


def _plan(queue: str, retry_delay_ms: int, max_retries: int) -> Plan:
    waiting, parked = f"{queue}.retry", f"{queue}.dlq"
    return Plan(
        queue=queue,
        attempts=max_retries + 1,
        tiers=one_tier(retry_delay_ms, "", waiting, waiting),
        leave=Leave.REJECT,
        returns=Return.QUEUE,
        parking=Parking(parked, Leave.PUBLISH, parked, ""),
        count=Count.X_DEATH,
        redrive=Redrive("", queue),
        park_stamps=(Stamp(_COUNTER, Fact.RETRIES),),
    )


def _faithful_queues(plan: Plan, queue_type: QueueType) -> tuple[Queue, Queue, Queue]:
    name, waiting = plan.queue, plan.tiers[0].routes[0].queue
    back = dead_lettering("", name, ttl_ms=plan.tiers[0].delay_ms)
    return (
        Queue(name, queue_type, arguments=dead_lettering("", waiting)),
        Queue(waiting, queue_type, arguments=back),
        Queue(plan.parking.queue, queue_type),
    )
