"""Where to publish a message so that it reaches a queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hopback.errors import HopbackError
from hopback.topology.routing import RoutingTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.topology.model import Topology

__all__ = ["CannotSimulate", "Entrance", "find_entrance"]


class CannotSimulate(HopbackError):
    """A simulation has no queue to watch, or no way for a message to get there."""

    remedy: ClassVar[str] = "Name a queue that has a plan, and an exchange and key that lead to it."


@dataclass(frozen=True, slots=True)
class Entrance:
    """An exchange and a routing key."""

    exchange: str
    routing_key: str


def find_entrance(
    topology: Topology, queue: str, exchange: str | None = None, routing_key: str | None = None
) -> Entrance:
    """The first way into `queue` that fits what is given; CannotSimulate if there is none.

    Exchanges that only retries and dead letters use are tried last. A key that is not given is
    made from the bindings: `orders.*` is tried as `orders.example`.
    """
    table = RoutingTable(topology.exchanges, [q.name for q in topology.queues], topology.bindings)
    for entrance in _candidates(topology, queue, exchange, routing_key):
        if queue in _reached(table, entrance):
            return entrance
    raise CannotSimulate(_complaint(topology, queue, exchange, routing_key))


def _reached(table: RoutingTable, entrance: Entrance) -> tuple[str, ...]:
    try:
        return table.route(entrance.exchange, entrance.routing_key)
    except KeyError:
        return ()


def _candidates(
    topology: Topology, queue: str, exchange: str | None, routing_key: str | None
) -> Iterator[Entrance]:
    for name in _exchanges(topology) if exchange is None else (exchange,):
        for key in _keys(topology, queue) if routing_key is None else (routing_key,):
            yield Entrance(name, key)


def _exchanges(topology: Topology) -> list[str]:
    """Every exchange, those for producers first, the default exchange last."""
    plans = topology.plans
    inner = {plan.parking.exchange for plan in plans}
    inner |= {route.exchange for plan in plans for tier in plan.tiers for route in tier.routes}
    names = [each.name for each in topology.exchanges if not each.internal]
    return [*sorted(names, key=lambda name: name in inner), ""]


def _keys(topology: Topology, queue: str) -> Iterator[str]:
    """Keys made from the bindings, those of the queue itself first, and the queue's own name."""
    bindings = sorted(topology.bindings, key=lambda each: each.destination != queue)
    yield from (_example(binding.routing_key) for binding in bindings)
    yield queue


def _example(pattern: str) -> str:
    """A key that a topic pattern matches; a plain key is its own example."""
    words = ["example" if word == "*" else word for word in pattern.split(".") if word != "#"]
    return ".".join(words) if words or not pattern else "example"


def _complaint(
    topology: Topology, queue: str, exchange: str | None, routing_key: str | None
) -> str:
    through = "no exchange" if exchange is None else f"exchange {exchange!r} does not lead"
    key = "" if routing_key is None else f" with routing key {routing_key!r}"
    leads = " leads" if exchange is None else ""
    bound = [each for each in topology.bindings if each.destination == queue]
    ways = ", ".join(f"{each.source!r} by {each.routing_key!r}" for each in bound) or "none"
    return f"{through}{leads} to queue {queue!r}{key}; its bindings: {ways}"
