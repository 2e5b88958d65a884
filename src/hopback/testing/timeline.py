"""A message's life as a list of entries: when, in which queue, what happened, which headers count."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.headers import deaths
from hopback.renamed import OldNameLookup, old_names
from hopback.topology.plan import Fact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.fields import Headers
    from hopback.topology.plan import Plan
    from hopback.version import BrokerVersion

__all__ = ["Timeline", "TimelineEvent", "TimelineStep", "telling_headers"]

_EXPLAINING = (Fact.ATTEMPT, Fact.RETRIES, Fact.REASON, Fact.ERROR, Fact.STATUS)
_OWN = ("hopback-attempts", "hopback-queue", "hopback-snoozes")


class TimelineStep(StrEnum):
    """What can happen in a message's life."""

    PUBLISHED = "published"
    """It entered the queue whose life is told."""
    RUN = "run"
    """The handler ran."""
    WAITS = "waits"
    """It stands in a retry queue."""
    DUE = "due"
    """Its delay is over, and it is sent on."""
    RETURNED = "returned"
    """It is back in its queue."""
    PARKED = "parked"
    """It rests in the dead-letter queue."""
    DONE = "done"
    """The handler succeeded; the message is gone for good."""
    COPY = "copy"
    """Another queue received its own copy of what was published."""
    EXTRA = "extra copy"
    """Another queue received a copy because of a retry."""
    LOST = "lost"
    """The broker dropped it; the text says which of its ways this was."""


_FOR_OTHERS = (TimelineStep.COPY, TimelineStep.EXTRA)


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One thing that happened, in milliseconds since the message was published."""

    at_ms: int
    step: TimelineStep
    queue: str
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """What happened, in words."""
        return self.text if self.step is TimelineStep.RUN else f"{self.step} {self.text}".rstrip()


@dataclass(frozen=True, slots=True)
class Timeline:
    """The whole life of one message that was published to `exchange` with `routing_key`."""

    topology: str
    queue: str
    version: BrokerVersion
    exchange: str
    routing_key: str
    entries: tuple[TimelineEvent, ...]

    @property
    def runs(self) -> int:
        """How often the handler ran."""
        return sum(entry.step is TimelineStep.RUN for entry in self.entries)

    @property
    def duration_ms(self) -> int:
        """From the publish to the last entry."""
        return self.entries[-1].at_ms if self.entries else 0

    @property
    def ending(self) -> TimelineEvent:
        """How it ended: the last entry that is not a copy for someone else."""
        return next(entry for entry in reversed(self.entries) if entry.step not in _FOR_OTHERS)

    @property
    def extra_copies(self) -> Mapping[str, int]:
        """For each other queue, how many copies the retries brought it."""
        return Counter(entry.queue for entry in self.entries if entry.step is TimelineStep.EXTRA)


def telling_headers(headers: Headers, plan: Plan) -> dict[str, str]:
    """The headers that decide or explain: counts, what the design says of them, broker's deaths."""
    every = (*plan.retry_stamps, *plan.park_stamps)
    stamps = (stamp.header for stamp in every if stamp.fact in _EXPLAINING)
    names = dict.fromkeys((plan.count_header or "", *stamps, *_OWN))
    told = {name: str(headers[name]) for name in names if name in headers}
    died = ", ".join(f"{death.reason} {death.queue} ×{death.count}" for death in deaths(headers))
    return {**told, "x-death": died} if died else told


__getattr__: OldNameLookup = old_names(
    __name__, {"TimelineEntry": "TimelineEvent", "Entry": "TimelineEvent", "Step": "TimelineStep"}
)
