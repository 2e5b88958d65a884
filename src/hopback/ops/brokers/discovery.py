"""Find the dead-letter queues of a broker, their origins and re-drive targets, pure.

The plans of a declared topology name the dead-letter queues. In the topology of a live broker, a queue with a
time to live and a dead-letter exchange is a retry queue, and a queue that only receives dead letters is a
dead-letter queue. If consumers publish their dead letters themselves, the broker does not show it. Then a
queue is recognised by its name, if the name belongs to an existing queue, or the operator names it.
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
    """What an operator says of a queue; None leaves what was found."""

    queue: str
    main_queue: str | None = None
    retry_exchange: str | None = None
    target: Redrive | None = None
    label: str | None = None
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class RetryWait:
    """A queue in which a message of the queue `origin` waits before it is handled again.

    `by_broker`: the broker puts it there when its consumer rejects it; else the consumer publishes it.
    """

    origin: str
    queue: str
    seconds: float
    by_broker: bool = False


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """A queue in which dead letters rest.

    `origins` are the queues whose messages come here. `plans` has one plan for each of them; for a
    queue that declares none it is a stand-in that sends straight back. `queue` is as declared with
    its policy applied, None where only its name is known. `known_by` says what gave it away:
    `plan`, `dead-lettering`, `name` or `operator`. `waits` are the queues by which its messages come
    back to their queues of origin, as the broker shows them.
    """

    name: str
    origins: tuple[str, ...]
    plans: tuple[Plan, ...]
    queue: Queue | None
    retry_exchange: str | None
    label: str
    known_by: str
    waits: tuple[RetryWait, ...] = ()

    @property
    def has_plan(self) -> bool:
        """Whether a declared plan says where its messages go back to; else that is read off the broker."""
        return self.known_by == "plan"

    @property
    def main_queue(self) -> str | None:
        """The one queue whose dead letters rest here; None if there are several, or it is unknown."""
        return self.origins[0] if len(self.origins) == 1 else None

    @property
    def target(self) -> Redrive | None:
        """Where its messages go back to by default, if that is the same for all of them."""
        targets = {plan.redrive for plan in self.plans}
        return next(iter(targets)) if len(targets) == 1 else None


def dead_letter_queues(
    topology: Topology,
    *,
    version: BrokerVersion | None = None,
    overrides: Iterable[Override] = (),
) -> tuple[DeadLetterQueue, ...]:
    """Every dead-letter queue of a declared or live topology, by name; overrides come last."""
    effective = effective_topology(topology, version)
    table = RoutingTable(
        (*PREDECLARED, *effective.exchanges),
        (queue.name for queue in effective.queues),
        effective.bindings,
    )
    # For each queue, the queues that the broker takes dead letters from for it.
    into: dict[str, set[str]] = defaultdict(set)
    for queue in effective.queues:
        for target in _targets(effective, table, queue):
            into[target].add(queue.name)
    origins = _origins(effective, into)
    found = {name: _describe(effective, name, *known) for name, known in origins.items()}
    for said in overrides:
        # What was found, with what the operator says in its place.
        known = found.get(said.queue)
        if known is None or said.main_queue is not None:
            named = () if said.main_queue is None else (said.main_queue,)
            known = _describe(effective, said.queue, "operator", named)
        if said.target is not None:
            aimed = tuple(replace(plan, redrive=said.target) for plan in known.plans)
            known = replace(known, plans=aimed)
        exchange = known.retry_exchange if said.retry_exchange is None else said.retry_exchange
        label = known.label if said.label is None else said.label
        found[said.queue] = replace(known, retry_exchange=exchange, label=label)
    hidden = {said.queue for said in overrides if said.hidden}
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


def stand_in_plan(queue: str, dead_letter_queue: str, target: Redrive | None = None) -> Plan:
    """The plan of a queue that declares none: attempts begin anew, straight back into the queue."""
    return Plan(
        queue=queue,
        attempts=1,
        tiers=(),
        leave=Leave.REJECT,
        returns=Return.QUEUE,
        parking=Parking(dead_letter_queue, Leave.REJECT, "", dead_letter_queue),
        count=Count.HEADER,
        redrive=target or Redrive("", queue),
    )


def _waits(
    found: DeadLetterQueue, ttl_s: Mapping[str, float], into: Mapping[str, set[str]]
) -> tuple[RetryWait, ...]:
    """The queues with a time to live from which messages come back to the queues of origin.

    A queue of origin with a time to live is one, too: an unhandled message dies there only then.
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
    """Each dead-letter queue with what gave it away and the queues it takes from."""
    planned: dict[str, list[str]] = defaultdict(list)
    for plan in effective.plans:
        planned[plan.parking.queue].append(plan.queue)
    roles = queue_roles(effective)
    # A retry queue stands for the queues that fill it: what leaves it for a dead-letter queue failed there.
    moved = {name: set(_first_owners(sources, into, roles)) for name, sources in into.items()}
    found = {
        name: ("plan", (*queues, *sorted(moved.get(name, set()) - set(queues))))
        for name, queues in planned.items()
    }
    # Without what names tell, a queue to which the broker moves nothing is plain.
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
            waiting.extend(into.get(name, ()))  # none if consumers publish into it
        else:
            yield name


def _targets(effective: Topology, table: RoutingTable, queue: Queue) -> Iterable[str]:
    """Where the dead letters of a queue can come to; all that is bound, if they keep their keys."""
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
    # The exchange by which messages reach the retry queue, where it is the same for all.
    used = {route.exchange for plan in plans for tier in plan.tiers for route in tier.routes}
    return DeadLetterQueue(
        name=name,
        origins=origins,
        plans=plans,
        queue=effective.queue(name),
        retry_exchange=next(iter(used)) if len(used) == 1 else None,
        label=origins[0] if len(origins) == 1 else name,
        known_by=known_by,
    )
