"""Everything that a job works with, put together by whoever starts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback.clock import Clock
    from hopback.deadletters.acts import Act
    from hopback.deadletters.contract import Cost
    from hopback.deadletters.discovery import DeadLetterQueue
    from hopback.deadletters.filters import Filter
    from hopback.deadletters.head import Source
    from hopback.deadletters.journal import JobRecord, Journal
    from hopback.deadletters.pacing import Control
    from hopback.deadletters.requests import Pace
    from hopback.deadletters.selecting import Selecting
    from hopback.deadletters.watching import Watch

__all__ = ["Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """Everything that a job works with."""

    queue: DeadLetterQueue
    source: Source
    selecting: Selecting
    act: Act
    wanted: Filter
    cost: Cost
    journal: Journal
    owner: str
    clock: Clock
    pace: Pace
    control: Control
    watch: Watch | None = None
    watch_s: float = 0.0
    is_classic: bool = False
    per_turn: int = 32
    """So many messages are sent before others in the process have their turn."""
    on_change: Callable[[JobRecord], object] = lambda _job: None
    let_go: Callable[[], Awaitable[object]] | None = None
    """Closes the line that holds the messages: what is unsettled goes back, in order."""
