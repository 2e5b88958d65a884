"""The event loop of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


def quick_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the loop factory of uvloop if it is installed (extra `speed`), otherwise None."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop
