"""What a queue is told in the end: its own arguments and the one policy that applies to it.

Of all policies that match a queue only the one of highest priority counts; they do not merge.
Where both an argument and that policy speak, the argument wins or the smaller value does, and for
some settings of a quorum queue the policy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.topology.model import Exchange, Queue, QueueType
from hopback.topology.policy_pattern import pattern_matches
from hopback.topology.rabbitmq_arguments import QUEUE_ARGUMENTS, Prevails
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.fields import FieldValue
    from hopback.topology.model import Policy, Topology

__all__ = [
    "DEFAULT_DELIVERY_LIMIT",
    "applied_policy",
    "delivery_limit",
    "effective_arguments",
    "effective_topology",
    "matching_policies",
]

DEFAULT_DELIVERY_LIMIT = 20
"""What a quorum queue without any limit of its own gets from RabbitMQ 4.0 on."""

_V4_0 = BrokerVersion(4, 0)

_APPLY_TO = {
    QueueType.CLASSIC: frozenset({"all", "queues", "classic_queues"}),
    QueueType.QUORUM: frozenset({"all", "queues", "quorum_queues"}),
    QueueType.STREAM: frozenset({"all", "queues", "streams"}),
}
_APPLY_TO_EXCHANGES = frozenset({"all", "exchanges"})


def matching_policies(target: Queue | Exchange, policies: Iterable[Policy]) -> tuple[Policy, ...]:
    """The policies whose pattern and kind fit, the one that applies first.

    One whose pattern is not evaluated is not among them; `check` reports it.
    """
    kinds = _APPLY_TO[target.type] if isinstance(target, Queue) else _APPLY_TO_EXCHANGES
    fitting = [
        each
        for each in policies
        if each.apply_to in kinds and pattern_matches(each.pattern, target.name)
    ]
    return tuple(sorted(fitting, key=lambda each: -each.priority))


def applied_policy(target: Queue | Exchange, policies: Iterable[Policy]) -> Policy | None:
    """The one policy that the broker applies to this queue or exchange."""
    return next(iter(matching_policies(target, policies)), None)


def effective_arguments(
    queue: Queue, policies: Iterable[Policy], version: BrokerVersion | None = None
) -> dict[str, FieldValue]:
    """The queue's arguments as they take effect, under the names of arguments (`x-…`)."""
    policy = applied_policy(queue, policies)
    merged = dict(queue.arguments)
    for key, by_policy in policy.definition.items() if policy else ():
        name = f"x-{key}"
        known = QUEUE_ARGUMENTS.get(name)
        if known is not None and queue.type not in known.types:
            continue
        own = merged.get(name)
        merged[name] = by_policy if own is None else _chosen(queue, name, own, by_policy, version)
    return merged


def _chosen(
    queue: Queue, name: str, own: FieldValue, by_policy: FieldValue, version: BrokerVersion | None
) -> FieldValue:
    """What holds where both speak."""
    known = QUEUE_ARGUMENTS.get(name)
    prevails = Prevails.ARGUMENT if known is None else known.prevails
    # Before 4.0 the policy wins over the `x-expires` of a quorum queue too.
    old = name == "x-expires" and version is not None and version < _V4_0
    if queue.type is QueueType.QUORUM and (prevails is Prevails.POLICY_OF_QUORUM or old):
        return by_policy
    if prevails is Prevails.SMALLER and isinstance(own, int) and isinstance(by_policy, int):
        # A negative delivery limit means none, so any real limit counts before it.
        return max(own, by_policy) if min(own, by_policy) < 0 else min(own, by_policy)
    return own


def delivery_limit(queue: Queue, version: BrokerVersion) -> int | None:
    """How many returns a quorum queue allows; None for no limit. `queue` has effective arguments.

    Below 4.0 there is no default, and a negative limit acts like 0: the first return removes.
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
    """The same topology with each queue and exchange as its policy makes it."""
    return replace(
        topology,
        exchanges=tuple(_exchange(each, topology.policies) for each in topology.exchanges),
        queues=tuple(
            replace(each, arguments=effective_arguments(each, topology.policies, version))
            for each in topology.queues
        ),
    )


def _exchange(exchange: Exchange, policies: Iterable[Policy]) -> Exchange:
    """An exchange takes only its alternate exchange from a policy, if it names none itself."""
    policy = applied_policy(exchange, policies)
    alternate = policy.definition.get("alternate-exchange") if policy else None
    if alternate is None or "alternate-exchange" in exchange.arguments:
        return exchange
    return replace(exchange, arguments={**exchange.arguments, "alternate-exchange": alternate})
