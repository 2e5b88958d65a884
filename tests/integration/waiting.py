"""Waiting for something that only shows by looking."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["until"]


# Nothing is judged by it: so long the condition may take on a machine that is busy with other tests.
_PATIENCE_S = 120.0


async def until(condition: Callable[[], bool], *, seconds: float = _PATIENCE_S) -> None:
    """Return as soon as `condition` holds; TimeoutError if it does not in time."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - nothing to wait on but the look itself
            await asyncio.sleep(0.005)
