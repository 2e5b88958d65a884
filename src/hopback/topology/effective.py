"""The effective arguments of a queue: its own arguments and the policy that applies to it.

Of all policies that match a queue, only the one with the highest priority applies. Policies do not
merge. If an argument and the policy set the same value, the argument applies or the smaller value
does. For some settings of a quorum queue the policy applies.
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
"""The delivery limit of a quorum queue that sets none, from RabbitMQ 4.0 on."""

_V4_0 = BrokerVersion(4, 0)

_APPLY_TO = {
    QueueType.CLASSIC: frozenset({"all", "queues", "classic_queues"}),
    QueueType.QUORUM: frozenset({"all", "queues", "quorum_queues"}),
    QueueType.STREAM: frozenset({"all", "queues", "streams"}),
}
_APPLY_TO_EXCHANGES = frozenset({"all", "exchanges"})


def find_policies(target: Queue | Exchange, policies: Iterable[Policy]) -> tuple[Policy, ...]:
    """The policies whose pattern and kind match, highest priority first.

    Policies whose pattern cannot be evaluated are left out. `check` reports them.
    """
    kinds = _APPLY_TO[target.type] if isinstance(target, Queue) else _APPLY_TO_EXCHANGES
    fitting = [
        each
        for each in policies
        if each.apply_to in kinds and pattern_matches(each.pattern, target.name)
    ]
    return tuple(sorted(fitting, key=lambda each: -each.priority))


def effective_policy(target: Queue | Exchange, policies: Iterable[Policy]) -> Policy | None:
    """The one policy that the broker applies to this queue or exchange."""
    return next(iter(find_policies(target, policies)), None)


def effective_arguments(
    queue: Queue, policies: Iterable[Policy], version: BrokerVersion | None = None
) -> dict[str, FieldValue]:
    """The queue's arguments as they take effect, under the names of arguments (`x-…`)."""
    policy = effective_policy(queue, policies)
    merged = dict(queue.arguments)
    for key, by_policy in policy.definition.items() if policy else ():
        name = f"x-{key}"
        known = QUEUE_ARGUMENTS.get(name)
        if known is not None and queue.type not in known.types:
            continue
        own = merged.get(name)
        prevails = Prevails.ARGUMENT if known is None else known.prevails
        # Before 4.0 the policy wins over the `x-expires` of a quorum queue too.
        old = name == "x-expires" and version is not None and version < _V4_0
        by_type = prevails is Prevails.POLICY_OF_QUORUM or old
        if own is None or (by_type and queue.type is QueueType.QUORUM):
            merged[name] = by_policy
        elif prevails is Prevails.SMALLER and isinstance(own, int) and isinstance(by_policy, int):
            # A negative delivery limit means none, so any real limit counts before it.
            smaller, larger = sorted((own, by_policy))
            merged[name] = larger if smaller < 0 else smaller
    return merged


def delivery_limit(queue: Queue, version: BrokerVersion) -> int | None:
    """Number of returns that a quorum queue allows, None for no limit. `queue` has effective arguments.

    Before 4.0 there is no default, and a negative limit acts like 0: the first return removes the
    message.
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
    exchanges = []
    for exchange in topology.exchanges:
        policy = effective_policy(exchange, topology.policies)
        alternate = policy.definition.get("alternate-exchange") if policy else None
        # The policy key is used only if the exchange does not have the argument.
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
