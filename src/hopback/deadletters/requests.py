"""What can be asked for: a selection of messages, and what is to be done with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from hopback.deadletters.pacing import UNHURRIED
from hopback.deadletters.targets import BY_DESIGN
from hopback.policy.redrive import MAX_REDRIVES

if TYPE_CHECKING:
    from hopback.deadletters.pacing import Pace
    from hopback.deadletters.targets import Target
    from hopback.fields import Headers

__all__ = [
    "NOBODY",
    "DiscardRequest",
    "Edit",
    "FromHead",
    "FromSession",
    "RedriveRequest",
    "Request",
    "Selection",
    "Who",
]


@dataclass(frozen=True, slots=True)
class Who:
    """Somebody who acts: an id that stays, and a name for people."""

    id: str = ""
    name: str = ""


NOBODY = Who()
"""Nobody in particular: a program, or whoever runs it."""


@dataclass(frozen=True, slots=True)
class FromSession:
    """Messages that a browse session holds: these ids, or all that the filter matches.

    The job takes over the session's deliveries; what it does not touch goes back in order.
    """

    session: str
    ids: tuple[str, ...] = ()
    filter: str = ""


@dataclass(frozen=True, slots=True)
class FromHead:
    """The first `limit` messages at the head, at most as many as are there when the job starts.

    What the filter does not match is held meanwhile and given back in order.
    """

    limit: int | None = None
    filter: str = ""


Selection: TypeAlias = FromSession | FromHead


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveRequest:
    """Send messages of a dead-letter queue back.

    `expected_count` None does not compare. `max_redrives` None switches the loop guard off.
    `key` makes the request safe to repeat: a second one with the same key finds the first job.
    `stamped` also writes the `x-redriven-…` headers; None leaves that to the design. `operation` is
    the correlation id they carry, by default the job's id. `forced` accepts what looking costs.
    """

    queue: str
    selection: Selection
    reason: str
    by: Who = NOBODY
    target: Target = BY_DESIGN
    pace: Pace = UNHURRIED
    max_redrives: int | None = MAX_REDRIVES
    expected_count: int | None = None
    key: str | None = None
    stamped: bool | None = None
    operation: str = ""
    forced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardRequest:
    """Remove messages of a dead-letter queue for good.

    `confirm` must repeat the queue's name. Each message is written to `export_to` before it goes; a
    name that ends in `.zst` is compressed. Empty: a file named for the job in the folder of exports.
    `export` False goes without.
    """

    queue: str
    selection: Selection
    reason: str
    confirm: str
    by: Who = NOBODY
    export: bool = True
    export_to: str = ""
    pace: Pace = UNHURRIED
    expected_count: int | None = None
    key: str | None = None
    forced: bool = False


Request: TypeAlias = RedriveRequest | DiscardRequest


@dataclass(frozen=True, slots=True)
class Edit:
    """What a copy says differently; None leaves what the original says.

    `headers` are set, `without` are removed; Hopback's own and the broker's cannot be edited.
    """

    body: bytes | None = None
    content_type: str | None = None
    headers: Headers = field(default_factory=lambda: MappingProxyType({}))
    without: frozenset[str] = frozenset()
