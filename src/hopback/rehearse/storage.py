"""What a waiting message costs a broker, by queue type and size: measured in part, else estimated."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

__all__ = ["BYTES_EACH", "Storage", "storage_of"]


class Storage(NamedTuple):
    """Bytes of memory and of disk for one message that waits."""

    memory: float
    disk: float


# Rows of size, memory, disk. Measured: the classic rows of 100 and 1,000 bytes, on RabbitMQ 3.10 of one
# node, 2026-11-16, by benchmarks/bytes_per_message.py (Erlang's memory after garbage collection, bytes of
# the data folder). All other rows are estimates from these: a quorum queue keeps the message in its log and
# an index entry in memory; from 10 kB on the body is taken to stand on disk only.
BYTES_EACH: dict[str, tuple[tuple[int, float, float], ...]] = {
    "classic": ((100, 794.0, 308.0), (1_000, 1697.0, 1209.0), (10_000, 1000.0, 10_200.0)),
    "quorum": ((100, 800.0, 400.0), (1_000, 1700.0, 1300.0), (10_000, 1000.0, 10_300.0)),
}
"""Bytes of one waiting message by queue type; partly measured, partly estimated, as said above."""


def storage_of(queue_type: str, size: int) -> Storage:
    """Bytes per message of this size: between two known sizes on a straight line."""
    rows = BYTES_EACH.get(queue_type, BYTES_EACH["quorum"])
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
