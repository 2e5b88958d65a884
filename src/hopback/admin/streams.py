"""Event streams as answers, and how many may be open: of one caller, and of all together."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from starlette.responses import StreamingResponse

from hopback.admin.problems import Refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from hopback.admin.roles import Principal
    from hopback.admin.settings import Limits

__all__ = ["EventStreams"]


class EventStreams:
    """Counts the streams that are open now."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: Counter[str] = Counter()

    def open(self, events: AsyncIterator[bytes], principal: Principal) -> StreamingResponse:
        """The stream as an answer that nobody keeps or collects; Refused if there are too many."""
        own, limits = self._open[principal.id], self._limits
        if own >= limits.event_streams_per_caller or self._open.total() >= limits.event_streams:
            raise Refused(
                429,
                "too-many-streams",
                f"{own} event streams of yours are open, {self._open.total()} in all; close one first.",
            )
        self._open[principal.id] += 1
        return _Counted(events, self._open, principal.id)


class _Counted(StreamingResponse):
    """Gives its place back when it ends, even if nothing of it was ever sent."""

    def __init__(self, events: AsyncIterator[bytes], opened: Counter[str], caller: str) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._opened = opened
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._opened[self._caller] -= 1
            if not self._opened[self._caller]:
                del self._opened[self._caller]
