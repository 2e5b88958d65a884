"""A queue's consumer in a scenario: what it does run by run, and what it saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from hopback.policy import Done, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.fields import Headers
    from hopback.policy import Rule

__all__ = ["Reaction", "Run", "ScriptedConsumer", "Status"]


@dataclass(frozen=True, slots=True)
class Status:
    """The answer of an HTTP service; `due_in` are the seconds until an early event is due."""

    code: int
    due_in: float = 0.0


Reaction: TypeAlias = Exception | Outcome | Status
"""What one run does: raise, return an outcome, or answer with a status."""

_OK = Done()


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a handler as the handler sees it; `at` is in seconds since the first publish."""

    at: float
    attempt: int
    routing_key: str
    body: bytes
    headers: Headers = field(default_factory=dict)
    came_by: tuple[str, str] = ("", "")
    """Exchange and routing key of this very delivery; the original key is `routing_key`."""
    redelivered: bool = False


@dataclass(slots=True)
class ScriptedConsumer:
    """The consumer of one queue. Its reactions are taken in order, then `rest` each time.

    `script` decides by what it sees instead. `reads_json` makes it a handler that asks for a JSON
    payload, `pushes` one that is a service behind HTTP.
    """

    queue: str
    reactions: tuple[Reaction, ...] = ()
    rest: Reaction = _OK
    script: Callable[[Run], Reaction] | None = None
    rules: tuple[Rule, ...] = ()
    reads_json: bool = False
    pushes: bool = False
    runs: list[Run] = field(default_factory=list)

    def react(self, run: Run) -> Reaction:
        """Note the run and say what it does."""
        self.runs.append(run)
        if self.script is not None:
            return self.script(run)
        place = len(self.runs) - 1
        return self.reactions[place] if place < len(self.reactions) else self.rest

    @property
    def times(self) -> list[float]:
        """When it ran, in seconds."""
        return [round(run.at, 3) for run in self.runs]

    @property
    def attempts(self) -> list[int]:
        """The number that each run was told."""
        return [run.attempt for run in self.runs]
