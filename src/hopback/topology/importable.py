"""What a broker of a given version can import, and what it would refuse or misunderstand.

A definitions file with one bad policy is refused as a whole, and a queue argument can mean another
thing to an old broker. So what does not fit is left out, and said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.topology.rabbitmq_arguments import (
    APPLY_TO,
    POLICY_KEYS,
    QUEUE_ARGUMENTS,
    QUEUE_TYPES,
)
from hopback.topology.wording import quoted
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.fields import FieldValue
    from hopback.topology.model import Policy, Queue, Topology

__all__ = ["importable", "without_queues"]

_V4_0 = BrokerVersion(4)


def importable(topology: Topology, version: BrokerVersion) -> tuple[Topology, tuple[str, ...]]:
    """The topology as a broker of this version can import it, and what was left out and why."""
    notes: list[str] = []
    unknown = {queue.name for queue in topology.queues if not _has_type(queue, version)}
    topology, said = without_queues(topology, unknown, f"RabbitMQ {version} has no such queues")
    notes += said
    queues = tuple(_fitting_queue(queue, version, notes) for queue in topology.queues)
    policies = tuple(_fitting_policies(topology, version, notes))
    return replace(topology, queues=queues, policies=policies), tuple(notes)


def without_queues(
    topology: Topology, names: set[str], why: str
) -> tuple[Topology, tuple[str, ...]]:
    """The topology without these queues and what is bound to them, and a note for each."""
    notes = tuple(
        f"{queue.type} queue {quoted(queue.name)} and its bindings left out: {why}"
        for queue in topology.queues
        if queue.name in names
    )
    queues = tuple(queue for queue in topology.queues if queue.name not in names)
    bindings = tuple(
        binding
        for binding in topology.bindings
        if binding.to_exchange or binding.destination not in names
    )
    return replace(topology, queues=queues, bindings=bindings), notes


def _has_type(queue: Queue, version: BrokerVersion) -> bool:
    return version >= QUEUE_TYPES[queue.type]


def _fitting_queue(queue: Queue, version: BrokerVersion, notes: list[str]) -> Queue:
    arguments = dict(queue.arguments)
    for name, known in QUEUE_ARGUMENTS.items():
        value = arguments.get(name)
        for gap in known.gaps if value is not None else ():
            if version not in gap.span and gap.concerns(queue, value):
                del arguments[name]
                meant = f"{name} = {value} is meant for RabbitMQ {gap.span}"
                notes.append(f"queue {quoted(queue.name)}: {meant}; left out: {gap.why}")
                break
    return queue if len(arguments) == len(queue.arguments) else replace(queue, arguments=arguments)


def _fitting_policies(
    topology: Topology, version: BrokerVersion, notes: list[str]
) -> Iterator[Policy]:
    for policy in topology.policies:
        fitting = _fitting_target(_fitting_keys(policy, version, notes), version, notes)
        if fitting.definition:
            yield fitting
        else:
            notes.append(f"policy {quoted(policy.name)} left out: nothing of it is left")


def _fitting_keys(policy: Policy, version: BrokerVersion, notes: list[str]) -> Policy:
    definition = dict(policy.definition)
    for key, value in policy.definition.items():
        why = _refused(key, value, version)
        if why is not None:
            del definition[key]
            told = f"{quoted(key)} left out: {why}; the whole import would be refused"
            notes.append(f"policy {quoted(policy.name)}: {told}")
    return (
        policy
        if len(definition) == len(policy.definition)
        else replace(policy, definition=definition)
    )


def _refused(key: str, value: FieldValue, version: BrokerVersion) -> str | None:
    """Why a broker of this version refuses a policy with this key, or None."""
    span = POLICY_KEYS.get(key)
    if span is None:
        return f"RabbitMQ {version} knows no such policy key"
    if version not in span:
        return f"only RabbitMQ {span} knows it"
    if key == "delivery-limit" and version < _V4_0 and isinstance(value, int) and value < 0:
        return "before 4.0 a delivery limit cannot be negative"
    return None


def _fitting_target(policy: Policy, version: BrokerVersion, notes: list[str]) -> Policy:
    since = APPLY_TO.get(policy.apply_to)
    if since is None or version >= since:
        return policy
    told = f'applies to "queues" instead of {quoted(policy.apply_to)}, which came with {since}'
    notes.append(f"policy {quoted(policy.name)}: {told}: it now matches queues of every type")
    return replace(policy, apply_to="queues")
