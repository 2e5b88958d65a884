"""The policies that lift a delivery limit. Pure.

Only one policy applies to a queue: the matching one of highest priority. Lifting a limit therefore
takes a policy for exactly that queue, above the one in force, with all keys of that one kept. Its
name is the record: `hopback-dlq-limit.<queue>`; deleting it puts the former policy back in force.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.topology.effective import applied_policy, effective_arguments
from hopback.topology.model import Policy, Queue, QueueType
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "DEFAULT_LIMIT_SINCE",
    "DLQ_LIMIT_PREFIX",
    "MAIN_LIMIT_PREFIX",
    "LiftedLimit",
    "exactly",
    "has_default_limit",
    "is_ours",
    "lifted_limits",
    "lifting",
]

DEFAULT_LIMIT_SINCE = BrokerVersion(4, 0)
"""From here on a quorum queue that names no limit has one of 20, and -1 means none."""
DLQ_LIMIT_PREFIX = "hopback-dlq-limit."
MAIN_LIMIT_PREFIX = "hopback-main-limit."


@dataclass(frozen=True, slots=True)
class LiftedLimit:
    """A limit that Hopback lifted: the policy that does it, and the queue it is for."""

    queue: str
    policy: Policy


def exactly(name: str) -> str:
    """A policy pattern that matches this name and no other."""
    return f"^{re.escape(name)}$"


def is_ours(policy: Policy) -> bool:
    """Whether Hopback made it, to lift a limit."""
    return policy.name.startswith((DLQ_LIMIT_PREFIX, MAIN_LIMIT_PREFIX))


def has_default_limit(queue: Queue, policies: Iterable[Policy], version: BrokerVersion) -> bool:
    """Whether only the broker's own default limits the deliveries of this queue."""
    if queue.type is not QueueType.QUORUM or version < DEFAULT_LIMIT_SINCE:
        return False
    return "x-delivery-limit" not in effective_arguments(queue, policies, version)


def lifting(prefix: str, queue: Queue, policies: Iterable[Policy]) -> Policy:
    """The policy that lifts the queue's limit and keeps everything else the policy in force says."""
    others = [policy for policy in policies if not is_ours(policy)]
    former = applied_policy(queue, others)
    kept = dict(former.definition) if former else {}
    return Policy(
        name=prefix + queue.name,
        pattern=exactly(queue.name),
        definition={**kept, "delivery-limit": -1},
        priority=former.priority + 1 if former else 1,
        apply_to="queues",
    )


def lifted_limits(policies: Iterable[Policy]) -> tuple[LiftedLimit, ...]:
    """Every limit that Hopback has lifted here, by the names of the policies."""
    return tuple(
        LiftedLimit(_queue_of(policy.name), policy) for policy in policies if is_ours(policy)
    )


def _queue_of(name: str) -> str:
    return name.removeprefix(DLQ_LIMIT_PREFIX).removeprefix(MAIN_LIMIT_PREFIX)
