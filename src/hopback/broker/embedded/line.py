"""What an embedded connection says to its client: one ordered line, drained by the event loop."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from hopback.broker.embedded.faults import Faults

__all__ = ["Line"]


class Line:
    """Calls are made in the order in which they were put in, never within `put` itself.

    A turn of the loop makes those calls that were waiting when it began: what they lead to comes
    in a later turn, as over a network.
    """

    __slots__ = ("_faults", "_loop", "_scheduled", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, faults: Faults) -> None:
        self._loop = loop
        self._faults = faults
        self._waiting: deque[tuple[float, Callable[[Any], object], Any]] = deque()
        self._scheduled = False

    def put(self, call: Callable[[Any], object], argument: Any) -> None:
        """Make this call later."""
        latency = self._faults.latency
        due = self._loop.time() + latency if latency else 0.0
        self._waiting.append((due, call, argument))
        if not self._scheduled:
            self._schedule()

    def flush(self) -> None:
        """Make all waiting calls now."""
        while self._waiting:
            self._call()

    def drop(self) -> None:
        """Forget all waiting calls."""
        self._waiting.clear()

    def _schedule(self) -> None:
        self._scheduled = True
        due = self._waiting[0][0]
        if due:
            self._loop.call_at(due, self._turn)
        else:
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        now = self._loop.time()
        for _ in range(len(self._waiting)):
            if not self._waiting or self._waiting[0][0] > now:
                break
            self._call()
        if self._waiting and not self._scheduled:
            self._schedule()

    def _call(self) -> None:
        _, call, argument = self._waiting.popleft()
        try:
            call(argument)
        except Exception as error:  # a client's callback: as asyncio does with its own
            context = {"message": f"{call!r} raised", "exception": error}
            self._loop.call_exception_handler(context)
