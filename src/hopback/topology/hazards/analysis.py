"""Information about a topology that is used by the rules.

Roles of queues are defined by the plans. If there is no plan, for example because the topology was
read from a broker, they are derived from the arguments. A queue with a TTL and a dead-letter
exchange is a retry queue. A queue that receives dead letters and does not have a dead-letter
exchange is a dead-letter queue.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from hopback.topology.definitions import RECORD
from hopback.topology.effective import DEFAULT_DELIVERY_LIMIT, effective_topology
from hopback.topology.model import Exchange, ExchangeType, Policy, Queue, QueueType, Topology
from hopback.topology.routing import PREDECLARED, RoutingTable

if TYPE_CHECKING:
    from hopback.topology.plan import Plan, Route
    from hopback.version import BrokerVersion


@dataclass(frozen=True, slots=True)
class Parameter:
    """A runtime parameter, for example of a `shovel`."""

    name: str
    value: Mapping[str, object]

    def text(self, key: str) -> str | None:
        """Return a string value, or None if it is missing or not a string."""
        found = self.value.get(key)
        return found if isinstance(found, str) else None


def parameters(topology: Topology, component: str) -> Iterator[Parameter]:
    """Return the parameters of a component in the virtual host of the topology."""
    record = topology.foreign.get(RECORD)
    home = record.get("vhost") if isinstance(record, Mapping) else None
    entries = topology.foreign.get("parameters")
    for entry in entries if isinstance(entries, list | tuple) else ():
        if not isinstance(entry, Mapping) or entry.get("component") != component:
            continue
        name, value = entry.get("name"), entry.get("value")
        if (
            entry.get("vhost", home) == home
            and isinstance(name, str)
            and isinstance(value, Mapping)
        ):
            yield Parameter(name, value)


def operator_policies(topology: Topology) -> tuple[Policy, ...]:
    """Return the operator policies, which are stored as parameters."""
    found = []
    for each in parameters(topology, "operator_policy"):
        pattern, definition = each.text("pattern"), each.value.get("definition")
        priority, applies_to = each.value.get("priority", 0), each.text("apply-to") or "all"
        if pattern is not None and isinstance(definition, Mapping) and isinstance(priority, int):
            found.append(Policy(each.name, pattern, definition, priority, applies_to))
    return tuple(found)


Keys: TypeAlias = "defaultdict[str, set[str]]"

ANY_KEY = "<any key>"
"""Placeholder for an unknown routing key."""

_MOST_HASHES = 3  # limits the number of combinations


def samples(pattern: str) -> tuple[str, ...]:
    """Return sample keys that match a topic pattern.

    Each `#` is replaced with zero, one and two words.
    """
    words = pattern.split(".") if pattern else []
    if words.count("#") > _MOST_HASHES:
        return (pattern,)
    choices = [((), ("#",), ("#", "#")) if word == "#" else ((word,),) for word in words]
    return tuple(".".join(sum(chosen, ())) for chosen in product(*choices))


def arrivals(topology: Topology, exchanges: Sequence[Exchange], table: RoutingTable) -> Keys:
    """Return the routing keys of the messages that each queue can receive."""
    keys: Keys = defaultdict(set)
    known = {"", *(exchange.name for exchange in exchanges)}
    # Collect the routing keys used with each exchange, including its downstream exchanges.
    used: list[tuple[str, str]] = []
    own: Keys = defaultdict(set)
    behind: Keys = defaultdict(set)
    kinds = {exchange.name: exchange.type for exchange in exchanges}
    for binding in topology.bindings:
        match kinds.get(binding.source):
            case ExchangeType.DIRECT:
                own[binding.source].add(binding.routing_key)
            case ExchangeType.TOPIC:
                own[binding.source].update(samples(binding.routing_key))
            case _:
                own[binding.source].add(ANY_KEY)
        if binding.to_exchange:
            behind[binding.source].add(binding.destination)
    for entry in kinds:
        reached, waiting = {entry}, [entry]
        while waiting:
            fresh = behind[waiting.pop()] - reached
            reached |= fresh
            waiting.extend(fresh)
        used += [(entry, key) for name in reached for key in sorted(own[name])]
    for plan in topology.plans:
        used.append((plan.parking.exchange, plan.parking.routing_key))
        used.append((plan.redrive.exchange, plan.redrive.routing_key))
        routes = (route for tier in plan.tiers for route in tier.routes)
        used += [(route.exchange, route.routing_key) for route in routes]
    for exchange, key in used:
        if exchange in known:
            for queue in table.route(exchange, key):
                keys[queue].add(key)
    return keys


def pass_on(keys: Keys, kept: Mapping[str, str], table: RoutingTable) -> None:
    """Propagate keys through queues that dead-letter messages with their original key."""
    waiting = [(queue, key) for queue in kept for key in keys[queue]]
    while waiting:
        queue, key = waiting.pop()
        for target in table.route(kept[queue], key):
            if key not in keys[target]:
                keys[target].add(key)
                waiting.extend([(target, key)] if target in kept else [])


_RESTING_NAME = re.compile(
    r"dlq|dead.?letter|(^|\W|_)(dead|parked|parking|poison)($|\W|_)", re.IGNORECASE
)
_WAITING_NAME = re.compile(r"retry|retries|delay|wait|backoff", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Leg:
    """The route of a queue's dead letters. `key` is None if messages keep their routing key."""

    source: str
    exchange: str
    key: str | None
    declared: bool
    targets: tuple[str, ...] = ()
    lost_keys: tuple[str, ...] = ()
    safe: bool = False
    """True if at-least-once dead-lettering is used."""
    at_once: tuple[tuple[str, ...], ...] = ()
    """One entry for each key that leads to several queues. It contains these queues."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A queue whose dead letters return to it through retry queues."""

    main: str
    through: frozenset[str]


