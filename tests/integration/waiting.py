"""Waiting for something that only shows by looking."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["until"]


# A generous limit for a busy machine. No result depends on it.
_PATIENCE_S = 120.0


async def until(condition: Callable[[], bool], *, seconds: float = _PATIENCE_S) -> None:
    """Return as soon as `condition` holds. Raise TimeoutError after the timeout."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - nothing to wait on but the look itself
            await asyncio.sleep(0.005)
