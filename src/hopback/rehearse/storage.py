"""What a waiting message costs a broker: measured by queue type, size and version.

The rows are what `benchmarks/bytes_per_message.py` printed for one node on 2026-11-16 (Erlang's memory after
garbage collection, bytes of the data folder). Between two sizes, and beyond the largest, is a straight line.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from hopback.version import BrokerVersion

__all__ = ["BYTES_EACH", "LOG_BYTES", "Storage", "storage_of"]


class Storage(NamedTuple):
    """Bytes of memory and of disk for one message that waits; `logged` is memory beyond that for as
    long as the message stands in the write-ahead log of quorum queues."""

    memory: float
    disk: float
    logged: float = 0.0


LOG_BYTES = 512 * 1024 * 1024
"""RabbitMQ's `raft.wal_max_size_bytes`: a log that is full is written to the queues' own files, and what
it held leaves the memory. All quorum queues of a node share it."""

BYTES_EACH: dict[str, tuple[tuple[BrokerVersion, tuple[tuple[int, Storage], ...]], ...]] = {
    "classic": (
        (BrokerVersion(3, 10), (
            (100, Storage(793, 308)),
            (1_000, Storage(1_694, 1_209)),
            (10_000, Storage(11_216, 10_236)),
            (100_000, Storage(108_171, 100_243)),
        )),
        # From 4.0 on classic queues keep messages on disk and only the next few in memory.
        (BrokerVersion(4, 0), (
            (100, Storage(3, 300)),
            (1_000, Storage(13, 1_201)),
            (10_000, Storage(393, 10_220)),
            (100_000, Storage(11_542, 100_227)),
        )),
    ),
    # `logged` is that of 4.3, the largest of the three: on 3.10 and 4.0 part of the log had been written
    # out when it was measured.
    "quorum": (
        (BrokerVersion(3, 10), (
            (100, Storage(42, 451, 756)),
            (1_000, Storage(41, 1_352, 1_668)),
            (10_000, Storage(63, 10_361, 11_454)),
            (100_000, Storage(226, 100_418, 107_710)),
        )),
        (BrokerVersion(4, 0), (
            (100, Storage(70, 390, 756)),
            (1_000, Storage(71, 1_299, 1_668)),
            (10_000, Storage(117, 10_287, 11_454)),
            (100_000, Storage(205, 100_346, 107_710)),
        )),
        (BrokerVersion(4, 3), (
            (100, Storage(37, 374, 756)),
            (1_000, Storage(33, 1_278, 1_668)),
            (10_000, Storage(79, 10_287, 11_454)),
            (100_000, Storage(407, 100_523, 107_710)),
        )),
    ),
}  # fmt: skip
"""By queue type: from which version on, and the rows of a body's size and its cost."""


def storage_of(queue_type: str, size: int, version: BrokerVersion) -> Storage:
    """Bytes per message of this size; a version older than all that were measured counts as the oldest."""
    measured = BYTES_EACH.get(queue_type, BYTES_EACH["quorum"])
    rows = next((rows for since, rows in reversed(measured) if since <= version), measured[0][1])
    low, high = next((pair for pair in pairwise(rows) if size <= pair[1][0]), (rows[-2], rows[-1]))
    share = max(0.0, (size - low[0]) / (high[0] - low[0]))
    return Storage(*(a + (b - a) * share for a, b in zip(low[1], high[1], strict=True)))
