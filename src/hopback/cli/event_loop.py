"""The event loop that the commands run on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


def quick_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop factory if the extra `speed` is installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop
