"""What a broker of a given version can import, and what it would refuse or misunderstand.

A definitions file with one bad policy is refused as a whole, and a queue argument can mean another
thing to an old broker. So what does not fit is left out, and said.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hopback.topology.capabilities import APPLY_TO, POLICY_KEYS, Span
from hopback.topology.model import QueueType
from hopback.topology.wording import quoted
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hopback.fields import FieldValue
    from hopback.topology.model import Policy, Queue, Topology

__all__ = ["importable", "without_queues"]

_V3_8, _V3_9, _V3_10 = BrokerVersion(3, 8), BrokerVersion(3, 9), BrokerVersion(3, 10)
_V3_12, _V4_0, _V4_3 = BrokerVersion(3, 12), BrokerVersion(4), BrokerVersion(4, 3)

_TYPE_SINCE = {QueueType.QUORUM: _V3_8, QueueType.STREAM: _V3_9}


@dataclass(frozen=True, slots=True)
class _Rule:
    """An argument that some versions do not take as it is meant, and what they do with it."""

    argument: str
    span: Span
    why: str
    concerns: Callable[[Queue, FieldValue], bool] = lambda queue, value: True


def _negative(queue: Queue, value: FieldValue) -> bool:
    return isinstance(value, int) and value < 0


def _classic(queue: Queue, value: FieldValue) -> bool:
    return queue.type is QueueType.CLASSIC


def _quorum(queue: Queue, value: FieldValue) -> bool:
    return queue.type is QueueType.QUORUM


_RULES = (
    _Rule(
        "x-delivery-limit",
        Span(_V4_0),
        "a negative limit deletes a message at its first requeue there; without it there is none",
        _negative,
    ),
    _Rule("x-consumer-timeout", Span(_V3_12), "it is ignored there"),
    _Rule("x-consumer-timeout", Span(until=_V4_3), "a classic queue refuses it there", _classic),
    _Rule("x-consumer-disconnected-timeout", Span(_V4_3), "it is ignored there"),
    _Rule("x-delayed-retry-type", Span(_V4_3), "it is ignored there: a retry comes at once"),
    _Rule("x-delayed-retry-min", Span(_V4_3), "it is ignored there"),
    _Rule("x-delayed-retry-max", Span(_V4_3), "it is ignored there"),
    _Rule(
        "x-message-ttl",
        Span(_V3_10),
        "a quorum queue refuses it there; messages would stay in it for ever",
        _quorum,
    ),
    _Rule("x-dead-letter-strategy", Span(_V3_10), "dead letters move at most once there"),
    _Rule("x-queue-version", Span(_V3_10), "it is unknown there"),
    _Rule("x-queue-version", Span(until=_V4_3), "version 1 is refused there", lambda _, v: v == 1),
    _Rule("x-queue-leader-locator", Span(_V3_12), "a classic queue refuses it there", _classic),
)


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
    return queue.type is QueueType.CLASSIC or version >= _TYPE_SINCE[queue.type]


def _fitting_queue(queue: Queue, version: BrokerVersion, notes: list[str]) -> Queue:
    arguments = dict(queue.arguments)
    for rule in _RULES:
        value = arguments.get(rule.argument)
        if value is not None and version not in rule.span and rule.concerns(queue, value):
            del arguments[rule.argument]
            known = f"{rule.argument} = {value} is meant for RabbitMQ {rule.span}"
            notes.append(f"queue {quoted(queue.name)}: {known}; left out: {rule.why}")
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
