"""Batch sizes and splitting of failed batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchWindow:
    """A batch is closed when it contains `size` messages, or `wait` seconds after the first one."""

    size: int
    wait: float

    def is_full(self, held: int) -> bool:
        """Return True if a batch with this number of messages is full."""
        return held >= self.size

    def due_at(self, first_at: float) -> float:
        """Return the time when a batch is closed if its first message arrived at `first_at`."""
        return first_at + self.wait


def halves(batch: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Split a batch in two halves. This is used to find the failing messages of a batch."""
    middle = len(batch) // 2
    return batch[:middle], batch[middle:]
