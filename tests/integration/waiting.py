"""Waiting for something that only shows by looking."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["until", "until_read"]


# A generous limit for a busy machine. No result depends on it.
_PATIENCE_S = 120.0


async def until(condition: Callable[[], bool], *, seconds: float = _PATIENCE_S) -> None:
    """Return as soon as `condition` holds. Raise TimeoutError after the timeout."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - nothing to wait on but the look itself
            await asyncio.sleep(0.005)


async def until_read(
    read: Callable[[], Awaitable[int]], expected: int, *, seconds: float = _PATIENCE_S
) -> None:
    """Return as soon as `read` returns the expected number. A broker may requeue messages after it
    has confirmed that their channel is closed.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    while (found := await read()) != expected:
        late = asyncio.get_running_loop().time() > deadline
        assert not late, f"expected {expected} within {seconds:g} s, found {found}"
        await asyncio.sleep(0.05)
