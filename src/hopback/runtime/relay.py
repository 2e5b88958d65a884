"""The outbox relay: publishes what transactions left behind, with confirms, in order per key.

A message leaves the outbox only after the broker has confirmed it. A relay that dies leaves its lease
to run out; another then publishes what was in flight again, with the same message id.

A message that cannot be published must not hold up others. A message that has failed before is published
after the rest, and waits for a growing time between two attempts.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from hopback.broker.supervise import Backoff
from hopback.errors import BrokerError, ConnectionFailed
from hopback.waiting import is_time_virtual, to_its_end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from hopback.message import Message
    from hopback.store.transaction import Pending

_QUIET_S = 60.0
"""Virtual seconds after a write during which the outbox is looked at as often as in real time, because its
transaction may still be open. Afterwards one look in this time finds the messages of other writers."""

_Series: TypeAlias = "list[Pending]"


@dataclass(slots=True)
class _Round:
    """What became of one page: confirmed, failed and why, and whether there was no connection at all."""

    published: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    offline: bool = False


class OutboxStore(Protocol):
    """An outbox as a relay sees it: `hopback.store.Outbox` in SQL, or one of your own.

    Messages lie in slots, those of one key in the same slot. `lease` is for how many seconds a slot
    is claimed; the relay that holds it is the only one to publish from it.
    """

    lease: float

    async def claim(self) -> Sequence[int]:
        """Lease slots that hold messages and that nobody else has leased; none if there are none."""

    async def renew(self, claimed: Sequence[int], /) -> bool:
        """Prolong the lease; False if any of it was lost meanwhile."""

    async def release(self, claimed: Sequence[int], /) -> None:
        """Give the slots back before their lease ends."""

    async def pending(
        self, claimed: Sequence[int], most: int, /, *, after: int = 0
    ) -> Sequence[Pending]:
        """The oldest messages of the claimed slots, by rising id, those after an id."""

    async def settle(self, published: Sequence[int], failed: Mapping[int, str], /) -> None:
        """Take away what the broker has confirmed and note why the rest was not published."""


class Relay:
    """Moves messages from an outbox to the broker until it is cancelled."""

    def __init__(
        self,
        outbox: OutboxStore,
        publish: Callable[[Message], Awaitable[None]],
        *,
        most: int = 500,
        idle: float = 0.5,
        backoff: Backoff | None = None,
    ) -> None:
        self._outbox = outbox
        self._publish = publish
        self._most = most
        self._idle = idle
        self._backoff = backoff or Backoff(first=1.0, most=60.0)
        self._resting: dict[int, float] = {}
        self._nudged = asyncio.Event()
        self._time = asyncio.get_running_loop().time
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
        """Look again and again; between looks at an empty outbox it rests."""
        self._skips_looks = is_time_virtual() and hasattr(self._outbox, "written")
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
        now, written = self._time(), getattr(self._outbox, "written", 0)
        if written != self._written:
            self._written, self._written_at = written, now
        is_quiet = now - self._written_at > _QUIET_S and not self._found
        return is_quiet and now - looked_at < _QUIET_S

    async def sweep(self) -> int:
        """Publish what can be claimed now and tell how many messages went."""
        claiming = asyncio.ensure_future(self._outbox.claim())
        try:
            claimed = await to_its_end(claiming)
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
            while await self._outbox.renew(claimed):
                page = await self._outbox.pending(claimed, self._most, after=after)
                this = await self._send(page, held_up)
                await self._outbox.settle(this.published, this.failed)
                moved += len(this.published)
                self.published += len(this.published)
                if this.offline or len(page) < self._most:
                    break
                after = page[-1].id
            return moved
        finally:
            # A slot that was not given back waits for the end of its lease, and its messages with it.
            await to_its_end(asyncio.ensure_future(self._outbox.release(claimed)))

    async def _send(self, page: Sequence[Pending], held_up: set[str]) -> _Round:
        """Publish side by side, of one key one after another; what has failed before goes last."""
        this, now = _Round(), self._time()
        # The messages of each key, in order; one without key stands alone.
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
                break  # the lease must not run out over what may be hopeless
            await self._send_in_order(series, this)
        gone = set(this.published)
        left = [series[0].key for series in found if series[-1].id not in gone]
        held_up.update(key for key in left if key is not None)
        return this

    async def _send_in_order(self, series: _Series, this: _Round) -> None:
        """One after another; what comes after a failure of its key must wait."""
        for one in series:
            try:
                await self._publish(one.message)
            except ConnectionFailed:
                this.offline = True  # nothing was sent, and that is not the message's fault
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
