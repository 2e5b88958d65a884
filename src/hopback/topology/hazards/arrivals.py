"""Which routing keys a message can bear when it reaches a queue.

A queue without a dead-letter routing key keeps the key that a message came with, so each of them
matters. A pattern stands for all keys it matches: `user.*`, taken as a key, is matched by what
matches every `user.…`, and by nothing narrower.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from hopback.topology.model import ExchangeType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hopback.topology.model import Binding, Exchange, Topology
    from hopback.topology.routing import RoutingTable

__all__ = ["ANY_KEY", "Keys", "arrivals", "pass_on", "samples"]

Keys: TypeAlias = "defaultdict[str, set[str]]"

ANY_KEY = "<any key>"
"""Stands for a key that nothing is known of: what a fanout passes on."""

_MOST_HASHES = 3  # the work grows with each: nobody writes more


def samples(pattern: str) -> tuple[str, ...]:
    """Keys that stand for all that a topic pattern matches: each `#` as none, one and two words."""
    words = pattern.split(".") if pattern else []
    if words.count("#") > _MOST_HASHES:
        return (pattern,)
    choices = [((), ("#",), ("#", "#")) if word == "#" else ((word,),) for word in words]
    return tuple(".".join(sum(chosen, ())) for chosen in product(*choices))


def arrivals(topology: Topology, exchanges: Sequence[Exchange], table: RoutingTable) -> Keys:
    """The keys with which bindings and plans bring messages to each queue."""
    keys: Keys = defaultdict(set)
    known = {"", *(exchange.name for exchange in exchanges)}
    for exchange, key in (*_bound(exchanges, topology.bindings), *_planned(topology)):
        if exchange in known:
            for queue in table.route(exchange, key):
                keys[queue].add(key)
    return keys


def pass_on(keys: Keys, kept: Mapping[str, str], table: RoutingTable) -> None:
    """Carry keys on through the queues that keep them: `kept` is their dead-letter exchange."""
    waiting = [(queue, key) for queue in kept for key in keys[queue]]
    while waiting:
        queue, key = waiting.pop()
        for target in table.route(kept[queue], key):
            if key not in keys[target]:
                keys[target].add(key)
                waiting.extend([(target, key)] if target in kept else [])


def _bound(exchanges: Sequence[Exchange], bindings: Iterable[Binding]) -> Iterator[tuple[str, str]]:
    """Each exchange with the keys that its bindings, and those of exchanges behind it, name."""
    own: defaultdict[str, set[str]] = defaultdict(set)
    behind: defaultdict[str, set[str]] = defaultdict(set)
    kinds = {exchange.name: exchange.type for exchange in exchanges}
    for binding in bindings:
        own[binding.source].update(_named(kinds.get(binding.source, ""), binding))
        if binding.to_exchange:
            behind[binding.source].add(binding.destination)
    for exchange in exchanges:
        for name in _reached(exchange.name, behind):
            yield from ((exchange.name, key) for key in sorted(own[name]))


def _named(kind: str, binding: Binding) -> Iterable[str]:
    match kind:
        case ExchangeType.DIRECT:
            return (binding.routing_key,)
        case ExchangeType.TOPIC:
            return samples(binding.routing_key)
    return (ANY_KEY,)


def _reached(start: str, behind: Mapping[str, set[str]]) -> set[str]:
    found, waiting = {start}, [start]
    while waiting:
        fresh = behind.get(waiting.pop(), set()) - found
        found |= fresh
        waiting.extend(fresh)
    return found


def _planned(topology: Topology) -> Iterator[tuple[str, str]]:
    """What plans publish themselves."""
    for plan in topology.plans:
        yield plan.parking.exchange, plan.parking.routing_key
        yield plan.redrive.exchange, plan.redrive.routing_key
        for tier in plan.tiers:
            yield from ((route.exchange, route.routing_key) for route in tier.routes)
