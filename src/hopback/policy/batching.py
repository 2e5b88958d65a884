"""Batches as pure functions: when a batch is full or due, and how a failed batch is split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchWindow:
    """A batch closes when it holds `size` messages, or `wait` seconds after its first one."""

    size: int
    wait: float

    def is_full(self, held: int) -> bool:
        """Whether a batch with this number of messages is full."""
        return held >= self.size

    def due_at(self, first_at: float) -> float:
        """Return when a batch closes whose first message arrived at `first_at`."""
        return first_at + self.wait


def halves(batch: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Split a batch of at least two messages in half. Failing rows are found by running each half alone."""
    middle = len(batch) // 2
    return batch[:middle], batch[middle:]
