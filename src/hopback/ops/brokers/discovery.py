"""Find the dead-letter queues of a broker, their origins and their re-drive targets.

In a declared topology, plans name the dead-letter queues. In the topology of a live broker, a queue
with a time to live and a dead-letter exchange is a retry queue, and a queue that receives only dead
letters is a dead-letter queue. If consumers publish their dead letters themselves, the topology
does not show it. A queue is then recognised by its name if it is derived from the name of an
existing queue. Otherwise the operator has to name it.

This module is pure.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hopback.topology.effective import effective_topology
from hopback.topology.plan import Count, Leave, Parking, Plan, Redrive, Return
from hopback.topology.roles import QueueRole, dead_letter_owners, queue_roles
from hopback.topology.routing import PREDECLARED, RoutingTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hopback.topology.model import Queue, Topology
    from hopback.version import BrokerVersion


@dataclass(frozen=True, slots=True)
class Override:
    """An operator's description of a queue. If `main_queue` is None, the discovered origins are kept."""

    queue: str
    main_queue: str | None = None
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class RetryWait:
    """A queue in which messages of the queue `origin` wait before they are handled again.

    `by_broker` is True if the broker dead-letters rejected messages to it, and False if the
    consumer publishes them.
    """

    origin: str
    queue: str
    seconds: float
    by_broker: bool = False


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """A queue that contains dead letters.

    `origins` are the queues in which its messages failed, and `plans` contains a plan for each of
    them. If no plan was declared for an origin, there is a stand-in plan that re-drives directly to
    the origin. `queue` has its policies applied, or is None if only the name is known. `known_by`
    is how the queue was recognised: `plan`, `dead-lettering`, `name` or `operator`. `waits` are the
    existing retry queues that lead back to the origins.
    """

    name: str
    origins: tuple[str, ...]
    plans: tuple[Plan, ...]
    queue: Queue | None
    known_by: str
    waits: tuple[RetryWait, ...] = ()

    @property
    def has_plan(self) -> bool:
        """Whether a declared plan specifies the re-drive target. If not, it follows from the
        broker's topology.
        """
        return self.known_by == "plan"

    @property
    def main_queue(self) -> str | None:
        """The origin, if there is exactly one."""
        return self.origins[0] if len(self.origins) == 1 else None

    @property
    def retry_exchange(self) -> str | None:
        """The exchange of the retry queues, if all plans use the same one."""
        used = {
            route.exchange for plan in self.plans for tier in plan.tiers for route in tier.routes
        }
        return next(iter(used)) if len(used) == 1 else None


def dead_letter_queues(
    topology: Topology,
    *,
    version: BrokerVersion | None = None,
    overrides: Iterable[Override] = (),
) -> tuple[DeadLetterQueue, ...]:
    """Return all dead-letter queues of a declared or live topology, sorted by name.

    Overrides take precedence over the discovered values.
    """
    effective = effective_topology(topology, version)
    table = RoutingTable(
        (*PREDECLARED, *effective.exchanges),
        (queue.name for queue in effective.queues),
        effective.bindings,
    )
    # Maps each queue to the queues that dead-letter to it.
    into: dict[str, set[str]] = defaultdict(set)
    for queue in effective.queues:
        for target in _targets(effective, table, queue):
            into[target].add(queue.name)
    origins = _origins(effective, into)
    found = {name: _describe(effective, name, *known) for name, known in origins.items()}
    for override in overrides:
        if override.queue not in found or override.main_queue is not None:
            named = () if override.main_queue is None else (override.main_queue,)
            found[override.queue] = _describe(effective, override.queue, "operator", named)
    hidden = {override.queue for override in overrides if override.hidden}
    ttl_s = {
        queue.name: ttl / 1000
        for queue in effective.queues
        if "x-dead-letter-exchange" in queue.arguments
        and isinstance(ttl := queue.arguments.get("x-message-ttl"), int)
        and not isinstance(ttl, bool)
    }
    return tuple(
        replace(found[name], waits=_waits(found[name], ttl_s, into))
        for name in sorted(found)
        if name not in hidden
    )


