"""A queue's consumer in a scenario: its reaction to each run, and the recorded runs."""

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
    """The answer of an HTTP service. `due_in` is the number of seconds until an early event is due."""

    code: int
    due_in: float = 0.0


Reaction: TypeAlias = Exception | Outcome | Status
"""The reaction to one run: an exception, an outcome or a status."""

_OK = Done()


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a handler from the handler's view. `at` is in seconds since the first publish."""

    at: float
    attempt: int
    routing_key: str
    body: bytes
    headers: Headers = field(default_factory=dict)
    delivered_from: tuple[str, str] = ("", "")
    """Exchange and routing key of this delivery. `routing_key` is the original key."""
    redelivered: bool = False


@dataclass(slots=True)
class ScriptedConsumer:
    """The consumer of one queue. It returns its reactions in order, then `rest` for every further
    run.

    `script` computes the reaction from the run instead. With `reads_json` the handler has a JSON
    payload, with `pushes` the consumer is a service behind HTTP.
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
        """Record the run and return the reaction."""
        self.runs.append(run)
        if self.script is not None:
            return self.script(run)
        place = len(self.runs) - 1
        return self.reactions[place] if place < len(self.reactions) else self.rest

    @property
    def times(self) -> list[float]:
        """The times of the runs in seconds."""
        return [round(run.at, 3) for run in self.runs]

    @property
    def attempts(self) -> list[int]:
        """The attempt numbers of the runs."""
        return [run.attempt for run in self.runs]
