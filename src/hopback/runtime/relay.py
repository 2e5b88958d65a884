"""Publish messages from the outbox.

A message stays in the outbox until the broker has confirmed it. If a relay dies, its lease expires
and another relay publishes the messages again with the same message ids. Messages that share a key
are published in order. Messages that failed before are published last and retried with increasing
delays.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from hopback.broker.supervise import Backoff
from hopback.durations import Duration, read_seconds
from hopback.errors import ConnectionFailed
from hopback.waiting import finish, first_of, is_time_virtual, loop_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from hopback.message import Message
    from hopback.store.transaction import Pending

_LONGEST_REST_S = 3600.0
"""Virtual seconds after which the outbox is read without a reason. Finds messages of other processes."""
_AFTER_DUE_S = 0.001
"""Virtual seconds between the due time of a retry and the sweep, more than the resolution of the clock."""

_GATHER_S = 0.01
"""Seconds between a nudge and the sweep. One sweep then publishes the messages of several transactions. In
virtual time, the sweep starts immediately, so that a test does not end before its messages are published.
"""

_Series: TypeAlias = "list[Pending]"


@dataclass(slots=True)
class _Round:
    """The result of publishing one page of messages."""

    published: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    offline: bool = False


class OutboxStore(Protocol):
    """The interface of an outbox, such as `hopback.store.Outbox`.

    Messages are stored in slots. All messages with the same key are in the same slot. `lease` is
    the duration of a lease in seconds.
    """

    lease: float

    async def claim(self) -> Sequence[int]:
        """Lease slots that are free and contain messages. Returns the leased slots."""

    async def renew(self, claimed: Sequence[int], /) -> bool:
        """Renew the leases. Returns False if a lease was lost."""

    async def release(self, claimed: Sequence[int], /) -> None:
        """Release the slots."""

    async def pending(
        self, claimed: Sequence[int], most: int, /, *, after: int = 0
    ) -> Sequence[Pending]:
        """Return the oldest messages of the slots with an id greater than `after`."""

    async def settle(self, published: Sequence[int], failed: Mapping[int, str], /) -> None:
        """Remove published messages and record errors of failed ones."""


class Relay:
    """Publishes messages from an outbox until it is cancelled."""

    def __init__(
        self,
        outbox: OutboxStore,
        publish: Callable[[Message], Awaitable[None]],
        *,
        most: int = 500,
        idle: Duration = 0.5,
        backoff: Backoff | None = None,
    ) -> None:
        self._outbox = outbox
        self._publish = publish
        self._most = most
        self._idle = read_seconds(idle, "idle", where="Relay")
        self._backoff = backoff or Backoff(first=1.0, most=60.0)
        self._resting: dict[int, float] = {}
        self._nudged = asyncio.Event()
        self._time = loop_time
        self._wrote = asyncio.Event()
        self._reads_rarely = False
        self._rest_s = self._idle
        self._found = False
        self._unpublished: set[int] = set()
        """The slots of which no message could be published since the last one was."""
        self._waits_for_retry = False
        self.published: int = 0
        """The number of published messages."""

    def nudge(self) -> None:
        """Check the outbox now instead of waiting for the next interval."""
        self._nudged.set()

    async def run(self) -> None:
        """Publish messages as they arrive."""
        watch = getattr(self._outbox, "watch_writes", None)
        if not is_time_virtual() or watch is None:
            await self._run()
            return
        self._reads_rarely, self._rest_s = True, self._idle
        loop = asyncio.get_running_loop()
        with watch(lambda: loop.call_soon_threadsafe(self._wrote.set)):
            await self._run()

    async def _run(self) -> None:
        while True:
            self._nudged.clear()
            if await self.sweep():
                continue
            if self._reads_rarely:
                await self._rest_in_virtual_time()
            else:
                await self._rest()

    async def _rest(self) -> None:
        """Wait until the next sweep."""
        try:
            async with asyncio.timeout(self._idle):
                await self._nudged.wait()
            if not is_time_virtual():
                await asyncio.sleep(_GATHER_S)
        except TimeoutError:
            pass

    async def _rest_in_virtual_time(self) -> None:
        """Wait for a nudge, the next retry, or a write that may be committed.

        Polling is too slow in tests: a virtual day has 172,800 intervals of 500 ms, which all take
        real time.
        """
        while True:
            seconds = self._seconds_to_next_sweep()
            await first_of(self._nudged.wait(), self._wrote.wait(), within=seconds)
            if self._wrote.is_set():
                self._wrote.clear()
                self._rest_s = self._idle
            else:
                self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)
                return
            if self._nudged.is_set():
                return

    def _seconds_to_next_sweep(self) -> float:
        if not self._found:
            return self._rest_s
        if not self._waits_for_retry:
            return self._idle
        return max(0.0, min(self._resting.values()) - self._time()) + _AFTER_DUE_S

    async def sweep(self) -> int:
        """Publish all available messages and return their number."""
        claiming = asyncio.ensure_future(self._outbox.claim())
        try:
            claimed = await finish(claiming)
        except asyncio.CancelledError:
            if claiming.done() and not claiming.cancelled() and not claiming.exception():
                await self._outbox.release(claiming.result())
            raise
        self._found = bool(claimed)
        if not claimed:
            return 0
        now = self._time()
        self._resting = {one: until for one, until in self._resting.items() if until > now}
        try:
            # Publish all messages of the leased slots, one page at a time.
            moved, after, held_up = 0, 0, set[str]()
            while True:
                page = await self._outbox.pending(claimed, self._most, after=after)
                this = _Round()
                try:
                    sending, _ = await first_of(
                        self._send(page, held_up, this), self._keep_leases(claimed)
                    )
                    assert sending is not None  # noqa: S101 - the leases are kept until then
                    sending.result()
                finally:
                    # Record the results even if we are cancelled, so that confirmed messages are
                    # not published again.
                    settling = self._outbox.settle(this.published, this.failed)
                    await finish(asyncio.ensure_future(settling))
                moved += len(this.published)
                self.published += len(this.published)
                if this.offline or len(page) < self._most:
                    break
                if not await self._outbox.renew(claimed):
                    break  # a slot may be claimed by another relay
                after = page[-1].id
            self._remember_slots(set(claimed), moved, is_offline=this.offline)
            return moved
        finally:
            # Release the slots, or the messages would have to wait until the lease expires.
            await finish(asyncio.ensure_future(self._outbox.release(claimed)))

    async def _keep_leases(self, claimed: Sequence[int]) -> None:
        """Renew the leases while publishes wait, for example during a memory alarm.

        Otherwise another relay would publish the same messages.
        """
        while True:
            await asyncio.sleep(self._outbox.lease / 3)
            with suppress(Exception):  # if the database fails, recording the results fails as well
                await finish(asyncio.ensure_future(self._outbox.renew(claimed)))

    def _remember_slots(self, claimed: set[int], moved: int, *, is_offline: bool) -> None:
        """Find out whether every message is waiting for a retry. A claim only covers some of the
        slots.
        """
        knows_all = claimed <= self._unpublished
        self._unpublished = set() if moved else self._unpublished | claimed
        self._waits_for_retry = knows_all and not is_offline and bool(self._resting)

    async def _send(self, page: Sequence[Pending], held_up: set[str], this: _Round) -> None:
        """Publish messages. Keys are published concurrently, but messages with the same key in
        order.
        """
        now = self._time()
        # Messages that have no key are independent of each other.
        by_key: dict[str | int, _Series] = {}
        for one in page:
            by_key.setdefault(one.id if one.key is None else one.key, []).append(one)
        found = [series for series in by_key.values() if series[0].key not in held_up]
        awake = [series for series in found if self._resting.get(series[0].id, now) <= now]
        async with asyncio.TaskGroup() as group:
            for series in awake:
                if not _is_suspect(series):
                    group.create_task(self._send_in_order(series, this))
        for series in filter(_is_suspect, awake):
            if this.offline or self._time() - now > self._outbox.lease / 2:
                break  # stay within the lease
            await self._send_in_order(series, this)
        gone = set(this.published)
        left = [series[0].key for series in found if series[-1].id not in gone]
        held_up.update(key for key in left if key is not None)

    async def _send_in_order(self, series: _Series, this: _Round) -> None:
        """Publish messages in order. Stops at the first failure."""
        for one in series:
            problem = one.problem
            try:
                if not problem:
                    await self._publish(one.message)
            except ConnectionFailed:
                this.offline = True  # not connected, so don't blame the message
                return
            except Exception as error:  # other errors only concern this message
                problem = f"{type(error).__name__}: {error}"
            if problem:
                this.failed[one.id] = problem
                rest = self._backoff.delay(one.failures + 1, 0.5)
                self._resting[one.id] = self._time() + rest
                return
            this.published.append(one.id)
            self._resting.pop(one.id, None)


def _is_suspect(series: _Series) -> bool:
    return series[0].failures > 0
