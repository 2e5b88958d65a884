"""The data model of a topology."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.fields import FieldValue, Headers
    from hopback.topology.plan import Plan

_EMPTY: Headers = MappingProxyType({})


def freeze(value: FieldValue) -> FieldValue:
    """Return an immutable deep copy of a value."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: freeze(inner) for key, inner in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(inner) for inner in value)
    return value


class ExchangeType(StrEnum):
    """Built-in exchange types. Types defined by plugins are plain strings."""

    DIRECT = "direct"
    FANOUT = "fanout"
    TOPIC = "topic"
    HEADERS = "headers"


class QueueType(StrEnum):
    """The type of a queue. It cannot be changed after the queue was declared."""

    CLASSIC = "classic"
    QUORUM = "quorum"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange. The default exchange has an empty name and cannot be declared."""

    name: str
    type: str = ExchangeType.DIRECT
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Headers = field(default_factory=lambda: _EMPTY)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", freeze(self.arguments))


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue. `arguments` does not contain `x-queue-type`, use `type` instead."""

    name: str
    type: QueueType = QueueType.CLASSIC
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Headers = field(default_factory=lambda: _EMPTY)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", freeze(self.arguments))

    @property
    def declare_arguments(self) -> dict[str, FieldValue]:
        """The arguments for `queue.declare`. The type is omitted for classic queues."""
        if self.type is QueueType.CLASSIC:
            return dict(self.arguments)
        return {"x-queue-type": str(self.type), **self.arguments}


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding between an exchange and a queue or another exchange."""

    source: str
    destination: str
    routing_key: str = ""
    to_exchange: bool = False
    arguments: Headers = field(default_factory=lambda: _EMPTY)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", freeze(self.arguments))


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy. Only the matching policy with the highest priority is applied to a queue."""

    name: str
    pattern: str
    definition: Headers
    priority: int = 0
    apply_to: str = "all"

    def __post_init__(self) -> None:
        object.__setattr__(self, "definition", freeze(self.definition))


@dataclass(frozen=True, slots=True)
class Topology:
    """A set of exchanges, queues, bindings and failure plans that are declared together.

    Attributes:
        plans: The failure plans of all consumed queues.
        foreign: Other sections of a definitions file, such as users and parameters.
        unconsumed: Names of queues that are not consumed by this application and don't need a plan.
    """

    name: str
    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()
    plans: tuple[Plan, ...] = ()
    policies: tuple[Policy, ...] = ()
    foreign: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    unconsumed: frozenset[str] = frozenset()
    # These caches make lookups by name fast, because there may be thousands of queues.
    _exchanges: dict[str, Exchange] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _queues: dict[str, Queue] = field(default_factory=dict, init=False, repr=False, compare=False)
    _plans: dict[str, Plan] = field(default_factory=dict, init=False, repr=False, compare=False)

    def exchange(self, name: str) -> Exchange | None:
        """Return the exchange with the given name, or None."""
        if not self._exchanges:
            self._exchanges.update((each.name, each) for each in reversed(self.exchanges))
        return self._exchanges.get(name)

    def queue(self, name: str) -> Queue | None:
        """Return the queue with the given name, or None."""
        if not self._queues:
            self._queues.update((each.name, each) for each in reversed(self.queues))
        return self._queues.get(name)

    def plan(self, queue: str) -> Plan | None:
        """Return the failure plan of a queue, or None."""
        if not self._plans:
            self._plans.update((each.queue, each) for each in reversed(self.plans))
        return self._plans.get(queue)


def join_topologies(topologies: Iterable[Topology]) -> Topology:
    """Merge several topologies. If names are not unique, the first object is used.

    Objects are compared by name or equality, because arguments are not hashable.
    """
    several = tuple(topologies)
    exchanges: dict[str, Exchange] = {}
    queues: dict[str, Queue] = {}
    plans: dict[str, Plan] = {}
    policies: dict[str, Policy] = {}
    bindings: list[Binding] = []
    for topology in reversed(several):
        exchanges |= {exchange.name: exchange for exchange in topology.exchanges}
        queues |= {queue.name: queue for queue in topology.queues}
        plans |= {plan.queue: plan for plan in topology.plans}
        policies |= {policy.name: policy for policy in topology.policies}
    for topology in several:
        bindings += [each for each in topology.bindings if each not in bindings]
    return Topology(
        name=" ".join(topology.name for topology in several) or "nothing",
        exchanges=tuple(exchanges.values()),
        queues=tuple(queues.values()),
        bindings=tuple(bindings),
        plans=tuple(plans.values()),
        policies=tuple(policies.values()),
        unconsumed=frozenset().union(*(topology.unconsumed for topology in several)),
    )
