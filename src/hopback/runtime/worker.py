"""The protocol by which a consumer handles its deliveries, one by one or in batches.

A handler run decodes one delivery, calls the function, and turns the result or error into an
answer.
"""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from hopback.errors import ReplyRefused
from hopback.headers import failure_from_exception
from hopback.policy.outcome import (
    FAILURES,
    Park,
    Retry,
    Rule,
    classify,
    is_outcome,
    outcome_of,
    raised_outcome,
)
from hopback.runtime.answer import DONE, Answer, ConsumeSession, HeldDelivery, Run
from hopback.runtime.context import (
    Context,
    check_reply_to,
    close_unstarted,
    current_context,
    end_run,
    publishes_of,
)
from hopback.runtime.middleware import Middleware, run_through
from hopback.runtime.payload import Undecodable
from hopback.runtime.pool import Pool
from hopback.runtime.rate_limit import RatedItems
from hopback.runtime.slow_runs import CurrentRun, in_thread
from hopback.waiting import loop_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence

    from hopback.message import Delivery, Message
    from hopback.observe.events import Bus
    from hopback.runtime.codecs import Codecs
    from hopback.runtime.dependencies import Injector, Opened
    from hopback.runtime.handler import Handler, HandlerOptions
    from hopback.runtime.settling import Settling
    from hopback.topology.plan import Plan


def answer_for(error: BaseException, rules: Sequence[Rule] = ()) -> Answer:
    """The answer of a run that raised: an outcome, or a retry or a park by the rules.

    The record of the failure belongs to an error. An outcome has none, raised or returned.
    """
    outcome = raised_outcome(error)
    if outcome is not None:
        return Answer(outcome)
    failure = failure_from_exception(error)
    if isinstance(error, ReplyRefused):
        return Answer(Park(str(error)), failure, error=error)  # another attempt would fail too
    return Answer(classify(error, rules, failure), failure, error=error)


def undecodable(error: Undecodable) -> Answer:
    """Return the answer for a payload that does not match the handler's type."""
    reason = f"undecodable payload: {error}"
    return Answer(Park(reason), failure_from_exception(error), error=error)


