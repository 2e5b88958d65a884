"""The effective arguments of queues, after applying policies.

Only the matching policy with the highest priority is applied. If a value is set by both an argument
and a policy, either the argument or the smaller value is used, depending on the argument. For some
arguments of quorum queues, the policy takes precedence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.topology.model import Exchange, Policy, Queue, QueueType, Topology
from hopback.topology.policy_pattern import pattern_matches
from hopback.topology.rabbitmq_arguments import QUEUE_ARGUMENTS, Prevails
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.fields import FieldValue

DEFAULT_DELIVERY_LIMIT = 20
"""The default delivery limit of quorum queues since RabbitMQ 4.0."""
MANY_RETURNS = 1000
"""Returns. A delivery limit this high is not a risk for dead letters, because operators do not browse a
queue that often.
"""

_V4_0 = BrokerVersion(4, 0)

_APPLY_TO = {
    QueueType.CLASSIC: frozenset({"all", "queues", "classic_queues"}),
    QueueType.QUORUM: frozenset({"all", "queues", "quorum_queues"}),
    QueueType.STREAM: frozenset({"all", "queues", "streams"}),
}
_APPLY_TO_EXCHANGES = frozenset({"all", "exchanges"})


def find_policies(target: Queue | Exchange, policies: Iterable[Policy]) -> tuple[Policy, ...]:
    """Return the matching policies, highest priority first.

    Policies with a pattern that cannot be evaluated are omitted. `check` reports them.
    """
    kinds = _APPLY_TO[target.type] if isinstance(target, Queue) else _APPLY_TO_EXCHANGES
    fitting = [
        each
        for each in policies
        if each.apply_to in kinds and pattern_matches(each.pattern, target.name)
    ]
    return tuple(sorted(fitting, key=lambda each: -each.priority))


def effective_policy(target: Queue | Exchange, policies: Iterable[Policy]) -> Policy | None:
    """Return the policy that is applied to a queue or exchange."""
    return next(iter(find_policies(target, policies)), None)


def effective_arguments(
    queue: Queue, policies: Iterable[Policy], version: BrokerVersion | None = None
) -> dict[str, FieldValue]:
    """Return the effective arguments of a queue."""
    policy = effective_policy(queue, policies)
    merged = dict(queue.arguments)
    for key, by_policy in policy.definition.items() if policy else ():
        name = f"x-{key}"
        known = QUEUE_ARGUMENTS.get(name)
        if known is not None and queue.type not in known.types:
            continue
        own = merged.get(name)
        prevails = Prevails.ARGUMENT if known is None else known.prevails
        # Before 4.0, the policy also takes precedence over `x-expires` of a quorum queue.
        old = name == "x-expires" and version is not None and version < _V4_0
        by_type = prevails is Prevails.POLICY_OF_QUORUM or old
        if own is None or (by_type and queue.type is QueueType.QUORUM):
            merged[name] = by_policy
        elif prevails is Prevails.SMALLER and isinstance(own, int) and isinstance(by_policy, int):
            # A negative delivery limit means unlimited.
            smaller, larger = sorted((own, by_policy))
            merged[name] = larger if smaller < 0 else smaller
    return merged


def delivery_limit(queue: Queue, version: BrokerVersion) -> int | None:
    """Return the delivery limit of a queue with effective arguments, or None if there is no limit.

    RabbitMQ before 4.0 does not have a default limit and treats a negative limit as 0, which
    removes a message when it is returned for the first time.
    """
    if queue.type is not QueueType.QUORUM:
        return None
    limit = queue.arguments.get("x-delivery-limit")
    if not isinstance(limit, int):
        return None if version < _V4_0 else DEFAULT_DELIVERY_LIMIT
    if limit < 0:
        return 0 if version < _V4_0 else None
    return int(limit)


def effective_topology(topology: Topology, version: BrokerVersion | None = None) -> Topology:
    """Return the topology with policies applied to queues and exchanges."""
    exchanges = []
    for exchange in topology.exchanges:
        policy = effective_policy(exchange, topology.policies)
        alternate = policy.definition.get("alternate-exchange") if policy else None
        # The argument of the exchange takes precedence.
        if alternate is not None and "alternate-exchange" not in exchange.arguments:
            arguments = {**exchange.arguments, "alternate-exchange": alternate}
            exchanges.append(replace(exchange, arguments=arguments))
        else:
            exchanges.append(exchange)
    return replace(
        topology,
        exchanges=tuple(exchanges),
        queues=tuple(
            replace(each, arguments=effective_arguments(each, topology.policies, version))
            for each in topology.queues
        ),
    )
