"""What a job would do: the answer of a dry run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.deadletters.cost import Cost
    from hopback.deadletters.jobs import JobKind
    from hopback.deadletters.sessions import Group

__all__ = ["JobPlan", "LeftOutCount", "WayCheck"]


@dataclass(frozen=True, slots=True)
class WayCheck:
    """A way that messages would take, how many of those seen, and why it may not be used."""

    exchange: str
    routing_key: str
    count: int
    flaw: str | None = None


@dataclass(frozen=True, slots=True)
class LeftOutCount:
    """How many of those seen would not be touched, and why."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What would happen.

    `selected` is the size of the selection, `seen` how many of it were looked at for this plan and
    `matching` how many of those the filter wants. The histogram, the ways and what is left out are
    of those. `order` says whether the order of messages is kept. A plan with `flaws` will not start.
    """

    kind: JobKind
    queue: str
    target: str
    selected: int
    seen: int
    matching: int
    reasons: tuple[Group, ...]
    errors: tuple[Group, ...]
    ways: tuple[WayCheck, ...]
    left_out: tuple[LeftOutCount, ...]
    cost: Cost
    order: str
    warnings: tuple[str, ...] = ()
    flaws: tuple[str, ...] = ()
    as_of: float = 0.0
    watch_s: float = 0.0
    export_to: str = ""

    @property
    def may_start(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.flaws