def is_being_cancelled() -> bool:
    """Whether a CancelledError was meant for the current task.

    Otherwise the handler awaited a cancelled task, which is a failure like any other.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


_UNREAD: Final = object()
"""Marks a payload that is not decoded yet. None is a valid payload."""


class FunctionRunner:
    """Runs a handler function and returns exactly one answer, whatever the function does."""

    def __init__(
        self,
        handler: Handler,
        plan: Plan,
        publish: Callable[[Message], Coroutine[Any, Any, None]],
        bus: Bus,
        *,
        injector: Injector | None = None,
        middleware: Sequence[Middleware] = (),
        codecs: Codecs | None = None,
        make_context: type[Context] = Context,
    ) -> None:
        """Select the code for a run in advance, so that unused features cost no time per message."""
        self._handler = handler
        self._plan = plan
        self._publish = publish
        self._bus = bus
        self._threads: ThreadPoolExecutor | None = None
        self._call = self._await if handler.is_async else self._in_thread
        self._injector = injector
        self._middleware = tuple(middleware)
        self._read: Callable[[Delivery], Any] | None = None
        if codecs is not None and handler.decode is not None and handler.wanted is not None:
            self._read = codecs.reader(handler.wanted, handler.decode)
        self._context = make_context
        self._is_plain = injector is None and not self._middleware
        self._is_direct = self._is_plain and handler.is_async and handler.options.deadline is None
        self._opened: dict[int, Opened] = {}

    def __call__(self, delivery: Delivery) -> Coroutine[Any, Any, Answer]:
        """Run the handler and return its outcome."""
        return self._handle(delivery, _UNREAD, _answer_of)

    def decode(self, delivery: Delivery) -> Any:
        """Return the decoded payload. Raises Undecodable with the reason."""
        if self._read is not None:
            return self._read(delivery)
        decode = self._handler.decode
        return None if decode is None else decode(delivery.body)

    def value(self, delivery: Delivery, payload: Any = _UNREAD) -> Coroutine[Any, Any, Any]:
        """Decode and call. Returns the handler's return value, or an Answer for an exception."""
        return self._handle(delivery, payload, _identity)

    async def _handle(
        self, delivery: Delivery, payload: Any, finished: Callable[[Any], Any]
    ) -> Any:
        """Decode and call. `finished` converts the return value.

        This is a single coroutine, because every coroutine between a handler and its task costs
        time at each suspension and resumption.
        """
        handler = self._handler
        if payload is _UNREAD:
            try:
                payload = self.decode(delivery)
            except Undecodable as error:
                return undecodable(error)
        context = self._context(delivery, self._plan, self._publish)
        token = current_context.set(context)
        try:
            if handler.replies:
                check_reply_to(context)  # before the handler has done its work in vain
            if self._is_direct:
                returned = await handler.call(*handler.arguments(payload, context))
            elif self._is_plain:
                returned = await self._call(
                    delivery, handler.call, handler.arguments(payload, context)
                )
            else:
                # Inside the middleware, with the handler's dependencies.
                run = partial(
                    self._call_with_dependencies, context, handler.arguments(payload, context)
                )
                returned = await run_through(self._middleware, context, run)
            if handler.replies and not is_outcome(returned):
                await _reply(context, returned)
                returned = None
            if (made := publishes_of(context)) is not None and await close_unstarted(made):
                return NOT_PUBLISHED
            return finished(returned)
        except _Overdue as overdue:
            self._report(delivery, overdue.deadline, stopped=True)
            reason = f"the handler did not finish within its deadline of {overdue.deadline:g} s"
            return Answer(Retry(reason), failure_from_exception(overdue), error=overdue)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # Not only Exception: a handler that calls sys.exit or awaits a cancelled task has
            # failed. It must neither end the service nor leave its message without an outcome.
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise
            return answer_for(error, handler.options.rules)
        finally:
            end_run(context)
            current_context.reset(token)

    async def _call_with_dependencies(self, context: Context, arguments: tuple[object, ...]) -> Any:
        """Open the handler's dependencies, call it, and close those that end with the run."""
        handler, delivery = self._handler, context.delivery
        if self._injector is None:
            return await self._call(delivery, handler.call, arguments)
        opened = await self._injector.open(context)
        if self._injector.waits_for_settlement:
            self._opened[id(delivery)] = opened
        named = {**dict(zip(handler.names, arguments, strict=True)), **opened.values}
        try:
            async with opened.run:
                return await self._call(delivery, partial(handler.call, **named), ())
        except BaseException as error:
            opened.error = error
            raise

    @property
    def waits_for_settlement(self) -> bool:
        """Whether something that the handler needs lives until its delivery is settled."""
        return self._injector is not None and self._injector.waits_for_settlement

    async def close_delivery_scope(self, delivery: Delivery) -> None:
        """Close the dependencies that live until the delivery is settled."""
        opened = self._opened.pop(id(delivery), None)
        if opened is not None:
            await opened.close_delivery_scope()

    async def close(self) -> None:
        """Shut down the threads. A busy thread ends when its handler returns."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _await(
        self, delivery: Delivery, call: Callable[..., Any], arguments: tuple[object, ...]
    ) -> Any:
        deadline = self._handler.options.deadline
        if deadline is None:
            return await call(*arguments)
        try:
            async with asyncio.timeout(deadline) as limit:
                return await call(*arguments)
        except TimeoutError as error:
            if limit.expired():
                raise _Overdue(deadline) from error
            raise

    async def _in_thread(
        self, delivery: Delivery, call: Callable[..., Any], arguments: tuple[object, ...]
    ) -> Any:
        """Run the handler in a thread. A late run is reported, and is settled only after it
        returns.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                self._handler.options.concurrency, thread_name_prefix=self._handler.queue
            )
        work = asyncio.get_running_loop().run_in_executor(
            self._threads,
            copy_context().run,
            _caught,
            partial(in_thread, delivery, call),
            arguments,
        )
        deadline = self._handler.options.deadline
        if deadline is not None:
            finished, _ = await asyncio.wait({work}, timeout=deadline)
            if not finished:
                self._report(delivery, deadline, stopped=False)
        returned, error = await asyncio.shield(work)
        if error is not None:
            raise error
        return returned

    def _report(self, delivery: Delivery, deadline: float, *, stopped: bool) -> None:
        self._bus.emit(
            "handler.overdue",
            {
                "queue": self._handler.queue,
                "message_id": delivery.properties.message_id,
                "duration": deadline,
                "deadline": deadline,
                "stopped": stopped,
            },
        )


def _answer_of(returned: Any) -> Answer:
    """The answer that a handler's return value is."""
    if returned is None:
        return DONE
    if isinstance(returned, Answer):
        return returned
    if inspect.iscoroutine(returned):
        returned.close()  # it is never awaited, and the reason explains it better than a warning
    return Answer(outcome_of(returned))


def _identity(returned: Any) -> Any:
    return returned


def _caught(
    call: Callable[[tuple[object, ...]], Any], arguments: tuple[object, ...]
) -> tuple[Any, BaseException | None]:
    """Return the result or the exception. Some exceptions (StopIteration) cannot enter a future."""
    try:
        return call(arguments), None
    except BaseException as error:
        return None, error


