"""Decide when a batch is complete, and how to split it if it fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchWindow:
    """The limits of a batch. It is closed when it has `size` messages, or `wait` seconds after the
    first one.
    """

    size: int
    wait: float

    def is_full(self, held: int) -> bool:
        """Return True if a batch with this number of messages is full."""
        return held >= self.size

    def due_at(self, first_at: float) -> float:
        """Return the time when a batch is closed if its first message arrived at `first_at`."""
        return first_at + self.wait


def halves(batch: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Split a batch into two halves, which is repeated until the failing messages are found."""
    middle = len(batch) // 2
    return batch[:middle], batch[middle:]
