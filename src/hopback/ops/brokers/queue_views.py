"""Describe dead-letter queues for lists and pages, without reading messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.ops.brokers.snapshot import BrokerSnapshot, held_back_for, queues_that_hold_back
from hopback.ops.brokers.targets import known_ways, target_flaw, target_text
from hopback.ops.contract.requests import Target, TargetKind
from hopback.ops.contract.values import (
    Depth,
    HeldBack,
    Job,
    Moment,
    QueueDetail,
    QueueSummary,
    TargetChoice,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hopback.broker.management.readings import QueueReading
    from hopback.broker.port import Connection
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.topology.routing import RoutingTable

_CHOICES = (
    TargetKind.DESIGN,
    TargetKind.FAILED_QUEUE,
    TargetKind.RETRY_EXCHANGE,
    TargetKind.ORIGIN_EXCHANGE,
)


def summarize_queues(
    snapshot: BrokerSnapshot,
    queues: Iterable[DeadLetterQueue],
    depths: Mapping[str, Depth],
    active: Mapping[str, Job],
    now: float,
) -> tuple[QueueSummary, ...]:
    """Return the rows of the list. A queue that has no depth does not exist on the broker."""
    readings, rows = snapshot.readings or {}, []
    holding = queues_that_hold_back(readings)
    for found in queues:
        depth = depths.get(found.name)
        reading = None if depth is None else readings.get(found.name)
        counted = depth or Depth(None, None, None, "nobody", Moment(now))
        row = QueueSummary(
            queue=found.name,
            main_queue=found.main_queue,
            origins=found.origins,
            retry_exchange=found.retry_exchange,
            label=found.main_queue or found.name,
            known_by=found.known_by,
            depth=counted.shown_at(now),
            exists=depth is not None,
            active_job=active.get(found.name),
            state=None if reading is None else reading.state,
            idle_since=None if reading is None else reading.idle_since,
            held_back=tuple(HeldBack(*each) for each in held_back_for(found, holding)),
            consumed=_origins(found, snapshot.readings, consumed=True),
            unconsumed=_origins(found, snapshot.readings, consumed=False),
        )
        rows.append(row)
    return tuple(rows)


def _origins(
    found: DeadLetterQueue, readings: Mapping[str, QueueReading] | None, *, consumed: bool
) -> tuple[str, ...] | None:
    """Return the origins with or without a consumer, or None if this is unknown."""
    if readings is None:
        return None
    counts = {name: readings[name].counts.consumers for name in found.origins if name in readings}
    return tuple(
        name for name, count in counts.items() if count is not None and bool(count) == consumed
    )


async def describe_queue(
    broker: ManagedBroker, snapshot: BrokerSnapshot, found: DeadLetterQueue, summary: QueueSummary
) -> QueueDetail:
    """Add type, limit, cost of reading and possible re-drive targets to the summary of a queue."""
    cost, queue = snapshot.cost(found.name), snapshot.effective(found.name)
    live_routes = snapshot.live_routes()
    async with broker.query() as connection:
        choices = [await _choice(connection, Target(kind), found, live_routes) for kind in _CHOICES]
    return QueueDetail(
        **{name: getattr(summary, name) for name in summary.__struct_fields__},
        type=None if queue is None else queue.type,
        limit=cost.limit,
        cost=cost,
        job_cost=snapshot.cost(found.name, killed=True),
        targets=tuple(choice for choice in choices if choice is not None),
        broker_version=str(snapshot.version),
        limit_lifted=broker.is_lifted(snapshot, found.name),
        can_lift=not isinstance(snapshot.policy_to_lift(found.name), str),
    )


async def _choice(
    connection: Connection, target: Target, found: DeadLetterQueue, live_routes: RoutingTable | None
) -> TargetChoice | None:
    """Return a target as a choice, or None if it is not available for this queue."""
    ways = known_ways(target, found)
    if target.kind is TargetKind.FAILED_QUEUE and not found.has_plan:
        return None  # the default target is the same
    if not ways and target.kind is not TargetKind.ORIGIN_EXCHANGE:
        return None
    flaws = [await target_flaw(connection, way, live_routes) for way in ways]
    way = ways[0] if len(ways) == 1 else None
    return TargetChoice(
        kind=target.kind,
        text=target_text(target, found),
        exchange=None if way is None else way.exchange,
        routing_key=None if way is None else way.routing_key,
        warning=target.warning,
        flaw=flaws[0] if flaws and all(flaws) else None,
        is_default=target.kind is TargetKind.DESIGN,
    )