async def _reply(context: Context, returned: object) -> None:
    """Reply with the handler's return value, if a reply is requested and has not been sent."""
    if context.wants_reply and not context.has_replied:
        await context.reply(returned)


def inside_middleware(
    middleware: Sequence[Middleware],
    run: Run,
    plan: Plan,
    publish: Callable[[Message], Coroutine[Any, Any, None]],
    make_context: type[Context],
) -> Run:
    """Wrap middleware around a run without a handler function, such as a push."""

    async def surrounded(delivery: Delivery) -> Answer:
        inner = DONE

        async def outcome() -> object:
            nonlocal inner
            inner = await run(delivery)
            return inner.outcome

        context = make_context(delivery, plan, publish)
        token = current_context.set(context)
        try:
            said = await run_through(middleware, context, outcome)
        except FAILURES as error:
            return answer_for(error)
        finally:
            end_run(context)
            current_context.reset(token)
        return inner if said is inner.outcome else Answer(outcome_of(said))

    return surrounded


NOT_PUBLISHED: Final = Answer(
    Park(
        "a publish was not awaited, so the message was not sent: write `await context.publish(…)`, "
        "and re-drive this message"
    )
)


class _Overdue(Exception):
    """The handler was stopped at its deadline."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        super().__init__(f"stopped after {deadline:g} s")


class Work(Protocol):
    """Takes deliveries and concludes each of them exactly once."""

    @property
    def in_flight(self) -> int:
        """How many deliveries are being handled now."""

    @property
    def settled_count(self) -> int:
        """How many deliveries were settled so far."""

    @property
    def kept_count(self) -> int:
        """Number of deliveries held unsettled because no safe action is possible."""

    @property
    def held_count(self) -> int:
        """How many deliveries wait in hand because their next queue does not take them."""

    @property
    def stuck_count(self) -> int:
        """How many of those that could work wait for such a delivery."""

    @property
    def trouble(self) -> str:
        """Why the last held delivery could not be settled. Empty if none is held."""

    def submit(self, taken: HeldDelivery) -> None:
        """Take a delivery."""

    def conclude(self, taken: HeldDelivery, answer: Answer) -> None:
        """Settle a delivery by an answer that is known without running it."""

    def limit(self, size: int) -> None:
        """Set the maximum number of concurrent runs. 0 pauses."""

    def hold(self) -> None:
        """Start no runs until `resume`, because another task in this process must run alone."""

    def resume(self) -> None:
        """Start the waiting runs again."""

    async def wait_idle(self) -> None:
        """Return when only slow runs are in progress. Deliveries may still be waiting."""

    async def drain(self) -> None:
        """Return when no delivery is waiting or gathered and only slow runs are in progress."""

    async def wait_settled(self, taken: HeldDelivery) -> None:
        """Return when this delivery, which was submitted, is neither handled nor waiting."""

    def runs(self) -> Sequence[CurrentRun]:
        """Return the runs in progress."""

    def holds(self, session: ConsumeSession) -> bool:
        """Whether a delivery of the session is in hand: it waits, is handled or is kept."""

    def disregard(self, slow: Collection[asyncio.Task[Any]]) -> None:
        """These runs are slow: `wait_idle` and `drain` do not wait for them."""

    def end_early(self, task: asyncio.Task[None], answer: Answer) -> None:
        """Interrupt this run, and conclude its deliveries by this answer."""

    def wind_down(self) -> int:
        """Prepare for shutdown: drop deliveries that need not be started and return their number."""

    def withdraw(self) -> int:
        """Drop the deliveries that were not started and return their number. Their channel requeues
        them.
        """

    async def finish(self) -> None:
        """Return when no run is in progress."""

    async def flush(self) -> None:
        """Handle an open batch."""

    async def stop(self) -> int:
        """Interrupt the runs in progress and return their number."""


class OneByOne:
    """Handles each delivery separately, with the configured concurrency, and in order per key if
    set.
    """

    def __init__(
        self,
        queue: str,
        options: HandlerOptions,
        run: Callable[[Delivery], Awaitable[Answer]],
        settling: Settling,
        settled: Callable[[Delivery], Awaitable[None]] | None,
        observe: Callable[[Answer], object],
    ) -> None:
        self._key = options.key
        self._settled = settled
        self._rules = options.rules
        self._run = run
        self._settling = settling
        self._observe = observe if options.breaker is not None else None
        self._pool: Pool[HeldDelivery] = Pool(
            options.concurrency,
            self._process if settled is None else self._process_and_close,
            name=f"hopback {queue}",
        )
        if options.rate is not None:
            self._pool.hold_items_in(partial(RatedItems, options.rate))
        self._time = loop_time
        self._answers: dict[asyncio.Task[Any], Answer] = {}
        """The answers of runs that are being ended early."""
        self.settled_count: int = 0

    @property
    def in_flight(self) -> int:
        return len(self._pool.running)

    @property
    def kept_count(self) -> int:
        """How many deliveries can neither be settled nor moved."""
        return self._settling.kept_count

    @property
    def held_count(self) -> int:
        """How many deliveries their next queue does not take."""
        return self._settling.held_count

    @property
    def stuck_count(self) -> int:
        """Each of them occupies a worker."""
        return self._settling.held_count

    @property
    def trouble(self) -> str:
        """Why the last one was not taken."""
        return self._settling.trouble

    def submit(self, taken: HeldDelivery) -> None:
        """Hand it to the next free worker, behind others of its key."""
        if self._key is None:
            self._pool.submit(taken)
        else:
            # A message whose key function raises has failed, because no lane would keep its order.
            try:
                key = self._key(taken.delivery)
                if key is not None and not isinstance(key, str):
                    raise TypeError(f"expected a key of type str or None, got {type(key).__name__}")
            except FAILURES as error:
                failed = taken.with_answer(answer_for(error, self._rules))
                self._pool.submit(failed)
            else:
                self._pool.submit(taken, key)

    def conclude(self, taken: HeldDelivery, answer: Answer) -> None:
        self._pool.submit(taken.with_answer(answer))

    def limit(self, size: int) -> None:
        self._pool.limit(size)

    def hold(self) -> None:
        self._pool.hold()

    def resume(self) -> None:
        self._pool.resume()

    async def wait_idle(self) -> None:
        """Wait for the handlers that run."""
        await self._pool.wait_idle()

    async def drain(self) -> None:
        await self._pool.drain()

    async def wait_settled(self, taken: HeldDelivery) -> None:
        await self._pool.wait_finished(taken)

    def runs(self) -> list[CurrentRun]:
        return [CurrentRun(task, (taken,)) for task, taken in self._pool.runs()]

    def holds(self, session: ConsumeSession) -> bool:
        """Also while it waits for a worker."""
        return self._settling.keeps(session) or any(one.session is session for one in self._pool)

    def disregard(self, slow: Collection[asyncio.Task[Any]]) -> None:
        """Do not wait for these workers."""
        self._pool.disregard(slow)

    def end_early(self, task: asyncio.Task[None], answer: Answer) -> None:
        self._answers[task] = answer
        task.cancel()

    def wind_down(self) -> int:
        return self.withdraw()

    def withdraw(self) -> int:
        """Drop the deliveries that wait for a worker."""
        return len(self._pool.withdraw())

    async def finish(self) -> None:
        await self._pool.join()

    async def flush(self) -> None:
        """Do nothing: there are no batches."""

    async def stop(self) -> int:
        return len(await self._pool.stop())

    async def _process_and_close(self, taken: HeldDelivery) -> None:
        """Process a delivery, then close its remaining dependencies, whether or not it succeeded."""
        try:
            await self._process(taken)
        finally:
            if self._settled is not None:
                await self._settled(taken.delivery)

    async def _process(self, taken: HeldDelivery) -> None:
        """One delivery: handled, then concluded."""
        if taken.session.ended.is_set():
            return
        began = self._time()
        try:
            try:
                if self._settling.settle_copy(taken):
                    self.settled_count += 1
                    return
                answer = taken.answer or await self._run(taken.delivery)
            except asyncio.CancelledError:
                answer = self._answer_to_end()
            except FAILURES as error:
                # A runner answers for its handler, so this is a defect of Hopback, or of a codec or
                # trace around the run. The message follows its plan like any other failure.
                answer = answer_for(error)
            duration = self._time() - began
            if answer is DONE and self._settling.acknowledge(taken, duration):
                self.settled_count += 1
            else:
                # Not in one statement: deliveries concluded by other tasks during the await would
                # not be counted.
                settled = await self._settling.conclude(taken, answer, duration)
                self.settled_count += settled
        except asyncio.CancelledError:
            self._settling.abandon(taken, self._time() - began, "the handler was interrupted")
            raise
        if self._observe is not None:
            self._observe(answer)

    def _answer_to_end(self) -> Answer:
        """Return the answer of a run that was ended early. Raises CancelledError for any other run."""
        task = asyncio.current_task()
        answer = None if task is None else self._answers.pop(task, None)
        if task is None or answer is None:
            raise asyncio.CancelledError
        task.uncancel()
        return answer
