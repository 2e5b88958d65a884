"""Who may do what: three roles, each for some brokers and for all queues or those of a pattern. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.text import text_matches

if TYPE_CHECKING:
    from collections.abc import Iterable

EVERYTHING = ("*",)
"""The queue patterns of a grant that is not limited to some queues."""


class Role(StrEnum):
    """What someone may do; each role includes the ones before it."""

    VIEWER = "viewer"
    """See queues, depths, jobs and topology; no payload."""
    OPERATOR = "operator"
    """Look at messages, re-drive and discard them, steer own jobs."""
    ADMIN = "admin"
    """Everything: others' jobs, keys, the audit."""

    @property
    def rank(self) -> int:
        """Higher may do more."""
        return _RANKS[self]


_RANKS = {role: rank for rank, role in enumerate(Role)}  # asked for each queue of a list


@dataclass(frozen=True, slots=True)
class Grant:
    """A role for the queues whose names match one of the patterns (`*` stands for any characters).

    `broker` is such a pattern, too. An empty one means the first broker.
    """

    role: Role
    queues: tuple[str, ...] = EVERYTHING
    broker: str = ""

    def holds_at(self, broker: str, *, is_first: bool) -> bool:
        """Whether it holds for the queues of that broker."""
        return is_first if not self.broker else text_matches(self.broker, broker)

    def covers(self, queue: str | None) -> bool:
        """Whether it holds for that queue; without one, whether it holds for all of them."""
        if queue is None:
            return "*" in self.queues
        return any(text_matches(pattern, queue) for pattern in self.queues)


@dataclass(frozen=True, slots=True)
class Principal:
    """Someone who asks. `kind` says how they are known: `token`, `key`, `link` or `local`.

    `grants` are those that hold where they ask; `elsewhere` are the ones for other brokers.
    """

    id: str
    name: str
    kind: str
    grants: tuple[Grant, ...]
    until: float | None = None
    """When what they showed ends, in seconds since 1970."""
    elsewhere: tuple[Grant, ...] = ()

    def at(self, broker: str, *, is_first: bool) -> Principal:
        """The same person as someone who asks of that broker."""
        every = (*self.grants, *self.elsewhere)
        here = tuple(grant for grant in every if grant.holds_at(broker, is_first=is_first))
        return replace(
            self, grants=here, elsewhere=tuple(grant for grant in every if grant not in here)
        )

    def allows(self, role: Role, queue: str) -> bool:
        """Whether they have the role for that queue."""
        return any(grant.role.rank >= role.rank and grant.covers(queue) for grant in self.grants)

    def allows_everywhere(self, role: Role) -> bool:
        """Whether they have the role for all queues."""
        return any(grant.role.rank >= role.rank and grant.covers(None) for grant in self.grants)

    def allows_somewhere(self, role: Role) -> bool:
        """Whether they have the role for any queue at all."""
        return any(grant.role.rank >= role.rank for grant in self.grants)

    @property
    def role(self) -> Role | None:
        """The highest role they have anywhere."""
        return max((grant.role for grant in self.grants), key=lambda role: role.rank, default=None)

    def visible(self, queues: Iterable[str]) -> list[str]:
        """Those of the queues that they may see."""
        if self.allows_everywhere(Role.VIEWER):
            return list(queues)
        return [queue for queue in queues if self.allows(Role.VIEWER, queue)]