def stand_in_plan(queue: str, dead_letter_queue: str) -> Plan:
    """Return a plan for a queue that has none. A re-drive publishes directly to the queue and
    resets the attempts.
    """
    return Plan(
        queue=queue,
        attempts=1,
        tiers=(),
        leave=Leave.REJECT,
        returns=Return.QUEUE,
        parking=Parking(dead_letter_queue, Leave.REJECT, "", dead_letter_queue),
        count=Count.HEADER,
        redrive=Redrive("", queue),
    )


def _waits(
    found: DeadLetterQueue, ttl_s: Mapping[str, float], into: Mapping[str, set[str]]
) -> tuple[RetryWait, ...]:
    """Return the queues with a time to live that lead back to the origins.

    An origin with a time to live is also included, because unhandled messages stay in it for this
    time before they are dead-lettered.
    """
    made: list[RetryWait] = []
    for origin in found.origins:
        reached = {origin}
        waiting = [origin]
        while waiting:
            for name in into.get(waiting.pop(), ()):
                if name not in reached and name != found.name and name in ttl_s:
                    reached.add(name)
                    waiting.append(name)
        made.extend(
            RetryWait(origin, name, ttl_s[name], origin in into.get(name, ()))
            for name in sorted(reached)
            if name in ttl_s
        )
    return tuple(made)


def _origins(
    effective: Topology, into: Mapping[str, set[str]]
) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Map each dead-letter queue to its `known_by` value and its origins."""
    planned: dict[str, list[str]] = defaultdict(list)
    for plan in effective.plans:
        planned[plan.parking.queue].append(plan.queue)
    roles = queue_roles(effective)
    # Messages in a retry queue failed in the queues that fill it, so use these queues instead.
    moved = {name: set(_first_owners(sources, into, roles)) for name, sources in into.items()}
    found = {
        name: ("plan", (*queues, *sorted(moved.get(name, set()) - set(queues))))
        for name, queues in planned.items()
    }
    # `queue_roles` also considers names. They are ignored here, so a queue is plain unless the
    # broker dead-letters to it.
    by_broker = {
        name: QueueRole.PLAIN if role is QueueRole.DEAD_LETTER and not moved.get(name) else role
        for name, role in roles.items()
    }
    named = {
        name: owner
        for name, owner in dead_letter_owners(effective, by_broker).items()
        if name not in found
    }
    for name, role in roles.items():
        if role is QueueRole.DEAD_LETTER and name not in found and name not in named:
            found[name] = ("dead-lettering", tuple(sorted(moved.get(name, ()))))
    found |= {name: ("name", () if owner is None else (owner,)) for name, owner in named.items()}
    return found


def _first_owners(
    sources: Iterable[str], into: Mapping[str, set[str]], roles: Mapping[str, QueueRole]
) -> Iterator[str]:
    seen: set[str] = set()
    waiting = list(sources)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if roles.get(name) is QueueRole.RETRY:
            waiting.extend(into.get(name, ()))  # there are none if consumers publish to it
        else:
            yield name


def _targets(effective: Topology, table: RoutingTable, queue: Queue) -> Iterable[str]:
    """Return the queues that can receive dead letters of a queue.

    If dead letters keep their routing keys, these are all queues bound to the dead-letter exchange.
    """
    exchange = queue.arguments.get("x-dead-letter-exchange")
    if not isinstance(exchange, str):
        return ()
    key = queue.arguments.get("x-dead-letter-routing-key")
    if isinstance(key, str):
        try:
            return table.route(exchange, key)
        except KeyError:
            return ()
    bound: list[str] = []
    seen: set[str] = set()
    waiting = [exchange] if exchange else []
    while waiting:
        source = waiting.pop()
        seen.add(source)
        for binding in (each for each in effective.bindings if each.source == source):
            if not binding.to_exchange:
                bound.append(binding.destination)
            elif binding.destination not in seen:
                waiting.append(binding.destination)
    return bound


def _describe(
    effective: Topology, name: str, known_by: str, origins: tuple[str, ...]
) -> DeadLetterQueue:
    plans = tuple(effective.plan(each) or stand_in_plan(each, name) for each in origins)
    return DeadLetterQueue(name, origins, plans, effective.queue(name), known_by)
