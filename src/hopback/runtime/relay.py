"""The outbox relay: publishes what transactions left behind, with confirms, in order per key.

A message leaves the outbox only after the broker has confirmed it. A relay that dies leaves its lease
to run out; another then publishes what was in flight again, with the same message id.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hopback.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hopback.message import Message
    from hopback.store.outbox import Outbox, Pending

__all__ = ["Relay"]


class Relay:
    """Moves messages from an outbox to the broker until it is cancelled."""

    def __init__(
        self,
        outbox: Outbox,
        publish: Callable[[Message], Awaitable[None]],
        *,
        most: int = 500,
        idle: float = 0.5,
    ) -> None:
        self._outbox = outbox
        self._publish = publish
        self._most = most
        self._idle = idle
        self._nudged = asyncio.Event()
        self.published = 0
        """How many messages were published and taken out of the outbox."""

    def nudge(self) -> None:
        """There is something to do: do not wait for the next look."""
        self._nudged.set()

    async def run(self) -> None:
        """Look again and again; between looks at an empty outbox it rests."""
        while True:
            self._nudged.clear()
            if not await self.sweep():
                try:
                    async with asyncio.timeout(self._idle):
                        await self._nudged.wait()
                except TimeoutError:
                    pass

    async def sweep(self) -> int:
        """Publish what can be claimed now and tell how many messages went."""
        claimed = await self._outbox.claim()
        if not claimed:
            return 0
        try:
            return await self._drain(claimed)
        finally:
            await self._outbox.release(claimed)

    async def _drain(self, claimed: Sequence[int]) -> int:
        """Everything in the claimed slots, for as long as the lease is ours and all goes well."""
        moved = 0
        while await self._outbox.renew(claimed):
            pending = await self._outbox.pending(claimed, self._most)
            published, failed = await self._send(pending)
            await self._outbox.settle(published, failed)
            moved += len(published)
            self.published += len(published)
            if failed or len(pending) < self._most:
                break
        return moved

    async def _send(self, pending: Sequence[Pending]) -> tuple[list[int], dict[int, str]]:
        """Publish side by side, of one key one after another; what went, what failed and why."""
        lanes: dict[str | int, list[Pending]] = {}
        for one in pending:
            lanes.setdefault(one.id if one.key is None else one.key, []).append(one)
        published: list[int] = []
        failed: dict[int, str] = {}
        async with asyncio.TaskGroup() as group:
            for lane in lanes.values():
                group.create_task(self._send_in_order(lane, published, failed))
        return published, failed

    async def _send_in_order(
        self, lane: Sequence[Pending], published: list[int], failed: dict[int, str]
    ) -> None:
        for one in lane:
            try:
                await self._publish(one.message)
                published.append(one.id)
            except BrokerError as error:
                failed[one.id] = f"{type(error).__name__}: {error}"
                return  # what comes after it in its lane must wait
