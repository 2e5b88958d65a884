"""What a waiting message costs a broker, by queue type and size, as it was measured."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

__all__ = ["MEASURED", "Storage", "storage_of"]


class Storage(NamedTuple):
    """Bytes of memory and of disk for one message that waits."""

    memory: float
    disk: float


MEASURED: dict[str, tuple[tuple[int, float, float], ...]] = {
    "classic": ((100, 600.0, 700.0), (1_000, 1600.0, 1700.0), (10_000, 1000.0, 11_000.0)),
    "quorum": ((100, 700.0, 400.0), (1_000, 1000.0, 1500.0), (10_000, 1000.0, 11_000.0)),
}


def storage_of(queue_type: str, size: int) -> Storage:
    """Bytes per message of this size: between two measured sizes on a straight line."""
    rows = MEASURED.get(queue_type, MEASURED["quorum"])
    below, above = rows[0], rows[-1]
    for low, high in pairwise(rows):
        if low[0] <= size <= high[0]:
            below, above = low, high
    if size >= rows[-1][0]:
        # Beyond the largest the body is what grows on disk; memory holds only what names it.
        extra = size - rows[-1][0]
        return Storage(rows[-1][1], rows[-1][2] + extra)
    share = max(0.0, (size - below[0]) / (above[0] - below[0]))
    return Storage(
        below[1] + (above[1] - below[1]) * share, below[2] + (above[2] - below[2]) * share
    )
