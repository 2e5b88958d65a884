"""Queues as seen by the engines, with their traffic, plan and routes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.errors import InvalidTopology, Problem
from hopback.topology.effective import effective_arguments
from hopback.topology.routing import Entrance, RoutingTable, find_entrance, topic_matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.rehearse.scenario import Crash, Load, Outage, RedriveWave, Scenario, Slowdown
    from hopback.topology.model import Topology
    from hopback.topology.plan import Plan

_AFTERWARDS_S = 1800.0
"""Seconds to continue after the last retry of an outage, so that queues can recover."""
_STEP_S = 300.0
"""The default duration is a multiple of this number of seconds. Labels of charts are round numbers
then.
"""


@dataclass(frozen=True, slots=True)
class Wait:
    """A retry queue with its delay, and the queues that receive copies of returning messages."""

    queue: str
    delay_s: float
    tier: str
    copies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Station:
    """A consumed queue with everything that affects its messages.

    `waits` contains each retry queue once. `wait_after[n]` is the index of the retry queue used
    after failure n + 1. `copies` are the other queues that receive published messages.
    """

    load: Load
    plan: Plan
    entrance: Entrance
    waits: tuple[Wait, ...]
    wait_after: tuple[int, ...]
    copies: tuple[str, ...]
    outages: tuple[Outage, ...]
    slowdowns: tuple[Slowdown, ...]
    crashes: tuple[Crash, ...]
    redrives: tuple[RedriveWave, ...]
    max_length: int | None
    drops_head: bool

    @property
    def queue(self) -> str:
        return self.plan.queue

    @property
    def retry_span_s(self) -> float:
        """The time from the first failure to the last attempt. Longer outages cause dead letters."""
        return sum(self.waits[place].delay_s for place in self.wait_after)


def time_for(plan: Plan | None, outages: Sequence[Outage]) -> float:
    """Return the duration that includes all retries of the last outage and some time to recover."""
    waits = [] if plan is None else [tier.delay_ms / 1000 for tier in plan.tiers]
    more = 0 if plan is None else plan.attempts - 1 - len(waits)
    span = sum(waits) + max(0, more) * (waits[-1] if waits else 0.0)
    end = max((outage.end_s for outage in outages), default=0.0)
    return math.ceil((end + span + _AFTERWARDS_S) / _STEP_S) * _STEP_S


def stations_of(topology: Topology, scenario: Scenario) -> tuple[Station, ...]:
    """Return the stations of a scenario. Raises InvalidTopology if a queue does not exist or has no
    plan.
    """
    known = ", ".join(plan.queue for plan in topology.plans) or "none"
    unknown = [load.queue for load in scenario.loads if topology.plan(load.queue) is None]
    if unknown:
        expected = f"a queue of {topology.name} that has a plan ({known})"
        raise InvalidTopology(
            tuple(Problem(f"queues.{queue}", expected, repr(queue)) for queue in unknown),
            where=scenario.name,
        )
    return tuple(_station(topology, scenario, load) for load in scenario.loads)


def _station(topology: Topology, scenario: Scenario, load: Load) -> Station:
    plan = topology.plan(load.queue)
    assert plan is not None  # noqa: S101 - the only caller has looked
    entrance = find_entrance(topology, load.queue, load.exchange, load.routing_key)
    table = RoutingTable(topology.exchanges, [q.name for q in topology.queues], topology.bindings)
    reached = table.route(entrance.exchange, entrance.routing_key)
    waits, wait_after = _waits(topology, plan, entrance.routing_key, table)
    queue = topology.queue(load.queue)
    arguments = {}
    if queue is not None:
        arguments = effective_arguments(queue, topology.policies, scenario.version)
    limit = arguments.get("x-max-length")
    own = {load.queue, load.dependency} - {""}

    def hits(names: tuple[str, ...]) -> bool:
        return not names or not own.isdisjoint(names)

    return Station(
        load=load,
        plan=plan,
        entrance=entrance,
        waits=waits,
        wait_after=wait_after,
        copies=tuple(name for name in reached if name != load.queue),
        outages=tuple(one for one in scenario.outages if hits(one.hits)),
        slowdowns=tuple(one for one in scenario.slowdowns if hits(one.hits)),
        crashes=tuple(one for one in scenario.crashes if hits(one.hits)),
        redrives=tuple(one for one in scenario.redrives if hits(one.hits)),
        max_length=limit if isinstance(limit, int) else None,
        drops_head=arguments.get("x-overflow", "drop-head") == "drop-head",
    )


def _waits(
    topology: Topology, plan: Plan, routing_key: str, table: RoutingTable
) -> tuple[tuple[Wait, ...], tuple[int, ...]]:
    """Return the retry queues used for a routing key, and in which order."""
    waits: list[Wait] = []
    order: list[int] = []
    for failure in range(1, plan.attempts if plan.tiers else 1):
        tier = plan.tiers[min(failure, len(plan.tiers)) - 1]
        route = next((one for one in tier.routes if topic_matches(one.pattern, routing_key)), None)
        if route is None:
            break  # no route into a retry queue matches, so this failure causes a dead letter
        queue = topology.queue(route.queue)
        arguments = {} if queue is None else queue.arguments
        exchange = str(arguments.get("x-dead-letter-exchange", ""))
        key = str(arguments.get("x-dead-letter-routing-key", route.routing_key))
        try:
            reached = table.route(exchange, key)
        except KeyError:
            reached = ()
        others = tuple(name for name in reached if name != plan.queue)
        wait = Wait(route.queue, tier.delay_ms / 1000, tier.name, others)
        if wait not in waits:
            waits.append(wait)
        order.append(waits.index(wait))
    return tuple(waits), tuple(order)
