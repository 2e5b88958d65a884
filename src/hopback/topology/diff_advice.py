"""What can be done where the broker has something other than desired.

Queue types, durability and arguments never change in place. A policy can bring the same effect to
a live queue, as far as the argument that is already there lets it: some arguments win over a
policy, of others the smaller value counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.topology.model import QueueType
from hopback.topology.rabbitmq_arguments import QUEUE_ARGUMENTS, Prevails, policy_key
from hopback.topology.wording import shown

if TYPE_CHECKING:
    from hopback.fields import FieldValue
    from hopback.topology.model import Queue

__all__ = ["Advice", "advise_exchange", "advise_policy", "advise_queue"]

_MIGRATE = (
    "it cannot change in place: declare it as the broker has it, or migrate"
    " (make a new queue, move the messages, delete the old one)"
)
_RECREATE = (
    "it cannot change in place: declare it as the broker has it, or delete the exchange and"
    " create it with its bindings anew"
)


@dataclass(frozen=True, slots=True)
class Advice:
    """What can be done, in words, and the policy key and value that would do it, if one can."""

    text: str
    policy: tuple[str, FieldValue] | None = None


def advise_queue(actual: Queue, field: str, desired: FieldValue, found: FieldValue) -> Advice:
    """What can be done about a field or argument of a queue."""
    key, known = policy_key(field), QUEUE_ARGUMENTS.get(field)
    if key is None or known is None or not known.live or actual.type not in known.types:
        return Advice(_MIGRATE)
    if desired is None:
        return Advice(f"no policy takes an argument away; {_MIGRATE}")
    if found is None or _policy_prevails(actual, known.prevails, desired, found):
        note = " (for messages that come in from then on)" if key == "message-ttl" else ""
        return Advice(
            f"a policy with {key}: {shown(desired)} has the same effect on the live queue{note};"
            " declare the argument as the broker has it",
            (key, desired),
        )
    why = (
        "of argument and policy the smaller counts"
        if known.prevails is Prevails.SMALLER
        else "the argument wins over any policy"
    )
    return Advice(f"{why}; {_MIGRATE}")


def advise_exchange(field: str, desired: FieldValue, found: FieldValue) -> Advice:
    """What can be done about a field or argument of an exchange."""
    if field == "alternate-exchange" and found is None:
        return Advice(
            f"a policy with alternate-exchange: {shown(desired)} has the same effect on the live"
            " exchange; declare it without the argument",
            ("alternate-exchange", desired),
        )
    return Advice(_RECREATE)


def advise_policy() -> Advice:
    """What can be done about a policy."""
    return Advice("a policy can be replaced at any time and takes effect at once")


def _policy_prevails(
    actual: Queue, prevails: Prevails, desired: FieldValue, found: FieldValue
) -> bool:
    """Whether a policy has its way although the queue has the argument."""
    if prevails is Prevails.SMALLER:
        # A negative delivery limit means none, and gives way to any other.
        return (
            isinstance(desired, int)
            and isinstance(found, int)
            and (0 <= desired < found or found < 0 <= desired)
        )
    return prevails is Prevails.POLICY_OF_QUORUM and actual.type is QueueType.QUORUM
