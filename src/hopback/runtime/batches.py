"""Collect messages into batches and handle them.

A batch is handled when it is full or when its oldest message has waited long enough. Each message
has its own outcome. Middleware is entered before a message joins a batch. It waits in `run()` until
the batch has been handled, and may replace the outcome.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hopback.policy.batching import BatchWindow, halves
from hopback.policy.outcome import FAILURES, MENU, OUTCOMES, Done, Park, Rule, outcome_of
from hopback.runtime.answer import DONE, Answer, ConsumeSession, HeldDelivery
from hopback.runtime.context import (
    BatchRun,
    Context,
    close_unstarted,
    current_batch,
    current_context,
    end_run,
    publishes_of,
)
from hopback.runtime.middleware import Middleware, run_through
from hopback.runtime.payload import Undecodable
from hopback.runtime.pool import Pool, cancel_all
from hopback.runtime.rate_limit import RateLimit
from hopback.runtime.slow_runs import CurrentRun
from hopback.runtime.worker import (
    NOT_PUBLISHED,
    FunctionRunner,
    Overdue,
    answer_for,
    is_being_cancelled,
    report_overdue,
    undecodable,
)
from hopback.waiting import first_of, loop_time

if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Collection,
        Coroutine,
        Iterable,
        Iterator,
        Sequence,
    )
    from types import TracebackType

    from hopback.message import Delivery
    from hopback.runtime.dependencies import Injector, Opened
    from hopback.runtime.handler import BatchHandler
    from hopback.runtime.settling import Environment, Settling
    from hopback.topology.plan import Plan

_ENTERING = 10
"""Maximum number of messages that enter middleware concurrently if there is no `prepare` function.
The same as the default concurrency of handlers.
"""

_LOOK_S = 0.1
"""Seconds between two looks at a queue that its circuit breaker has paused."""


@dataclass(slots=True)
class Isolating:
    """Calls a batch handler. If it fails, the batch is split to find the failing messages."""

    handler: BatchHandler
    injector: Injector | None = None
    splits: int = field(default=0, init=False)
    opened: list[Opened] = field(default_factory=list, init=False)
    """Dependencies that are closed when the batch is settled."""
    overdue: Overdue | None = field(default=None, init=False)
    """The error of a call that was stopped at its deadline."""

    async def answers(self, payloads: list[Any]) -> list[Answer]:
        """Return a result for each payload, in order."""
        if not payloads:
            return []
        deadline = self.handler.options.deadline
        try:
            try:
                # Pass a copy, because the handler may modify the list.
                async with asyncio.timeout(deadline) as limit:
                    returned = await self._call(list(payloads))
            except TimeoutError as error:
                if deadline is None or not limit.expired():
                    raise
                self.overdue = Overdue(deadline)
                raise self.overdue from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise
            if len(payloads) == 1 or not self._isolates(error):
                return [answer_for(error, self.handler.options.rules)] * len(payloads)
            self.splits += 1
            first, second = halves(payloads)
            return await self.answers(list(first)) + await self.answers(list(second))
        # None means that all messages were handled. Otherwise there must be one outcome per
        # message.
        size = len(payloads)
        if returned is None:
            return [DONE] * size
        if not isinstance(returned, list | tuple) or len(returned) != size:
            got = type(returned).__name__
            if isinstance(returned, list | tuple):
                got = f"a {got} of {len(returned)}"
            expected = f"None, or a list of {size} of: {MENU}"
            reason = f"the batch handler returned {got}, expected {expected}"
            return [Answer(Park(reason))] * size
        return [self._answer(one) for one in returned]

    async def _call(self, payloads: list[Any]) -> object:
        handler = self.handler
        if self.injector is None:
            return await handler.call(payloads)
        opened = await self.injector.open(None)
        self.opened.append(opened)
        return await opened.finish(handler.call(**{handler.name: payloads}, **opened.values))

    def _isolates(self, error: BaseException) -> bool:
        try:
            return isinstance(error, Exception) and bool(self.handler.options.isolates(error))
        except FAILURES:
            return False

    def _answer(self, one: object) -> Answer:
        """Convert one item of the handler's return value to a result."""
        if one is None:
            return DONE
        if isinstance(one, Exception):
            return answer_for(one, self.handler.options.rules)
        return Answer(outcome_of(one))


