"""An event loop in a thread, for libraries without one."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future


T = TypeVar("T")


class LoopThread:
    """An event loop in a thread. It runs until `stop`."""

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        # A daemon thread, so that a program that does not call `stop` can end.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop and return its future."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result."""
        return self.submit(work).result()

    def set(self, event: asyncio.Event) -> None:
        """Set an event of the loop."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(event.set)

    def stop(self) -> None:
        """End the loop and wait for its thread. Safe to repeat."""
        self.set(self._ending)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._ending.wait())
