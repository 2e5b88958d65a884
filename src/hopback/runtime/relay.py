"""The outbox relay: publishes the messages of committed transactions, with confirms, in order per
key.

A message leaves the outbox only after the broker has confirmed it. If a relay dies, its lease
expires. Another relay then publishes the unconfirmed messages again, with the same message ids.

A message that cannot be published must not hold up others. A message that has failed before is
published after the rest, and waits for a growing time between two attempts.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from hopback.broker.supervise import Backoff
from hopback.durations import Duration, read_seconds
from hopback.errors import BrokerError, ConnectionFailed
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
    """The result of one page: confirmed messages, failures with reasons, and whether it was
    offline.
    """

    published: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    offline: bool = False


class OutboxStore(Protocol):
    """An outbox as a relay sees it: `hopback.store.Outbox` in SQL, or a custom class.

    Messages are stored in slots. Those of one key are in the same slot. `lease` is the duration of
    a claim in seconds. Only the relay that has claimed a slot publishes from it.
    """

    lease: float

    async def claim(self) -> Sequence[int]:
        """Lease slots with messages that no other relay has leased. Returns an empty list if there
        are none.
        """

    async def renew(self, claimed: Sequence[int], /) -> bool:
        """Prolong the lease. Returns False if any part of it was lost."""

    async def release(self, claimed: Sequence[int], /) -> None:
        """Give the slots back before their lease ends."""

    async def pending(
        self, claimed: Sequence[int], most: int, /, *, after: int = 0
    ) -> Sequence[Pending]:
        """The oldest messages of the claimed slots, by rising id, those after an id."""

    async def settle(self, published: Sequence[int], failed: Mapping[int, str], /) -> None:
        """Remove confirmed messages and record the errors of the others."""


class Relay:
    """Moves messages from an outbox to the broker until it is cancelled."""

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
        """How many messages were published and taken out of the outbox."""

    def nudge(self) -> None:
        """There is something to do: do not wait for the next look."""
        self._nudged.set()

    async def run(self) -> None:
        """Sweep repeatedly, with pauses while the outbox is empty."""
        self._skips_looks = is_time_virtual() and hasattr(self._outbox, "written_count")
        self._written_at = self._time()
        while True:
            self._nudged.clear()
            if not await self.sweep():
                await self._rest()

    async def _rest(self) -> None:
        """Wait for a nudge, or until the next look."""
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
        """Publish the messages that can be claimed now and return their number."""
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
            # Everything in the claimed slots, page by page, for as long as the lease is ours.
            moved, after, held_up = 0, 0, set[str]()
            while True:
                page = await self._outbox.pending(claimed, self._most, after=after)
                this = await self._send(page, held_up)
                await self._outbox.settle(this.published, this.failed)
                moved += len(this.published)
                self.published += len(this.published)
                if this.offline or len(page) < self._most:
                    break
                if not await self._outbox.renew(claimed):
                    break  # another relay may have claimed a slot
                after = page[-1].id
            return moved
        finally:
            # A slot that was not given back waits for the end of its lease, and its messages with it.
            await finish(asyncio.ensure_future(self._outbox.release(claimed)))

    async def _send(self, page: Sequence[Pending], held_up: set[str]) -> _Round:
        """Publish keys concurrently and each key in order. Messages that failed before are last."""
        this, now = _Round(), self._time()
        # The messages of each key, in order. A message without key forms a separate series.
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
                break  # publishing hopeless messages must not outlast the lease
            await self._send_in_order(series, this)
        gone = set(this.published)
        left = [series[0].key for series in found if series[-1].id not in gone]
        held_up.update(key for key in left if key is not None)
        return this

    async def _send_in_order(self, series: _Series, this: _Round) -> None:
        """Publish in order. A failure holds up the following messages of its key."""
        for one in series:
            try:
                await self._publish(one.message)
            except ConnectionFailed:
                this.offline = True  # no message was sent, and the message is not the cause
                return
            except BrokerError as error:
                this.failed[one.id] = f"{type(error).__name__}: {error}"
                rest = self._backoff.delay(one.failures + 1, 0.5)
                self._resting[one.id] = self._time() + rest
                return
            this.published.append(one.id)
            self._resting.pop(one.id, None)


def _is_suspect(series: _Series) -> bool:
    return series[0].failures > 0
