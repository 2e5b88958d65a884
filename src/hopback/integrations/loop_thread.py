"""Run an event loop in a background thread."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future


T = TypeVar("T")


class LoopThread:
    """An event loop that runs in a background thread until `stop` is called."""

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        # Use a daemon thread so that the program can exit without calling `stop`.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Schedule a coroutine on the loop and return its future."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for the result."""
        return self.submit(work).result()

    def set(self, event: asyncio.Event) -> None:
        """Set an asyncio event from another thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(event.set)

    def stop(self) -> None:
        """Stop the loop and wait for the thread. Can be called more than once."""
        self.set(self._ending)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._ending.wait())
