"""Dead-letter queues as an operator sees them: how deep, what looking costs, where messages can go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.deadletters.cost import Cost
    from hopback.deadletters.jobs import Job
    from hopback.deadletters.targets import Target
    from hopback.topology.model import QueueType
    from hopback.version import BrokerVersion

__all__ = ["HELD_BACK", "Depth", "QueueDetail", "QueueSummary", "TargetChoice"]

HELD_BACK = (
    "Held back: the next queue did not take these messages, because it is missing or full or the broker"
    " was starting. No queue length counts them, nothing is lost, and the broker tries again, 3 minutes"
    " later unless its node says otherwise (`hopback doctor`)."
)


@dataclass(frozen=True, slots=True)
class Depth:
    """How many messages a queue holds, who says so and how old that may be. None: nobody says.

    By `amqp` the number of ready messages is exact and of this moment; by `management` all numbers
    may be `lag_s` seconds old when they are read. `held_back` is what dead-lettering could not
    deliver yet.
    """

    ready: int | None
    unacked: int | None
    consumers: int | None
    source: str
    read_at: float
    lag_s: float = 0.0
    held_back: int | None = None

    @property
    def total(self) -> int | None:
        """Ready and unacked messages together; the ready ones where nobody tells the others."""
        return None if self.ready is None else self.ready + (self.unacked or 0)

    def age(self, now: float) -> float:
        """How old the numbers may be, in seconds."""
        return max(now - self.read_at, 0.0) + self.lag_s


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """A row of the list. `exists` is False for a queue that is declared and not on the broker.

    `known_by` says what gave it away: `plan`, `dead-lettering`, `name` or `operator`.
    `state` and `idle_since` come from the management API, where there is one. So does `held_back`:
    how many messages on their way to or from a queue of origin the broker holds back, by the queue
    that holds them; `HELD_BACK` says what that means.
    """

    queue: str
    main_queue: str | None
    origins: tuple[str, ...]
    retry_exchange: str | None
    label: str
    known_by: str
    depth: Depth
    exists: bool = True
    active_job: Job | None = None
    state: str | None = None
    idle_since: str | None = None
    held_back: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """A target that a re-drive from this queue may choose.

    `exchange` and `routing_key` are the way if it is the same for every message, else None.
    `flaw` says why nothing may be sent there; None where nothing speaks against it.
    """

    target: Target
    text: str
    exchange: str | None = None
    routing_key: str | None = None
    warning: str = ""
    flaw: str | None = None
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class QueueDetail:
    """Everything about one dead-letter queue that can be known without looking into it.

    `type` is None where only its name is known. `limit` is the effective delivery limit, None for
    none. `limit_lifted` says that Hopback lifted it by policy; `can_lift` that it could.
    """

    summary: QueueSummary
    type: QueueType | None
    limit: int | None
    cost: Cost
    targets: tuple[TargetChoice, ...]
    version: BrokerVersion
    limit_lifted: bool = False
    can_lift: bool = False
