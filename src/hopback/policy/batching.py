"""Batches as a pure state machine: when a window is full or due, and how a bad one is split."""

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
        """The moment at which a batch whose first message came at `first_at` has to go."""
        return first_at + self.wait


def halves(batch: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Two halves of a batch of at least two: bad rows are found by trying each half alone."""
    middle = len(batch) // 2
    return batch[:middle], batch[middle:]
