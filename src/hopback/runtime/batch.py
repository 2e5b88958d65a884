"""Batch handlers as values: what is called with many payloads at once, and how they are gathered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopback.runtime.limits import require

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hopback.policy.breaker import BreakerPolicy
    from hopback.policy.rules import Rule
    from hopback.runtime.handler import Handler
    from hopback.runtime.payload import Decoder

__all__ = ["BatchHandler", "BatchOptions", "blames_rows"]


def blames_rows(error: Exception) -> bool:
    """Whether a failure may be due to single rows: a lost line or a timeout never is."""
    return not isinstance(error, OSError | TimeoutError)


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How batches are gathered and run.

    A batch goes at `size` messages or `wait` seconds after its first; `batchers` run at once.
    `isolates` says of an exception whether the bad rows should be looked for. `deadline` (seconds)
    ends a call that takes too long. `breaker` pauses the queue when everything fails.
    """

    size: int = 1000
    wait: float = 1.0
    batchers: int = 2
    isolates: Callable[[Exception], bool] = blames_rows
    rules: tuple[Rule, ...] = ()
    deadline: float | None = None
    breaker: BreakerPolicy | None = None

    def __post_init__(self) -> None:
        require("size", self.size >= 1, "at least 1", self.size)
        require("wait", self.wait >= 0, "0 or more seconds", self.wait)
        require("batchers", self.batchers >= 1, "at least 1", self.batchers)
        late = self.deadline is None or self.deadline > 0
        require("deadline", late, "more than 0 seconds", self.deadline)

    @property
    def window(self) -> int:
        """The prefetch: one batch is filled while the others are handled."""
        return min(self.size * (self.batchers + 1), 65_535)


@dataclass(frozen=True, slots=True)
class BatchHandler:
    """A function of a list of payloads; it returns nothing, or an outcome for each.

    `prepare` makes the row of one message before it joins a batch, several at once; what it returns
    takes the payload's place, and an outcome concludes its message alone.
    """

    queue: str
    call: Callable[[list[Any]], Awaitable[Sequence[object] | None]]
    decode: Decoder
    options: BatchOptions
    prepare: Handler | None = None
