"""Handle SIGINT and SIGTERM. The first signal starts an orderly shutdown, and the second one stops
at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG = logging.getLogger("hopback.run")


class Stopper:
    """Calls `stop` at each signal and counts the signals."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        self.asked: int = 0

    @property
    def forced(self) -> bool:
        """Whether there was a second signal."""
        return self.asked > 1

    def __call__(self) -> None:
        self.asked += 1
        if self.asked == 1:
            _LOG.info("shutting down, a second signal exits at once")
        self._stop()

    def ask_once(self) -> None:
        """Start an orderly shutdown. Calling this again has no effect."""
        if not self.asked:
            self()

    def force(self) -> None:
        """Stop immediately."""
        while not self.forced:
            self()


def listen_to_signals(stopper: Callable[[], object]) -> None:
    """Call the stopper at SIGINT and SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopper)
