"""Whether someone may send messages where a re-drive aims: a grant binds the target, too.

Whoever may re-drive a dead-letter queue may send its messages back to the queues they failed in; that
is what a re-drive is. Any other queue that the target reaches needs a grant of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.admin.gate import forbidden
from hopback.admin.roles import Role
from hopback.deadletters.targets import TargetKind

if TYPE_CHECKING:
    from hopback.admin.roles import Principal
    from hopback.deadletters.operations import Operations
    from hopback.deadletters.targets import Target

__all__ = ["need_target"]

_FREE = frozenset({TargetKind.QUEUE, TargetKind.EXCHANGE, TargetKind.ORIGIN_EXCHANGE})
"""Targets that can lead beyond the queues whose dead letters are re-driven."""


async def need_target(
    operations: Operations, principal: Principal, queue: str, target: Target
) -> None:
    """Refuse a re-drive of `queue` that would reach a queue for which they are no operator."""
    if target.kind not in _FREE or principal.allows_everywhere(Role.OPERATOR):
        return
    reached = await operations.queues_beyond(queue, target)
    if reached is None:
        raise forbidden(
            f"Nothing tells which queues the target reaches ({target}): expected the role"
            f" {Role.OPERATOR} for all queues, or a target queue."
        )
    missing = sorted(name for name in reached if not principal.allows(Role.OPERATOR, name))
    if missing:
        raise forbidden(
            f"The target ({target}) reaches queue {missing[0]!r}: expected the role"
            f" {Role.OPERATOR} for it."
        )
