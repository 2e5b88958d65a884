"""What a consumer does with its deliveries: one by one, or in batches. Both fill this protocol."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from hopback.runtime.answer import DONE
from hopback.runtime.pool import Pool
from hopback.runtime.running import answer_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback.message import Delivery
    from hopback.runtime.answer import Answer, HeldDelivery
    from hopback.runtime.handler import HandlerOptions
    from hopback.runtime.settling import Settling

__all__ = ["OneByOne", "Work"]


class Work(Protocol):
    """Takes deliveries and concludes each of them exactly once."""

    @property
    def in_flight(self) -> int:
        """How many deliveries are being handled now."""

    @property
    def concluded(self) -> int:
        """How many deliveries were settled so far."""

    @property
    def kept(self) -> int:
        """How many deliveries are held unsettled because nothing safe can be done about them."""

    @property
    def held(self) -> int:
        """How many deliveries wait in hand because their next queue does not take them."""

    @property
    def stuck(self) -> int:
        """How many of those that could work wait for such a delivery."""

    @property
    def trouble(self) -> str:
        """Why the last such delivery was not taken; empty if none is held."""

    def submit(self, taken: HeldDelivery) -> None:
        """Take a delivery."""

    def conclude(self, taken: HeldDelivery, answer: Answer) -> None:
        """Settle a delivery by an answer that is known without running it."""

    def limit(self, size: int) -> None:
        """Handle at most so many at once from now on; 0 pauses."""

    def hold(self) -> None:
        """Start nothing until `go_on`: something else in this process is to run alone."""

    def go_on(self) -> None:
        """Start again what waits."""

    async def still(self) -> None:
        """Return when nothing is being handled, though things may wait."""

    def wind_down(self) -> int:
        """The end is near: forget what need not be started any more and tell how much it was."""

    def withdraw(self) -> int:
        """Forget what has not been started and tell how much: its channel gives it back."""

    async def finish(self) -> None:
        """Return when nothing is being handled."""

    async def flush(self) -> None:
        """Handle what was gathered and not handled yet: an open batch."""

    async def stop(self) -> int:
        """Interrupt what is being handled and tell how much it was."""


class OneByOne:
    """Each delivery by itself, so many at once as the options say, in order per key if asked."""

    def __init__(
        self,
        queue: str,
        options: HandlerOptions,
        run: Callable[[Delivery], Awaitable[Answer]],
        settling: Settling,
        observe: Callable[[Answer], object],
    ) -> None:
        self._key = options.key
        self._rules = options.rules
        self._run = run
        self._settling = settling
        self._observe = observe if options.breaker is not None else None
        self._pool: Pool[HeldDelivery] = Pool(
            options.concurrency, self._process, name=f"hopback {queue}"
        )
        self._time = asyncio.get_running_loop().time
        self.concluded = 0

    @property
    def in_flight(self) -> int:
        """How many handlers run now."""
        return len(self._pool.running)

    @property
    def kept(self) -> int:
        """How many deliveries can neither be settled nor moved."""
        return self._settling.kept

    @property
    def held(self) -> int:
        """How many deliveries their next queue does not take."""
        return self._settling.held

    @property
    def stuck(self) -> int:
        """Each of them has a worker of its own."""
        return self._settling.held

    @property
    def trouble(self) -> str:
        """Why the last one was not taken."""
        return self._settling.trouble

    def submit(self, taken: HeldDelivery) -> None:
        """Hand it to the next free worker, behind others of its key."""
        if self._key is None:
            self._pool.submit(taken)
        else:
            self._submit_in_order(taken, self._key)

    def _submit_in_order(
        self, taken: HeldDelivery, key_of: Callable[[Delivery], str | None]
    ) -> None:
        """A message whose key cannot be told has failed: in no lane is it in order."""
        try:
            key = key_of(taken.delivery)
            if key is not None and not isinstance(key, str):
                raise TypeError(f"expected a key of type str or None, got {type(key).__name__}")
        except Exception as error:
            failed = taken.with_answer(answer_for(error, self._rules))
            self._pool.submit(failed)
        else:
            self._pool.submit(taken, key)

    def conclude(self, taken: HeldDelivery, answer: Answer) -> None:
        """Settle it by this answer."""
        self._pool.submit(taken.with_answer(answer))

    def limit(self, size: int) -> None:
        """Run at most so many handlers at once."""
        self._pool.limit(size)

    def hold(self) -> None:
        """Call no handler for now."""
        self._pool.hold()

    def go_on(self) -> None:
        """Call handlers again."""
        self._pool.go_on()

    async def still(self) -> None:
        """Wait for the handlers that run."""
        await self._pool.still()

    def wind_down(self) -> int:
        """Start no other handler."""
        return self.withdraw()

    def withdraw(self) -> int:
        """Forget what waits for a worker."""
        return len(self._pool.withdraw())

    async def finish(self) -> None:
        """Wait for the workers."""
        await self._pool.join()

    async def flush(self) -> None:
        """Nothing is gathered here."""

    async def stop(self) -> int:
        """Cancel the workers."""
        return len(await self._pool.stop())

    async def _process(self, taken: HeldDelivery) -> None:
        """One delivery: handled, then concluded."""
        if taken.session.ended.is_set():
            return
        if self._settling.settle_copy(taken):
            self.concluded += 1
            return
        began = self._time()
        try:
            answer = taken.answer or await self._run(taken.delivery)
            if answer is not DONE or not self._settling.acknowledge(taken):
                settled = await self._settling.conclude(taken, answer, self._time() - began)
                self.concluded += settled
            else:
                self.concluded += 1
        except asyncio.CancelledError:
            self._settling.abandon(taken, self._time() - began, "the handler was interrupted")
            raise
        if self._observe is not None:
            self._observe(answer)