@dataclass(frozen=True, slots=True)
class Limit:
    """The delivery limit of a quorum queue."""

    value: int
    by_default: bool = False


def number(queue: Queue, argument: str) -> int | None:
    """Return an integer argument, or None if it is missing or not an integer."""
    value = queue.arguments.get(argument)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def text(queue: Queue, argument: str) -> str | None:
    """Return a string argument, or None if it is missing or not a string."""
    value = queue.arguments.get(argument)
    return value if isinstance(value, str) else None


def has_limit(queue: Queue) -> bool:
    """Return True if the queue has a length limit."""
    return any(number(queue, name) is not None for name in ("x-max-length", "x-max-length-bytes"))


def drops_head(queue: Queue) -> bool:
    """Return True if the queue drops messages when it is full."""
    overflow = queue.arguments.get("x-overflow", "drop-head")
    # Quorum queues do not support reject-publish-dlx and use drop-head instead.
    kept = ("reject-publish",) if queue.type is QueueType.QUORUM else _CLASSIC_KEEPS
    return has_limit(queue) and queue.type is not QueueType.STREAM and overflow not in kept


_CLASSIC_KEEPS = ("reject-publish", "reject-publish-dlx")


class Analysis:
    """Information about a topology, computed on first access.

    `declared` is the original topology. The other attributes include the effect of policies.
    """

    def __init__(self, topology: Topology, version: BrokerVersion | None = None) -> None:
        self.declared = topology
        self.version = version
        # Operator policies are applied last. The smaller value is used.
        ruled = effective_topology(topology, version)
        operated = replace(ruled, policies=operator_policies(ruled))
        operated = effective_topology(operated, version)
        self.topology: Topology = replace(operated, policies=ruled.policies)
        self.queues: dict[str, Queue] = {queue.name: queue for queue in self.topology.queues}
        self.plans: dict[str, Plan] = {plan.queue: plan for plan in topology.plans}

    @cached_property
    def exchanges(self) -> dict[str, Exchange]:
        """All exchanges by name, including predeclared ones.

        The values of headers are not known, so a headers exchange is treated like a fanout
        exchange.
        """
        every = {exchange.name: exchange for exchange in (*PREDECLARED, *self.topology.exchanges)}
        return {
            name: replace(exchange, type=ExchangeType.FANOUT)
            if exchange.type == ExchangeType.HEADERS
            else exchange
            for name, exchange in every.items()
            if name
        }

    @cached_property
    def table(self) -> RoutingTable:
        return RoutingTable(self.exchanges.values(), self.queues, self.topology.bindings)

    def route(self, exchange: str, key: str) -> tuple[str, ...]:
        """Return the queues that receive a message.

        Returns an empty tuple if the exchange does not exist.
        """
        return self.table.route(exchange, key) if self.exists(exchange) else ()

    def exists(self, exchange: str) -> bool:
        return not exchange or exchange in self.exchanges

    @cached_property
    def legs(self) -> dict[str, Leg]:
        """The dead-letter destinations of all queues that have a dead-letter exchange."""
        sources = {
            queue.name: (exchange, text(queue, "x-dead-letter-routing-key"))
            for queue in self.queues.values()
            if (exchange := text(queue, "x-dead-letter-exchange")) is not None
            and queue.type is not QueueType.STREAM
        }
        keys = arrivals(self.topology, tuple(self.exchanges.values()), self.table)
        for exchange, key in sources.values():
            if key is not None:
                for target in self.route(exchange, key):
                    keys[target].add(key)
        kept = {
            name: exchange
            for name, (exchange, key) in sources.items()
            if key is None and self.exists(exchange)
        }
        pass_on(keys, kept, self.table)
        legs = {}
        for name, (exchange, key) in sources.items():
            if not self.exists(exchange):
                legs[name] = Leg(name, exchange, key, declared=False)
                continue
            arriving = (keys[name] or {name}) if key is None else {key}
            routed = {each: self.route(exchange, each) for each in arriving}
            reached = [set(targets) for targets in routed.values()]
            queue = self.queues[name]
            legs[name] = Leg(
                name,
                exchange,
                key,
                declared=True,
                targets=tuple(sorted(set[str]().union(*reached))),
                lost_keys=tuple(sorted(each for each, targets in routed.items() if not targets)),
                # All three conditions are required for at-least-once dead-lettering.
                safe=queue.type is QueueType.QUORUM
                and queue.arguments.get("x-dead-letter-strategy") == "at-least-once"
                and queue.arguments.get("x-overflow") == "reject-publish",
                at_once=tuple(sorted({tuple(sorted(to)) for to in reached if len(to) > 1})),
            )
        return legs

    def targets(self, queue: str) -> tuple[str, ...]:
        """Return the queues that receive the dead letters of a queue."""
        leg = self.legs.get(queue)
        return leg.targets if leg else ()

    @cached_property
    def routes(self) -> tuple[tuple[Plan, int, Route], ...]:
        """All routes into retry queues that are used by plans."""
        return tuple(
            (plan, tier.delay_ms, route)
            for plan in self.topology.plans
            for tier in plan.tiers
            for route in tier.routes
        )

    @cached_property
    def _roles_by_plan(self) -> tuple[frozenset[str], frozenset[str]]:
        """The retry queues and dead-letter queues that are used by plans."""
        waiting = frozenset(self.users) - self.plans.keys()
        resting = frozenset(plan.parking.queue for plan in self.plans.values())
        return waiting, resting - self.plans.keys() - waiting

    @cached_property
    def retry_queues(self) -> frozenset[str]:
        by_plan, resting = self._roles_by_plan
        known = by_plan | resting | self.plans.keys()
        return by_plan | {
            name
            for name in self.legs.keys() - known
            if number(self.queues[name], "x-message-ttl") is not None
            and not looks_like_dead_letter_queue(name)
            and not all(map(looks_like_dead_letter_queue, self.targets(name)))
        }

    @cached_property
    def dead_letter_queues(self) -> frozenset[str]:
        _, by_plan = self._roles_by_plan
        known = by_plan | self.retry_queues | self.plans.keys()
        dead = {
            target
            for name in self.legs.keys() - self.retry_queues
            if not looks_like_retry_queue(name)
            for target in self.targets(name)
            if target not in self.legs
        }
        seeming = {
            name for name in self.queues if name in dead or looks_like_dead_letter_queue(name)
        }
        return by_plan | (seeming - known)

    @cached_property
    def mains(self) -> dict[str, Queue]:
        """All queues that are neither retry queues nor dead-letter queues."""
        known = self.retry_queues | self.dead_letter_queues
        return {name: queue for name, queue in self.queues.items() if name not in known}

    @cached_property
    def users(self) -> dict[str, set[str]]:
        """Maps retry queues to the queues that use them."""
        users: dict[str, set[str]] = {}
        for plan, _, route in self.routes:
            users.setdefault(route.queue, set()).add(plan.queue)
        return users

    @cached_property
    def failure_queues(self) -> tuple[str, ...]:
        """Queues that are part of a plan or of a dead-letter route."""
        ends = {target for name in self.legs for target in self.targets(name)} | self.legs.keys()
        roles = ends | self.retry_queues | self.dead_letter_queues | self.plans.keys()
        return tuple(name for name in self.queues if name in roles)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """The retry loops that are implemented with dead-lettering."""
        found = []
        for main in self.mains:
            ahead = (
                self.reach(main, self.retry_queues) & self.retry_queues if main in self.legs else ()
            )
            back = frozenset(name for name in ahead if main in self.reach(name, self.retry_queues))
            if back:
                found.append(Loop(main, back))
        return tuple(found)

    def reach(self, start: str, via: Collection[str]) -> set[str]:
        """Return the queues that dead letters of `start` can reach through the queues in `via`."""
        found, waiting = set[str](), [start]
        while waiting:
            fresh = set(self.targets(waiting.pop())) - found
            found |= fresh
            waiting.extend(name for name in fresh if name in via)
        return found

    def limit(self, queue: Queue) -> Limit | None:
        """Return the delivery limit of a queue. Returns None if the queue does not have one."""
        if queue.type is not QueueType.QUORUM:
            return None
        value = number(queue, "x-delivery-limit")
        if value is None:
            return Limit(DEFAULT_DELIVERY_LIMIT, by_default=True)
        return Limit(value) if value >= 0 else None


def looks_like_dead_letter_queue(name: str) -> bool:
    return bool(_RESTING_NAME.search(name)) and not looks_like_retry_queue(name)


def looks_like_retry_queue(name: str) -> bool:
    return bool(_WAITING_NAME.search(name))