class _MiddlewareRun:
    """A task that runs the middleware of one message in a batch.

    The first call of `run()` calls `enter`, which either returns a result or adds the message to a
    batch and returns None. In the second case, the task waits until the batch has been handled.
    """

    __slots__ = ("_context", "_enter", "_fate", "_inner", "_rules", "_trace", "joined", "task")

    def __init__(
        self,
        middleware: Sequence[Middleware],
        context: Context,
        rules: Sequence[Rule],
        enter: Callable[[_MiddlewareRun], Awaitable[Answer | None]],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._context = context
        self._rules = rules
        self._enter = enter
        self._fate: asyncio.Future[Answer] = loop.create_future()
        self._inner = DONE
        self._trace: TracebackType | None = None
        self.joined: asyncio.Future[None] = loop.create_future()
        self.task = loop.create_task(
            self._run(middleware), name=f"hopback middleware {context.queue}"
        )

    def give(self, answer: Answer) -> None:
        if not self._fate.done():
            self._trace = None if answer.error is None else answer.error.__traceback__
            self._fate.set_result(answer)

    def answer(self) -> Answer:
        """Return what the middleware returned after the task has ended."""
        if self.task.cancelled():  # cancelled by the middleware itself
            return answer_for(asyncio.CancelledError("the middleware was cancelled"), self._rules)
        return self.task.result()

    async def _run(self, middleware: Sequence[Middleware]) -> Answer:
        context = self._context
        current_context.set(context)
        try:
            said = await run_through(middleware, context, self._inside)
            if (made := publishes_of(context)) is not None and await close_unstarted(made):
                return NOT_PUBLISHED
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise
            return self._inner if error is self._inner.error else answer_for(error, self._rules)
        finally:
            end_run(context)
        inner = self._inner
        return inner if said is None or said is inner.outcome else Answer(outcome_of(said))

    async def _inside(self) -> object:
        answer = await self._enter(self)
        if answer is None:
            self.joined.set_result(None)
            answer = await self._fate
        self._inner = answer
        if answer.error is not None:
            # Restore the traceback. All messages of the batch raise the same exception object.
            raise answer.error.with_traceback(self._trace)
        return None if answer is DONE else answer.outcome


@dataclass(slots=True, eq=False)
class _Gathered:
    """A delivery with its decoded payload, or with the return value of `prepare`."""

    taken: HeldDelivery
    payload: Any
    run: _MiddlewareRun | None

    @property
    def early_answer(self) -> Answer | None:
        """Return the result if the middleware ended before the message joined a batch."""
        return self.run.answer() if self.run is not None and self.run.task.done() else None


class Batches:
    """Collects deliveries into batches and settles them."""

    def __init__(
        self,
        handler: BatchHandler,
        prepare: FunctionRunner | None,
        settling: Settling,
        environment: Environment,
        injector: Injector | None,
        read: Callable[[Delivery], Any] | None,
        middleware: Sequence[Middleware],
        make_context: Callable[[Delivery], Context],
        observe: Callable[[Answer], object],
    ) -> None:
        self._handler = handler
        self._injector = injector
        self._read = read
        self._middleware = tuple(middleware)
        self._context = make_context
        self._window = BatchWindow(handler.options.size, handler.options.wait)
        self._prepare = prepare
        self._settling = settling
        self._bus = environment.bus
        self._around = environment.observe_batch or _no_observer
        self._observe = observe
        self._base = copy_context()
        self._processors = _ENTERING
        if handler.prepare is not None:
            self._processors = handler.prepare.options.concurrency
        self._pool: Pool[HeldDelivery] = Pool(
            self._processors, self._process, name=f"hopback prepare {handler.queue}"
        )
        self._open: list[_Gathered] = []
        self._due: asyncio.TimerHandle | None = None
        self._full: list[list[_Gathered]] = []
        self._runs: set[asyncio.Task[Answer]] = set()
        self._running: dict[asyncio.Task[None], Sequence[HeldDelivery]] = {}
        self._slow: set[asyncio.Task[None]] = set()
        self._answers: dict[asyncio.Task[Any], Answer] = {}
        """Results of batches that are being interrupted."""
        self._limit = handler.options.batchers
        rate = handler.options.rate
        self._rate = None if rate is None else RateLimit(rate, self._start_full)
        self._concluding = 0
        self._held = False
        self.settled_count: int = 0

    @property
    def in_flight(self) -> int:
        """How many deliveries are being prepared or handled."""
        return sum(map(len, self._running.values())) + len(self._pool.running)

    @property
    def kept_count(self) -> int:
        """How many deliveries could not be settled."""
        return self._settling.kept_count

    @property
    def held_count(self) -> int:
        """How many deliveries are held because their next queue is unavailable."""
        return self._settling.held_count

    @property
    def stuck_count(self) -> int:
        """How many batches cannot be completed because some of their deliveries are held."""
        return min(self._concluding, self._settling.held_count)

    @property
    def trouble(self) -> str:
        """Why the last delivery is held."""
        return self._settling.trouble

    @property
    def may_start(self) -> bool:
        return self._limit > 0 and (self._rate is None or self._rate.is_due())

    def submit(self, taken: HeldDelivery) -> None:
        """Add a delivery to the open batch, or settle it on its own if it cannot be decoded."""
        if self._prepare is not None or self._middleware:
            self._pool.submit(taken)
            return
        try:
            payload = self._decode(taken.delivery)
        except Undecodable as error:
            self.conclude(taken, undecodable(error))
        except FAILURES as error:
            self.conclude(taken, answer_for(error))
        else:
            self._add(_Gathered(taken, payload, None))

    def _decode(self, delivery: Delivery) -> Any:
        if self._prepare is not None:
            return self._prepare.decode(delivery)
        return self._handler.decode(delivery.body) if self._read is None else self._read(delivery)

    def conclude(self, taken: HeldDelivery, answer: Answer) -> None:
        """Settle a single delivery with the given result."""
        self._start(self._conclude_all([taken], [answer], 0.0), [taken])

    def limit(self, size: int) -> None:
        """Set the maximum number of concurrent batches. 0 pauses processing."""
        self._limit = min(size, self._handler.options.batchers)
        self._pool.limit(self._processors if size else 0)
        self._start_full()

    def hold(self) -> None:
        self._held = True
        self._pool.hold()

    def resume(self) -> None:
        self._held = False
        self._pool.resume()
        self._start_full()

    async def wait_idle(self) -> None:
        """Wait until no batch is running."""
        await self._pool.wait_idle()
        while quick := self._running.keys() - self._slow:
            await asyncio.wait(quick)

    async def drain(self) -> None:
        """Wait until all deliveries have been handled, including the open batch."""
        await self._pool.drain()
        self._close_open()
        while self._rate is not None and self._full and self._limit and not self._held:
            await self._end_of_one()
        await self.wait_idle()

    async def wait_settled(self, taken: HeldDelivery) -> None:
        """Close the batch that contains a delivery and wait until it has been handled."""
        await self._pool.wait_finished(taken)
        self._close_open()
        while tasks := [task for task, batch in self._running.items() if taken in batch]:
            await asyncio.wait(tasks)
        while any(one.taken is taken for batch in self._full for one in batch):
            await self._end_of_one()
        while tasks := [task for task, batch in self._running.items() if taken in batch]:
            await asyncio.wait(tasks)

    async def _end_of_one(self) -> None:
        """Wait for a batch to end, or until another one may start."""
        if self._running:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        else:
            remaining = 0.0 if self._rate is None else self._rate.remaining
            await asyncio.sleep(max(remaining, _LOOK_S))

    def runs(self) -> list[CurrentRun]:
        """Return the running batches and the messages that are being prepared."""
        preparing = [CurrentRun(task, (taken,)) for task, taken in self._pool.runs()]
        return [CurrentRun(task, batch) for task, batch in self._running.items()] + preparing

    def holds(self, session: ConsumeSession) -> bool:
        """Return True if any deliveries of the session are left. Includes the open batch."""
        gathered = (one.taken for batch in (self._open, *self._full) for one in batch)
        running = (taken for batch in self._running.values() for taken in batch)
        in_hand = (*self._pool, *gathered, *running)
        return self._settling.keeps(session) or any(one.session is session for one in in_hand)

    def disregard(self, slow: Collection[asyncio.Task[Any]]) -> None:
        """Exclude these tasks from waiting."""
        self._slow = {task for task in self._running if task in slow}
        self._pool.disregard(slow)

    def end_early(self, task: asyncio.Task[None], answer: Answer) -> None:
        """Interrupt a batch. Running calls of `prepare` continue."""
        if task in self._running:
            self._answers[task] = answer
            task.cancel()

    def wind_down(self) -> int:
        """Stop calling `prepare`. Messages that were already collected are still handled."""
        return len(self._pool.withdraw())

    def withdraw(self) -> list[HeldDelivery]:
        """Drop all batches that have not been started."""
        waiting = self._pool.withdraw()
        for batch in (*self._full, self._open):
            waiting += [one.taken for one in batch]
            _end_runs(batch)
        self._open, self._full = [], []
        self._cancel_due()
        return waiting

    async def finish(self) -> None:
        """Wait for running batches. The open batch is not closed."""
        await self._pool.join()
        while self._running:
            await asyncio.wait(set(self._running))

    async def flush(self) -> None:
        """Handle the open batch and wait for it."""
        self._close_open()
        await self.finish()

    async def stop(self) -> int:
        left, self._limit = self.in_flight, 0
        await self._pool.stop()
        await cancel_all(self._running)
        await cancel_all(self._runs)
        return left

    async def _process(self, taken: HeldDelivery) -> None:
        """Add a message to the open batch, or settle it if its result is already known."""
        if taken.session.ended.is_set():
            return
        began = loop_time()
        try:
            if self._settling.settle_copy(taken):
                self.settled_count += 1
                return
            answer = await self._enter(taken)
        except asyncio.CancelledError:
            self._settling.abandon(taken, loop_time() - began, "interrupted")
            raise
        except FAILURES as error:  # see OneByOne
            answer = answer_for(error)
        if answer is not None:
            await self._conclude_all([taken], [answer], loop_time() - began)

    async def _enter(self, taken: HeldDelivery) -> Answer | None:
        """Add a message to the open batch. Returns a result if it could not be added."""
        try:
            payload = self._decode(taken.delivery)
        except Undecodable as error:
            return undecodable(error)
        if not self._middleware:
            return await self._join(taken, payload, None)
        run = _MiddlewareRun(
            self._middleware,
            self._context(taken.delivery),
            self._handler.options.rules,
            lambda run: self._join(taken, payload, run),
        )
        self._runs.add(run.task)
        run.task.add_done_callback(self._runs.discard)
        try:
            await first_of(run.task, run.joined)
        except asyncio.CancelledError:
            run.task.cancel()
            raise
        return None if run.joined.done() else run.answer()

    async def _join(
        self, taken: HeldDelivery, payload: Any, run: _MiddlewareRun | None
    ) -> Answer | None:
        """Call `prepare` and add the message to the batch.

        If `prepare` returns an outcome, the message is not added and the result is returned.
        """
        if self._prepare is not None:
            try:
                payload = await self._prepare.value(taken.delivery, payload)
            finally:
                await self._prepare.close_delivery_scope(taken.delivery)
            if isinstance(payload, Answer):
                return payload
            if isinstance(payload, OUTCOMES):
                return Answer(outcome_of(payload))
        self._add(_Gathered(taken, payload, run))
        return None

    def _add(self, one: _Gathered) -> None:
        if not self._open:
            self._due = asyncio.get_running_loop().call_at(
                self._window.due_at(loop_time()), self._close_open
            )
        self._open.append(one)
        if self._window.is_full(len(self._open)):
            self._close_open()

    def _cancel_due(self) -> None:
        if self._due is not None:
            self._due.cancel()

    def _close_open(self) -> None:
        self._cancel_due()
        if self._open:
            self._full.append(self._open)
            self._open = []
        self._start_full()

    def _start_full(self) -> None:
        while self._full and len(self._running) < self._limit and not self._held:
            if self._rate is not None:
                if not self._rate.is_due():
                    return
                self._rate.take(len(self._full[0]))
            batch = self._full.pop(0)
            self._start(self._handle(batch), [one.taken for one in batch])

    def _start(self, work: Coroutine[Any, Any, None], batch: Sequence[HeldDelivery]) -> None:
        name, context = f"hopback batch {self._handler.queue}", self._base.copy()
        task = asyncio.get_running_loop().create_task(work, name=name, context=context)
        self._running[task] = batch
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._answers.pop(task, None)
        self._start_full()
        if not task.cancelled():
            task.result()

    async def _handle(self, batch: list[_Gathered]) -> None:
        isolating = Isolating(self._handler, self._injector)
        try:
            await self._handle_with(isolating, batch)
        finally:
            for opened in isolating.opened:
                await opened.close_delivery_scope()

    async def _handle_with(self, isolating: Isolating, batch: list[_Gathered]) -> None:
        began = loop_time()
        alive = [one for one in batch if not one.taken.session.ended.is_set()]
        if self._prepare is None and not self._middleware:
            copies = [one for one in alive if self._settling.settle_copy(one.taken)]
            self.settled_count += len(copies)
            alive = [one for one in alive if one not in copies] if copies else alive
        elif self._middleware:
            _end_runs(one for one in batch if one.taken.session.ended.is_set())
            left = [(one, answer) for one in alive if (answer := one.early_answer) is not None]
            await self._conclude_all(
                [one.taken for one, _ in left], [said for _, said in left], 0.0
            )
            alive = [one for one in alive if one.early_answer is None]
        if not alive:
            return
        deliveries = [one.taken.delivery for one in alive]
        run = BatchRun(alive[0].taken.session.ended)
        current_batch.set(run)
        answers: list[Answer] = []
        try:
            with self._around(deliveries, self._settling.plan) as tell:
                answers = await isolating.answers([one.payload for one in alive])
                if self._middleware:
                    answers = await _through_middleware(alive, answers)
                tell(answers)
        except asyncio.CancelledError:
            _end_runs(alive)
            task = asyncio.current_task()
            answer = None if task is None else self._answers.pop(task, None)
            if task is None or answer is None:
                for one in alive:
                    self._settling.abandon(one.taken, loop_time() - began, "interrupted")
                raise
            task.uncancel()
            answers = [answer] * len(alive)
        except FAILURES as error:  # see OneByOne, keep existing results
            _end_runs(alive)
            answers = answers or [answer_for(error)] * len(alive)
        finally:
            run.has_ended = True
            if (overdue := isolating.overdue) is not None:
                queue = self._handler.queue
                report_overdue(self._bus, queue, deliveries[0], overdue.deadline, stopped=True)
        duration = loop_time() - began
        await self._conclude_all([one.taken for one in alive], answers, duration)
        self._bus.emit(
            "batch.handled",
            {
                "queue": self._handler.queue,
                "size": len(answers),
                "failed": sum(not isinstance(answer.outcome, Done) for answer in answers),
                "duration": duration,
                "splits": isolating.splits,
            },
        )

    async def _conclude_all(
        self, held: Iterable[HeldDelivery], answers: Iterable[Answer], duration: float
    ) -> None:
        """Settle all messages. Messages that failed are moved concurrently."""
        slow = []
        for taken, answer in zip(held, answers, strict=True):
            if answer is DONE and self._settling.acknowledge(taken, duration):
                self.settled_count += 1
            else:
                slow.append(self._conclude(taken, answer, duration))
            self._observe(answer)
        self._concluding += 1
        try:
            await asyncio.gather(*slow)
        finally:
            self._concluding -= 1

    async def _conclude(self, taken: HeldDelivery, answer: Answer, duration: float) -> None:
        try:
            settled = await self._settling.conclude(taken, answer, duration)
            self.settled_count += settled
        except asyncio.CancelledError:
            self._settling.abandon(taken, duration, "interrupted")
            raise


def _end_runs(gathered: Iterable[_Gathered]) -> None:
    """Cancel the middleware of all messages that are not going to be handled."""
    for one in gathered:
        if one.run is not None:
            one.run.task.cancel()


async def _through_middleware(
    gathered: Sequence[_Gathered], answers: Sequence[Answer]
) -> list[Answer]:
    """Pass each result of a batch to the middleware of its message."""
    runs = [one.run for one in gathered if one.run is not None]
    errors = [answer.error for answer in answers if answer.error is not None]
    traces = [error.__traceback__ for error in errors]
    for run, answer in zip(runs, answers, strict=True):
        run.give(answer)
    await asyncio.wait([run.task for run in runs])
    for error, trace in zip(errors, traces, strict=True):
        error.__traceback__ = trace
    return [run.answer() for run in runs]


@contextmanager
def _no_observer(
    _deliveries: Sequence[Delivery], _plan: Plan
) -> Iterator[Callable[[Sequence[Answer]], None]]:
    yield lambda _answers: None
