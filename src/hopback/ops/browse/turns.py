"""Yield to the event loop after a bounded amount of work."""

from __future__ import annotations

import asyncio

_TURN_BYTES = 512 * 1024
"""Some hundred ordinary messages, or one that is out of the ordinary: some tens of milliseconds."""


class Turns:
    """Counts what has been worked through, and lets others run in between."""

    def __init__(self, turn_bytes: int = _TURN_BYTES) -> None:
        self._most = turn_bytes
        self._bytes = 0

    def is_over(self, size: int) -> bool:
        """Whether it is the others' turn, after a message that takes so much memory (`held_size`)."""
        self._bytes += size
        if self._bytes < self._most:
            return False
        self._bytes = 0
        return True

    async def after(self, size: int) -> None:
        """To be called after each message, with the memory it takes; the others have had their turn."""
        if self.is_over(size):
            await asyncio.sleep(0)
