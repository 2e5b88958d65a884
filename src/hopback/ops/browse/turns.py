"""Yield to the event loop after a bounded amount of work.

Work on one message is bounded by its size. Health checks, heartbeats and other requests run between two
turns. A turn is counted in bytes, not in time, so it is the same on every machine.
"""

from __future__ import annotations

import asyncio

_TURN_BYTES = 512 * 1024
"""Bytes of a turn: a hundred ordinary messages or a large one. A turn takes some tens of milliseconds."""


class Turns:
    """Counts the bytes of processed messages and yields to the event loop after each turn."""

    def __init__(self, turn_bytes: int = _TURN_BYTES) -> None:
        self._most = turn_bytes
        self._bytes = 0

    def is_over(self, size: int) -> bool:
        """Add a message's memory in bytes and return whether the turn has ended."""
        self._bytes += size
        if self._bytes < self._most:
            return False
        self._bytes = 0
        return True

    async def after(self, size: int) -> None:
        """Add a message's memory in bytes and yield to the event loop if the turn has ended."""
        if self.is_over(size):
            await asyncio.sleep(0)
