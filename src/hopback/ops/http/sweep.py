"""Read the dead-letter queues of a broker regularly, and record the trends of their depths."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hopback.ops.brokers.recent import Recent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hopback.clock import Clock
    from hopback.ops.contract.values import QueueSummary

_FRESH_S = 1.0  # seconds for which requests share a sweep
# Trends cover five minutes. RabbitMQ updates its message counts at the same interval as they are
# sampled.
_BETWEEN_SAMPLES_S = 5.0
_SAMPLES = 60
BETWEEN_SWEEPS_S = 5.0
"""Seconds between sweeps in the background, which is also the sampling interval."""
FIRST_AT_ONCE = 2
"""Number of brokers that are read for the first time simultaneously. Pages become slower if it is
higher.
"""
_LONGEST_WAIT_S = 2.0  # seconds to wait in the API's list of brokers for those that were never read


@dataclass(frozen=True, slots=True)
class Swept:
    """The dead-letter queues at the time `at`. `error` is why there is no newer sweep, if there is one."""

    queues: tuple[QueueSummary, ...]
    at: float
    error: Exception | None = None

    def age(self, now: float) -> float:
        return max(now - self.at, 0.0)


class Sweep:
    """Read all dead-letter queues, at most once per second."""

    def __init__(
        self, read: Callable[[], Awaitable[tuple[QueueSummary, ...]]], clock: Clock
    ) -> None:
        self._read = read
        self._clock = clock
        self._recent = Recent(self._sweep, _FRESH_S, clock)
        self._succeeded: Swept | None = None
        self._trends: dict[str, deque[tuple[float, int]]] = {}
        self._content: object = None
        self.changed_at: float = float("-inf")
        """When the content of a sweep has last changed."""

    async def get(self) -> Swept:
        """Return the queues, which are at most one second old. Raises an error if the broker is
        unavailable.
        """
        swept = await self.get_or_last()
        if swept.error is not None:
            raise swept.error
        return swept

    async def get_or_last(self, first_s: float | None = None) -> Swept:
        """Return the queues. If the broker is unavailable, the last sweep is returned with the
        error.

        Raises NotReadYet if the first sweep takes longer than `first_s` seconds. None means no
        limit.
        """
        return await self._recent.get(first_s)

    @property
    def known(self) -> Swept | None:
        """The last sweep, or None if none has ended yet. Does not start a sweep."""
        return self._recent.last

    def forget(self) -> None:
        """Start a new sweep at the next request, because the set of dead-letter queues has changed."""
        self._succeeded = None
        self._recent.drop()

    @property
    def last(self) -> Swept:
        """The last sweep, or an empty one if none has ended yet. Does not start a sweep."""
        return self.known or Swept((), self._clock.now())

    def trend(self, queue: str) -> tuple[tuple[float, int], ...]:
        """Return the depths of the last minutes, oldest first."""
        return tuple(self._trends.get(queue, ()))

    async def run(self, delay: float = 0.0) -> None:
        """Make a sweep every few seconds, even without requests, to collect samples for trends.

        `delay` is the number of seconds before the second sweep. It spreads the sweeps of several
        brokers.
        """
        with suppress(Exception):
            await self.get()
        await asyncio.sleep(delay)
        while True:
            with suppress(Exception):  # the next requests report the error
                await self.get()
            await asyncio.sleep(BETWEEN_SWEEPS_S)

    async def _sweep(self) -> Swept:
        try:
            swept = self._succeeded = Swept(await self._read(), self._clock.now())
        except Exception as error:  # the next requests report the error
            now = self._clock.now()
            swept = replace(self._succeeded or Swept((), now), error=error)
        else:
            now = swept.at
            self._record(swept)
        content = (
            swept.error is None,
            [
                (
                    one.queue,
                    one.depth.total,
                    one.depth.unacked,
                    one.active_job and (one.active_job.id, one.active_job.changes),
                )
                for one in swept.queues
            ],
        )
        if content != self._content:
            self._content, self.changed_at = content, now
        return swept

    def _record(self, swept: Swept) -> None:
        """Add the depths to the trends."""
        for gone in self._trends.keys() - {summary.queue for summary in swept.queues}:
            del self._trends[gone]
        for summary in swept.queues:
            past = self._trends.setdefault(summary.queue, deque(maxlen=_SAMPLES))
            total = summary.depth.total
            if total is not None and (not past or swept.at - past[-1][0] >= _BETWEEN_SAMPLES_S):
                past.append((swept.at, total))


async def read_all(
    sweeps: Sequence[Sweep], first_s: float | None = _LONGEST_WAIT_S
) -> list[Swept | None]:
    """Return the last sweep of each broker, or None for brokers that have not responded yet.

    Sweeps run in the background, so this only waits for brokers without a sweep. It waits for up to
    `first_s` seconds, or without a limit if this is None.
    """
    unread = [each for each in sweeps if each.known is None]
    with suppress(TimeoutError):
        async with asyncio.timeout(first_s):
            for at in range(0, len(unread), FIRST_AT_ONCE):
                few = unread[at : at + FIRST_AT_ONCE]
                await asyncio.gather(*(each.get_or_last() for each in few))
    return [each.known for each in sweeps]
