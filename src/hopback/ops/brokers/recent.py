"""Compute an expensive value in the background, and use the previous one in the meantime."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, cast

from hopback.errors import HopbackError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback.clock import Clock

_LOG = logging.getLogger("hopback.ops")
_MOMENT_S = 0.1  # seconds to wait for a newer value before the previous one is returned

_T = TypeVar("_T")


class NotReadYet(HopbackError):
    """The first value is still being computed in the background."""

    remedy: ClassVar[str] = "Ask again in a few seconds."

    def __init__(self) -> None:
        super().__init__("the broker is being read for the first time")


class Recent(Generic[_T]):
    """Recompute a value when it is older than `fresh_s` seconds. All callers share the computation."""

    def __init__(self, compute: Callable[[], Awaitable[_T]], fresh_s: float, clock: Clock) -> None:
        self._compute = compute
        self._fresh_s = fresh_s
        self._clock = clock
        self.last: _T | None = None
        self._computed_at = float("-inf")
        self._computing: asyncio.Task[_T] | None = None
        self._drops = 0

    @property
    def is_computing(self) -> bool:
        """Whether a newer value is being computed in the background."""
        return self._computing is not None

    async def get(self, first_s: float | None = None) -> _T:
        """Return a new value if it can be computed quickly, and the previous one otherwise.

        The first value is awaited for up to `first_s` seconds, or without a limit if this is None.
        NotReadYet is raised after that time. If the computation fails while waiting, its error is
        raised.
        """
        while (computing := self._compute_if_old()) is not None:
            await asyncio.wait({computing}, timeout=first_s if self.last is None else _MOMENT_S)
            if computing.done():
                return computing.result()
            if self.last is not None:
                break
            if first_s is not None:
                raise NotReadYet
        return cast("_T", self.last)

    async def get_soon(self) -> _T | None:
        """Wait for a short time at most and return the last value, or None if there is none yet."""
        computing = self._compute_if_old()
        if computing is not None:
            await asyncio.wait({computing}, timeout=_MOMENT_S)
        return self.last

    async def wait_for_first(self, seconds: float | None) -> None:
        """Wait until there is a value or its computation has failed. Raises NotReadYet after `seconds`."""
        computing = None if self.last is not None else self._compute_if_old()
        if computing is not None:
            await asyncio.wait({computing}, timeout=seconds)
            if not computing.done():
                raise NotReadYet

    async def compute(self) -> _T:
        """Compute a new value for this caller and store it."""
        drops = self._drops
        answer = await self._compute()
        if drops == self._drops:
            self.last, self._computed_at = answer, self._clock.now()
        return answer

    def expire(self) -> None:
        """Compute a new value at the next request. Until it is ready, the previous one is returned."""
        self._computed_at = float("-inf")

    def drop(self) -> None:
        """Discard the last value and the one being computed, because both are outdated."""
        self._drops += 1
        self.last, self._computing = None, None
        self.expire()

    def _compute_if_old(self) -> asyncio.Task[_T] | None:
        is_fresh = 0 <= self._clock.now() - self._computed_at < self._fresh_s
        if self._computing is None and not is_fresh:
            self._computing = asyncio.create_task(self.compute(), name="recent answer")
            self._computing.add_done_callback(self._end)
        return self._computing

    def _end(self, computing: asyncio.Task[_T]) -> None:
        if self._computing is computing:
            self._computing = None
        error = None if computing.cancelled() else computing.exception()
        # Errors of the broker or the store are shown on the page.
        if error is not None and not isinstance(error, HopbackError):
            _LOG.error("an expensive answer could not be computed", exc_info=error)
