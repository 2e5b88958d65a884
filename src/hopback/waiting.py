"""Helpers for waiting on asyncio futures."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")


async def first_of(
    *awaitables: Awaitable[Any], within: float | None = None
) -> tuple[asyncio.Future[Any] | None, ...]:
    """Wait until one of the awaitables is done, or until the timeout expires.

    Coroutines that are still running are cancelled and awaited. Futures and tasks of the caller
    keep running.

    Args:
        awaitables: Coroutines, tasks or futures to wait for.
        within: Timeout in seconds.

    Returns:
        A tuple with the future of each awaitable that is done, and None for the others.
    """
    waits = [asyncio.ensure_future(each) for each in awaitables]
    ours = [
        wait for wait, given in zip(waits, awaitables, strict=True) if not asyncio.isfuture(given)
    ]
    try:
        await asyncio.wait(waits, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        ended = tuple(wait if wait.done() else None for wait in waits)
    finally:
        left = [wait for wait in ours if not wait.done()]
        for wait in left:
            wait.cancel()
        # Errors of cancelled coroutines are ignored because the result is already known.
        await asyncio.gather(*left, return_exceptions=True)
    return ended


async def finish(work: asyncio.Future[T]) -> T:
    """Wait for `work` and return its result.

    If the caller is cancelled, wait for `work` to finish before raising CancelledError.
    """
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        raise


def loop_time() -> float:
    """Return the current time of the event loop in seconds."""
    return asyncio.get_running_loop().time()


def is_on_loop() -> bool:
    """Return True if an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def is_time_virtual() -> bool:
    """Return True if the event loop uses virtual time, as in tests."""
    return getattr(asyncio.get_running_loop(), "is_virtual", False)
