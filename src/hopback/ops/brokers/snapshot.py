"""The state of a broker at a point in time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hopback.broker.limits import DLQ_LIMIT_PREFIX, lift_policy
from hopback.designs import DESIGNS, Design
from hopback.errors import NoSuch
from hopback.ops.brokers.browse_cost import cost_of_browsing
from hopback.topology.effective import delivery_limit, effective_arguments, effective_topology
from hopback.topology.expand import retry_queues
from hopback.topology.model import Policy, Queue, QueueType, Topology
from hopback.topology.routing import PREDECLARED, RoutingTable
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hopback.broker.management.readings import QueueReading
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.contract.values import Cost

_MINUS_ONE_SINCE = BrokerVersion(4, 0)


@dataclass(frozen=True, slots=True)
class BrokerSnapshot:
    """The state of a broker at the time `at`.

    `topology` contains both live and declared objects. `live` and `readings` are None without
    management. `ready` and `consumers` are the counts of a single queue, if they were requested, or
    0.
    """

    topology: Topology
    version: BrokerVersion
    at: float
    live: Topology | None = None
    declared: tuple[Topology, ...] = ()
    operator_policies: tuple[Policy, ...] = ()
    dead_letter_queues: tuple[DeadLetterQueue, ...] = ()
    ready: int = 0
    consumers: int = 0
    readings: Mapping[str, QueueReading] | None = None

    def dead_letter_queue(self, name: str) -> DeadLetterQueue:
        """Return the dead-letter queue with this name. Raises NoSuch if there is none."""
        found = next((each for each in self.dead_letter_queues if each.name == name), None)
        if found is None:
            exists = self.topology.queue(name) is not None
            hint = "the queue exists but is not known as a dead-letter queue" if exists else ""
            raise NoSuch("dead-letter queue", name, hint)
        return found

    def effective(self, name: str) -> Queue | None:
        """Return a queue with its policies applied, or None if it is unknown."""
        queue = self.topology.queue(name)
        return None if queue is None else self._with_policies(queue, self.topology.policies)

    def _with_policies(self, queue: Queue, policies: Iterable[Policy]) -> Queue:
        merged = replace(queue, arguments=effective_arguments(queue, policies, self.version))
        by_operator = effective_arguments(merged, self.operator_policies, self.version)
        return replace(queue, arguments=by_operator)

    def cost(self, name: str, *, killed: bool = False) -> Cost:
        """Return the cost of one browse session. A `killed` session cannot requeue its messages."""
        lifting = self.policy_to_lift(name)
        why_not = lifting if isinstance(lifting, str) else ""
        return cost_of_browsing(
            self.effective(name), self.version, why_not_lifted=why_not, killed=killed
        )

    def policy_to_lift(self, name: str) -> Policy | str:
        """Return a policy that lifts the delivery limit, or the reason why that is not possible."""
        queue = self.topology.queue(name)
        if self.live is None:
            return "setting a policy needs the management address"
        if queue is None or queue.type is not QueueType.QUORUM:
            return "only a quorum queue on the broker has a delivery limit"
        if self.version < _MINUS_ONE_SINCE:
            return f"RabbitMQ {self.version} does not support a policy with delivery-limit -1"
        policy = lift_policy(DLQ_LIMIT_PREFIX, queue, self.topology.policies)
        # The new policy has the highest priority, so it applies to the queue. Matching its pattern
        # against every queue would be slow.
        lifted = self._with_policies(queue, (replace(policy, pattern=".*"),))
        if delivery_limit(lifted, self.version) is not None:
            return (
                "an argument or an operator policy sets the limit, which policies do not override"
            )
        return policy

    def is_classic(self, name: str) -> bool:
        """Whether the queue is known and classic."""
        queue = self.effective(name)
        return queue is not None and queue.type is QueueType.CLASSIC

    def design_of(self, queue: str) -> Design | None:
        """Return the declared design that uses this queue for its dead letters, if any."""
        for topology in self.declared:
            if any(plan.parking.queue == queue for plan in topology.plans):
                return DESIGNS.get(topology.name)
        return None

    @property
    def shown_topology(self) -> Topology:
        """The live objects and the plans declared for them. Without management, these are all
        declared objects.
        """
        if self.live is None:
            return self.topology
        names = {queue.name for queue in self.live.queues}
        plans = (plan for each in self.declared for plan in each.plans if plan.queue in names)
        unconsumed = frozenset(name for each in self.declared for name in each.unconsumed)
        return replace(self.live, plans=tuple(plans), unconsumed=unconsumed)

    def live_routes(self) -> RoutingTable | None:
        """Return the routes read from the broker, or None without management."""
        if self.live is None:
            return None
        return _routing_table(self.live, self.version)

    def route(self, exchange: str, routing_key: str) -> tuple[str, ...]:
        """Return the queues that a published message reaches. Raises KeyError if the exchange is
        missing.
        """
        return (self.live_routes() or self.known_routes()).route(exchange, routing_key)

    def known_routes(self) -> RoutingTable:
        """Return the routes read from the broker and those that are declared."""
        return _routing_table(self.topology, self.version)


def _routing_table(topology: Topology, version: BrokerVersion) -> RoutingTable:
    snapshot = effective_topology(topology, version)
    names = (queue.name for queue in snapshot.queues)
    return RoutingTable((*PREDECLARED, *snapshot.exchanges), names, snapshot.bindings)


def queues_that_hold_back(readings: Mapping[str, QueueReading]) -> tuple[QueueReading, ...]:
    """Return the queues that hold back dead letters, sorted by name."""
    holding = (reading for reading in readings.values() if reading.counts.held_back)
    return tuple(sorted(holding, key=lambda reading: reading.queue.name))


def held_back_for(
    found: DeadLetterQueue, holding: Iterable[QueueReading]
) -> tuple[tuple[str, int], ...]:
    """Return how many messages this dead-letter queue, its origins and their retry queues hold back."""
    names = {found.name, *found.origins}
    waiting = {name for plan in found.plans for name, _ in retry_queues(plan)}
    return tuple(
        (reading.queue.name, reading.counts.held_back or 0)
        for reading in holding
        if reading.queue.name in names | waiting
        or reading.queue.arguments.get("x-dead-letter-routing-key") in names
    )
