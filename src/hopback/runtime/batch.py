"""Batches: deliveries are gathered by size and time and handled together, each with its own outcome.

When a batch fails because of some of its rows, they are found by bisection: each half is tried alone,
down to single messages, and only those that fail alone have failed. A failure that says nothing
about the rows (the database is away) fails the whole batch at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopback.headers import failure_from_exception
from hopback.policy.batching import Window, halves
from hopback.policy.outcome import Outcome, Park
from hopback.policy.rules import MENU, classify, outcome_of
from hopback.runtime.answer import DONE, Answer
from hopback.runtime.payload import Undecodable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hopback.observe.events import Bus
    from hopback.policy.rules import Rule
    from hopback.runtime.answer import Taken
    from hopback.runtime.payload import Decoder
    from hopback.runtime.settling import Settling

__all__ = ["BatchHandler", "BatchOptions", "Batches", "blames_rows"]


def blames_rows(error: Exception) -> bool:
    """Whether a failure may be due to single rows: a lost line or a timeout never is."""
    return not isinstance(error, OSError | TimeoutError)


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How batches are gathered and run.

    A batch goes at `size` messages or `wait` seconds after its first; `batchers` run at once.
    `isolates` says of an exception whether the bad rows should be looked for.
    """

    size: int = 1000
    wait: float = 1.0
    batchers: int = 2
    isolates: Callable[[Exception], bool] = blames_rows
    rules: tuple[Rule, ...] = ()

    @property
    def window(self) -> int:
        """The prefetch: one batch is filled while the others are handled."""
        return min(self.size * (self.batchers + 1), 65_535)


@dataclass(frozen=True, slots=True)
class BatchHandler:
    """A function of a list of payloads; it returns nothing, or an outcome for each."""

    queue: str
    call: Callable[[list[Any]], Awaitable[Sequence[object] | None]]
    decode: Decoder
    options: BatchOptions


class Batches:
    """Gathers deliveries into batches and concludes each delivery by itself."""

    def __init__(
        self,
        handler: BatchHandler,
        settling: Settling,
        bus: Bus,
        observe: Callable[[Answer], object],
    ) -> None:
        self._handler = handler
        self._window = Window(handler.options.size, handler.options.wait)
        self._settling = settling
        self._bus = bus
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._open: list[tuple[Taken, Any]] = []
        self._due: asyncio.TimerHandle | None = None
        self._full: list[list[tuple[Taken, Any]]] = []
        self._running: dict[asyncio.Task[None], int] = {}
        self._limit = handler.options.batchers
        self.concluded = 0

    @property
    def in_flight(self) -> int:
        """How many deliveries are in batches that run now."""
        return sum(self._running.values())

    def submit(self, taken: Taken) -> None:
        """Add a delivery to the open batch; what cannot be decoded is concluded alone."""
        try:
            payload = self._handler.decode(taken.delivery.body)
        except Undecodable as error:
            answer = Answer(Park(f"undecodable payload: {error}"), failure_from_exception(error))
            self._start(self._conclude_all([taken], [answer], 0.0), 1)
            return
        if not self._open:
            self._due = self._loop.call_at(self._window.due_at(self._loop.time()), self._close_open)
        self._open.append((taken, payload))
        if self._window.is_full(len(self._open)):
            self._close_open()

    def limit(self, size: int) -> None:
        """Run at most so many batches at once."""
        self._limit = min(size, self._handler.options.batchers)
        self._start_full()

    def wind_down(self) -> int:
        """Forget nothing: what was gathered is handled before the end."""
        return 0

    def withdraw(self) -> int:
        """Forget batches that were not started."""
        waiting = len(self._open) + sum(map(len, self._full))
        self._open, self._full = [], []
        if self._due is not None:
            self._due.cancel()
        return waiting

    async def finish(self) -> None:
        """Handle the open batch now and wait until no batch runs."""
        self._close_open()
        while self._running or (self._full and self._limit):
            self._start_full()
            await asyncio.wait(set(self._running))

    async def stop(self) -> int:
        """Cancel the batches that run."""
        left, tasks = self.in_flight, list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return left

    # --- from open to handled ----------------------------------------------------------------------

    def _close_open(self) -> None:
        if self._due is not None:
            self._due.cancel()
        if self._open:
            self._full.append(self._open)
            self._open = []
        self._start_full()

    def _start_full(self) -> None:
        while self._full and len(self._running) < self._limit:
            batch = self._full.pop(0)
            self._start(self._handle(batch), len(batch))

    def _start(self, work: Any, size: int) -> None:
        task: asyncio.Task[None] = self._loop.create_task(
            work, name=f"hopback batch {self._handler.queue}"
        )
        self._running[task] = size
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if not task.cancelled():
            task.result()
        self._start_full()

    async def _handle(self, batch: list[tuple[Taken, Any]]) -> None:
        began = self._loop.time()
        alive = [one for one in batch if not one[0].session.ended.is_set()]
        splits = _Splits()
        answers = await self._answers([payload for _, payload in alive], splits)
        duration = self._loop.time() - began
        await self._conclude_all([taken for taken, _ in alive], answers, duration)
        failed = sum(answer is not DONE for answer in answers)
        self._bus.emit(
            "batch.handled",
            {
                "queue": self._handler.queue,
                "size": len(alive),
                "failed": failed,
                "duration": duration,
                "splits": splits.count,
            },
        )

    async def _answers(self, payloads: list[Any], splits: _Splits) -> list[Answer]:
        """An answer for each payload; bad rows are looked for in ever smaller halves."""
        if not payloads:
            return []
        try:
            returned = await self._handler.call(payloads)
        except Exception as error:
            return await self._after_failure(payloads, error, splits)
        return _matched(returned, len(payloads))

    async def _after_failure(
        self, payloads: list[Any], error: Exception, splits: _Splits
    ) -> list[Answer]:
        options = self._handler.options
        if len(payloads) == 1 or not options.isolates(error):
            answer = Answer(classify(error, options.rules), failure_from_exception(error))
            return [answer] * len(payloads)
        splits.count += 1
        first, second = halves(payloads)
        return await self._answers(list(first), splits) + await self._answers(list(second), splits)

    async def _conclude_all(
        self, takens: list[Taken], answers: list[Answer], duration: float
    ) -> None:
        """Settle each by its own answer; a thousand failures are moved side by side."""
        slow = []
        for taken, answer in zip(takens, answers, strict=True):
            if answer is not DONE or not self._settling.acknowledge(taken):
                slow.append(self._settling.conclude(taken, answer, duration))
            self._observe(answer)
        await asyncio.gather(*slow)
        self.concluded += len(takens)


@dataclass(slots=True)
class _Splits:
    """How often a batch had to be halved."""

    count: int = 0


def _matched(returned: object, size: int) -> list[Answer]:
    """Nothing means all done; otherwise one outcome for each message, in order."""
    if returned is None:
        return [DONE] * size
    if not isinstance(returned, list | tuple) or len(returned) != size:
        expected = f"nothing, or a list of {size} of: {MENU}"
        reason = f"the batch handler returned {type(returned).__name__}; expected {expected}"
        return [Answer(Park(reason))] * size
    return [DONE if one is None else Answer(_outcome(one)) for one in returned]


def _outcome(one: object) -> Outcome:
    """An exception in the list stands for itself."""
    return classify(one) if isinstance(one, Exception) else outcome_of(one)
