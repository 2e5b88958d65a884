"""How one session takes deliveries: one at a time at first, then as many as the prefetch allows.

A broker gives a consumer its prefetch once, when it subscribes; a window that is to change its size needs
a new subscription on the same channel. What is in hand stays in hand meanwhile: to give it back would be
counted against it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from hopback.errors import BrokerError
from hopback.policy.quarantine import is_suspected
from hopback.runtime.answer import HeldDelivery

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hopback.message import Delivery
    from hopback.runtime.answer import ConsumeSession
    from hopback.runtime.quarantine import Quarantine
    from hopback.runtime.worker import Work

__all__ = ["Intake"]


class Intake:
    """The subscription of one session to its queue.

    Without `quarantine` the window is open from the beginning and nothing is suspected.
    """

    def __init__(
        self,
        session: ConsumeSession,
        queue: str,
        prefetch: int,
        work: Work,
        quarantine: Quarantine | None,
        on_cancel: Callable[[], object],
    ) -> None:
        self._session = session
        self._queue = queue
        self._prefetch = prefetch
        self._work = work
        self._quarantine = quarantine
        self._on_cancel = on_cancel
        self._open = quarantine is None or prefetch == 1
        self._suspected: deque[HeldDelivery] = deque()
        self._tag: str | None = None
        self._stopped = False
        self._changing = asyncio.Lock()
        """Held while the broker is asked to change the subscription."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.isolating: bool = False
        """Suspected messages are being handled; the window is closed."""
        self.received: int = 0

    @property
    def is_taking(self) -> bool:
        """Whether deliveries come, or will come when what is suspected has been handled."""
        return not self._stopped and (self._tag is not None or self.isolating)

    async def start(self) -> None:
        """Subscribe."""
        await self._subscribe(self._prefetch if self._open else 1)

    async def stop(self) -> int:
        """Take no more; how many suspected messages had not been started."""
        self._stopped = True
        left = len(self._suspected)
        self._suspected.clear()
        async with self._changing:
            tag, self._tag = self._tag, None
            if tag is not None:
                with suppress(BrokerError):
                    await self._session.channel.cancel(tag)
        return left

    def end(self) -> None:
        """The session is over: nothing waits for it any more."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()

    async def _subscribe(self, prefetch: int) -> None:
        """Take the place of the present subscription, if there is one: no gap lies between them."""
        channel = self._session.channel
        async with self._changing:
            if self._stopped:
                return
            await channel.qos(prefetch)
            before = self._tag
            self._tag = await channel.consume(
                self._queue, self._on_delivery, on_cancel=self._cancelled
            )
            if before is not None:
                await channel.cancel(before)

    def _cancelled(self, tag: str) -> None:
        if tag == self._tag:
            self._tag = None
            self._on_cancel()

    def _on_delivery(self, delivery: Delivery) -> None:
        self.received += 1
        taken = HeldDelivery(delivery, self._session)
        if delivery.redelivered and self._quarantine is not None and is_suspected(delivery):
            self._suspected.append(taken)
            if not self.isolating:
                self.isolating = True
                self._begin(self._isolate(self._quarantine))
            return
        if not self._open:
            self._open = True
            self._begin(self._open_window())
        self._work.submit(taken)

    async def _open_window(self) -> None:
        with suppress(BrokerError):  # the channel has ended, and the session with it
            await self._subscribe(self._prefetch)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _isolate(self, quarantine: Quarantine) -> None:
        """Close the window, let what is in hand finish, and run the suspected ones one by one."""
        try:
            closed = self._open and self._prefetch > 1
            if closed:
                async with self._changing:
                    tag, self._tag = self._tag, None
                    if tag is not None:
                        await self._session.channel.cancel(tag)
                    self._open = False
            drained = await quarantine.drained(self._work)
            while self._suspected and not self._session.ended.is_set():
                await quarantine.run(self._suspected.popleft(), self._work, drained=drained)
            if closed:
                await self._subscribe(1)
        except BrokerError:
            return  # the channel has ended, and the session with it
        finally:
            self.isolating = False
