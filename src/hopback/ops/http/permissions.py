"""Check the caller's role for all queues of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.ops.contract.roles import Role
from hopback.ops.http.auth import forbidden

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hopback.ops.contract.interface import DeadLetters
    from hopback.ops.contract.queue_rules import QueueRule, TouchingRequest
    from hopback.ops.contract.roles import Principal
    from hopback.ops.contract.values import Job

_SEARCHED_JOBS = 2_000
"""Number of jobs that are read for a caller who may only view some queues. Older ones are not listed."""


async def require(role: Role | None, rules: Iterable[QueueRule], asked: TouchingRequest) -> None:
    """Raise Refused unless the caller has the role for every queue that the rules return."""
    if role is None:
        return
    for rule in rules:
        if rule.find is None:
            continue
        queues = await rule.find(asked)
        needed = role if rule.find_role is None else await rule.find_role(asked)
        if queues is None:
            if not asked.principal.allows_everywhere(needed):
                raise forbidden(
                    f"The queues that this request reaches are unknown: expected the role {needed}"
                    " for all queues, or a target queue."
                )
            continue
        for queue in sorted(set(queues)):
            if not asked.principal.allows(needed, queue):
                raise forbidden(f"Expected the role {needed} for queue {queue!r}.")


def may_begin(
    role: Role | None, rules: Iterable[QueueRule], principal: Principal, path: Mapping[str, str]
) -> bool:
    """Return False if the request can be refused before its body is read and its queues are known."""
    if role is None:
        return True
    rules = tuple(rules)
    if any(rule.is_everywhere for rule in rules):
        return principal.allows_everywhere(role)
    if any(rule.is_in_path for rule in rules):
        return principal.allows(role, path["queue"])
    return principal.allows_somewhere(role)


async def searchable_queues(asked: TouchingRequest, *, missing: bool = False) -> tuple[str, ...]:
    """Return the dead-letter queues to search for a caller that has not named any.

    A search without queues reads all of them. Raises Refused if the caller may search none. With
    `missing`, queues that are not on the broker are included, and the search reports them.
    """
    known, principal = await asked.operations.queues(), asked.principal
    existing = (one.queue for one in known if one.exists or missing)
    queues = tuple(queue for queue in existing if principal.allows(Role.OPERATOR, queue))
    if not queues and not principal.allows_everywhere(Role.OPERATOR):
        raise forbidden(f"Expected the role {Role.OPERATOR} for at least one dead-letter queue.")
    return queues


async def visible_jobs(
    operations: DeadLetters,
    principal: Principal,
    limit: int,
    *,
    queue: str = "",
    active: bool = False,
) -> tuple[Job, ...]:
    """Return the newest jobs of the queues that the caller may view, at most `limit`."""
    is_scoped = not principal.allows_everywhere(Role.VIEWER)
    most = max(limit, _SEARCHED_JOBS) if is_scoped else limit
    return principal.visible(await operations.jobs(queue=queue, active=active, limit=most))[:limit]
