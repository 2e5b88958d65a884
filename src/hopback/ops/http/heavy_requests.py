"""Limit requests that need much time or memory, such as imports, exports, searches, rehearsals and
dry runs.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from hopback.ops.http.problems import Refused
from hopback.ops.http.turns import CallerCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from hopback.ops.http.settings import RequestLimits


class HeavyRequests:
    """Count the heavy requests of each caller and of the whole service."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._running = CallerCounts()

    def begin(self, caller: str) -> Callable[[], None]:
        """Count a request and return the function that ends it. Raises Refused if too many are running."""
        own, total, limits = self._running[caller], self._running.total(), self._limits
        if own >= limits.heavy_requests_per_caller or total >= limits.heavy_requests:
            raise Refused(
                429,
                "too-many-heavy-requests",
                f"You have {own} running heavy requests, all callers together {total}: expected at most"
                f" {limits.heavy_requests_per_caller} per caller and {limits.heavy_requests} in total."
                " Wait until one ends.",
                headers={"Retry-After": "5"},
            )
        self._running[caller] += 1
        return partial(self._running.drop, caller)

    def limit(self, answer: ASGIApp, end: Callable[[], None]) -> ASGIApp:
        """Return the response with a time limit. `end` is called when it was sent or interrupted."""

        async def send_answer(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                async with asyncio.timeout(self._limits.heavy_seconds):
                    await answer(scope, receive, send)
            finally:
                end()

        return send_answer
