"""Publishes messages from the outbox.

A message is removed from the outbox after the broker has confirmed it. If a relay dies, its lease
expires and another relay publishes the messages again with the same message ids. Messages with the
same key are published in order. Messages that failed before are published last, with an increasing
delay between attempts.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from hopback.broker.supervise import Backoff
from hopback.durations import Duration, read_seconds
from hopback.errors import ConnectionFailed
from hopback.waiting import finish, is_time_virtual, loop_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from hopback.message import Message
    from hopback.store.transaction import Pending

_QUIET_S = 60.0
"""Virtual seconds after a write during which the outbox is looked at as often as in real time, because its
transaction may still be open. Afterwards one look in this time finds the messages of other writers."""

_GATHER_S = 0.01
"""Seconds between a nudge and the sweep. One sweep then publishes the messages of several transactions. In
virtual time the sweep starts at once, so that a test does not end before its messages are published."""

_Series: TypeAlias = "list[Pending]"


@dataclass(slots=True)
class _Round:
    """The result of publishing a page of messages."""

    published: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    offline: bool = False


class OutboxStore(Protocol):
    """The interface of an outbox, such as `hopback.store.Outbox`.

    Messages are stored in slots, and messages with the same key are in the same slot. `lease` is
    the duration of a lease in seconds.
    """

    lease: float

    async def claim(self) -> Sequence[int]:
        """Lease free slots that contain messages, and return them."""

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
        self._skips_looks = False
        self._written = 0
        self._written_at = 0.0
        self._found = False
        self.published: int = 0
        """The number of published messages."""

    def nudge(self) -> None:
        """Check the outbox without waiting for the next interval."""
        self._nudged.set()

    async def run(self) -> None:
        """Publish messages repeatedly, and wait while the outbox is empty."""
        self._skips_looks = is_time_virtual() and hasattr(self._outbox, "written_count")
        self._written_at = self._time()
        while True:
            self._nudged.clear()
            if not await self.sweep():
                await self._rest()

    async def _rest(self) -> None:
        """Wait until the next check."""
        looked_at = self._time()
        while True:
            try:
                async with asyncio.timeout(self._idle):
                    await self._nudged.wait()
                if not is_time_virtual():
                    await asyncio.sleep(_GATHER_S)
                return
            except TimeoutError:
                if not self._may_skip_look(looked_at):
                    return

    def _may_skip_look(self, looked_at: float) -> bool:
        """Whether no message can have come, in virtual time.

        A look takes milliseconds of real time, and two virtual hours have 14,400 of them. While time is
        virtual, this process is the usual writer: after a write the relay looks as often as in real time.
        """
        if not self._skips_looks:
            return False
        now, written = self._time(), getattr(self._outbox, "written_count", 0)
        if written != self._written:
            self._written, self._written_at = written, now
        is_quiet = now - self._written_at > _QUIET_S and not self._found
        return is_quiet and now - looked_at < _QUIET_S

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
            # Publish all messages of the slots, page by page.
            moved, after, held_up = 0, 0, set[str]()
            while True:
                page = await self._outbox.pending(claimed, self._most, after=after)
                this = _Round()
                try:
                    await self._send(page, held_up, this)
                finally:
                    # Also if cancelled, or confirmed messages would be published again.
                    settling = self._outbox.settle(this.published, this.failed)
                    await finish(asyncio.ensure_future(settling))
                moved += len(this.published)
                self.published += len(this.published)
                if this.offline or len(page) < self._most:
                    break
                if not await self._outbox.renew(claimed):
                    break  # a slot may be claimed by another relay
                after = page[-1].id
            return moved
        finally:
            # Otherwise the messages would have to wait until the lease expires.
            await finish(asyncio.ensure_future(self._outbox.release(claimed)))

    async def _send(self, page: Sequence[Pending], held_up: set[str], this: _Round) -> None:
        """Publish messages. Keys are published concurrently, messages of a key in order."""
        now = self._time()
        # Group messages by key. Messages without a key are independent.
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
        """Publish messages in order. Stops after a failure."""
        for one in series:
            problem = one.problem
            try:
                if not problem:
                    await self._publish(one.message)
            except ConnectionFailed:
                this.offline = True  # not connected, so the message is not the cause
                return
            except Exception as error:  # any other error concerns this message alone
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
