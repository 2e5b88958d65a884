"""Yield to the event loop after a limited amount of work.

This gives health checks, heartbeats and other requests a chance to run. The amount is measured in
bytes and not in time, so it is the same on all machines. The work for a single message is limited
by its size.
"""

from __future__ import annotations

import asyncio

_TURN_BYTES = 512 * 1024
"""Bytes after which to yield. This is a hundred normal messages or a large one, and takes some tens
of milliseconds.
"""


class Turns:
    """Count the bytes of processed messages, and yield to the event loop when there are enough."""

    def __init__(self, turn_bytes: int = _TURN_BYTES) -> None:
        self._most = turn_bytes
        self._bytes = 0

    def is_over(self, size: int) -> bool:
        """Add the memory of a message in bytes. Returns True if the turn has ended."""
        self._bytes += size
        if self._bytes < self._most:
            return False
        self._bytes = 0
        return True

    async def after(self, size: int) -> None:
        """Add the memory of a message in bytes, and yield to the event loop if the turn has ended."""
        if self.is_over(size):
            await asyncio.sleep(0)
