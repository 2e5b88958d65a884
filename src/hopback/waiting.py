"""Wait for the first of several awaitables and cancel the others, or wait for one until it is done."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")


async def first_of(
    *awaitables: Awaitable[Any], within: float | None = None
) -> tuple[asyncio.Future[Any] | None, ...]:
    """Wait until one awaitable is done, or for `within` seconds, and cancel the others.

    Return for each awaitable, in order, its future if it is done, otherwise None. Coroutines
    started here are cancelled and awaited before this function returns or raises. Tasks and futures
    passed by the caller keep running.
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
        # The caller has its result: ignore the errors of cancelled awaitables.
        await asyncio.gather(*left, return_exceptions=True)
    return ended


async def finish(work: asyncio.Future[T]) -> T:
    """Return the result. A cancelled caller still waits for `work` to end, unless cancelled twice."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        raise


def loop_time() -> float:
    """Return the time of the running event loop, in seconds."""
    return asyncio.get_running_loop().time()


def is_on_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def is_time_virtual() -> bool:
    """Whether the running loop's time jumps, as in tests: hours of polling then pass in real seconds."""
    return getattr(asyncio.get_running_loop(), "is_virtual", False)
