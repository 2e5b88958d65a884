"""Permissions of callers. There are three roles, which are granted for brokers and queues by name
patterns.

This module is pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeVar

from hopback.text import text_matches

if TYPE_CHECKING:
    from collections.abc import Iterable

EVERYTHING = ("*",)
"""The queue patterns of a grant for all queues."""


class Role(StrEnum):
    """A set of permissions. Each role includes the permissions of the roles before it."""

    VIEWER = "viewer"
    """Read queues, depths, jobs and topology, but not payloads."""
    OPERATOR = "operator"
    """Browse, re-drive and discard messages, and control the caller's own jobs."""
    ADMIN = "admin"
    """Also control jobs of other callers, manage keys and read the audit."""

    @property
    def rank(self) -> int:
        """The position of the role. A role includes all roles with a lower rank."""
        return _RANKS[self]


# computed once, because it is needed for each queue of a list
_RANKS = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class Grant:
    """A role for all queues whose names match a pattern. `*` matches any characters.

    `broker` is also a pattern. If it is empty, the grant applies to the first broker.
    """

    role: Role
    queues: tuple[str, ...] = EVERYTHING
    broker: str = ""

    def holds_at(self, broker: str, *, is_first: bool) -> bool:
        return is_first if not self.broker else text_matches(self.broker, broker)

    def covers(self, queue: str | None) -> bool:
        """Return whether the grant applies to a queue, or to all queues if `queue` is None."""
        if queue is None:
            return "*" in self.queues
        return any(text_matches(pattern, queue) for pattern in self.queues)


class OfQueue(Protocol):
    """A value that belongs to a queue, for example a summary, a job, an alert or a candidate."""

    @property
    def queue(self) -> str: ...


OfQueueT = TypeVar("OfQueueT", bound=OfQueue)


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller. `kind` is how the caller was authenticated: `token`, `key`, `link` or `local`.

    `grants` apply to the broker of the request, and `elsewhere` to other brokers.
    """

    id: str
    name: str
    kind: str
    grants: tuple[Grant, ...]
    until: float | None = None
    """When the credential expires, in seconds since 1970."""
    elsewhere: tuple[Grant, ...] = ()

    def at(self, broker: str, *, is_first: bool) -> Principal:
        """Return the caller with the grants for a broker."""
        every = (*self.grants, *self.elsewhere)
        here = tuple(grant for grant in every if grant.holds_at(broker, is_first=is_first))
        return replace(
            self, grants=here, elsewhere=tuple(grant for grant in every if grant not in here)
        )

    def allows(self, role: Role, queue: str) -> bool:
        """Return whether the caller has the role for a queue."""
        return any(grant.role.rank >= role.rank and grant.covers(queue) for grant in self.grants)

    def allows_everywhere(self, role: Role) -> bool:
        """Return whether the caller has the role for all queues."""
        return any(grant.role.rank >= role.rank and grant.covers(None) for grant in self.grants)

    def allows_somewhere(self, role: Role) -> bool:
        """Return whether the caller has the role for at least one queue."""
        return any(grant.role.rank >= role.rank for grant in self.grants)

    @property
    def role(self) -> Role | None:
        """The highest role that the caller has for any queue."""
        return max((grant.role for grant in self.grants), key=lambda role: role.rank, default=None)

    def visible(self, values: Iterable[OfQueueT]) -> tuple[OfQueueT, ...]:
        """Return the values whose queues the caller may view."""
        if self.allows_everywhere(Role.VIEWER):
            return tuple(values)
        return tuple(value for value in values if self.allows(Role.VIEWER, value.queue))
