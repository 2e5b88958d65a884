"""An expensive answer, computed in the background and shown until a newer one exists."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, cast

from hopback.errors import HopbackError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback.clock import Clock

_LOG = logging.getLogger("hopback.ops")
_MOMENT_S = 0.1  # seconds that a caller waits for a newer answer before it gets the last one

_T = TypeVar("_T")


class NotReadYet(HopbackError):
    """The first answer takes longer than the caller waits. It is being computed in the background."""

    remedy: ClassVar[str] = "Ask again in a few seconds."

    def __init__(self) -> None:
        super().__init__("the broker is being read for the first time")


class Recent(Generic[_T]):
    """Recomputes an answer, once for all callers, when the last one is older than `fresh_s` seconds."""

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
        """Whether a newer answer is being computed in the background."""
        return self._computing is not None

    async def get(self, first_s: float | None = None) -> _T:
        """Return a new answer if it is computed quickly, otherwise the last one. Wait for the first one.

        Raises the error if the computation fails in the meantime, or NotReadYet if the first answer takes
        longer than `first_s` seconds. None waits until it is there.
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
        """Return the last answer after a short wait at most. None if there is none."""
        computing = self._compute_if_old()
        if computing is not None:
            await asyncio.wait({computing}, timeout=_MOMENT_S)
        return self.last

    async def wait_for_first(self, seconds: float | None) -> None:
        """Wait until there is an answer or its computation has failed. NotReadYet after `seconds`."""
        computing = None if self.last is not None else self._compute_if_old()
        if computing is not None:
            await asyncio.wait({computing}, timeout=seconds)
            if not computing.done():
                raise NotReadYet

    async def compute(self) -> _T:
        """Compute an answer now, for this caller, and keep it."""
        drops = self._drops
        answer = await self._compute()
        if drops == self._drops:
            self.last, self._computed_at = answer, self._clock.now()
        return answer

    def expire(self) -> None:
        """Compute a new answer at the next request. In the meantime, the last answer is shown."""
        self._computed_at = float("-inf")

    def drop(self) -> None:
        """Forget the last answer and the one that is being computed: both are now outdated."""
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
        # The page itself reports a broker or a store that does not answer.
        if error is not None and not isinstance(error, HopbackError):
            _LOG.error("an expensive answer could not be computed", exc_info=error)
