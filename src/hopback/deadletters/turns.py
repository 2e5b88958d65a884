"""Work on many messages, shared with whatever else runs in the process.

A message can be large, have thousands of headers, or hold JSON that is slow to read. Work on one is
bounded by its size, and after so much of it the others get their turn: health checks, heartbeats,
other people's requests. Counted in bytes, not in time, so that it is the same on every machine.
"""

from __future__ import annotations

import asyncio

__all__ = ["Turns"]

_HELD_BYTES = 512 * 1024
"""Some hundred ordinary messages, or one that is out of the ordinary: some tens of milliseconds."""


class Turns:
    """Counts what has been worked through, and lets others run in between."""

    def __init__(self) -> None:
        self._bytes = 0

    async def after(self, size: int) -> None:
        """To be called after each message, with the memory it takes (`held_size`)."""
        self._bytes += size
        if self._bytes >= _HELD_BYTES:
            self._bytes = 0
            await asyncio.sleep(0)
