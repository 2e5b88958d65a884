"""Run handlers and settle their deliveries."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from hopback.errors import InvalidDeclaration, ReplyRefused
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
from hopback.runtime.publish_arguments import WrongCall
from hopback.runtime.rate_limit import RatedItems
from hopback.runtime.slow_runs import CurrentRun, in_thread

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
    """Convert an exception to a result, based on the rules.

    An outcome that was raised is not a failure and does not get a failure record. Rules do not
    apply to a missed deadline.
    """
    outcome = raised_outcome(error)
    if outcome is not None:
        return Answer(outcome)
    failure = failure_from_exception(error)
    if isinstance(error, Overdue):
        reason = f"the handler did not finish within its deadline of {error.deadline:g} s"
        return Answer(Retry(reason), failure, error=error)
    if isinstance(error, ReplyRefused | InvalidDeclaration | WrongCall):
        return Answer(Park(str(error)), failure, error=error)  # a retry would fail the same way
    return Answer(classify(error, rules, failure), failure, error=error)


def undecodable(error: Undecodable) -> Answer:
    reason = f"undecodable payload: {error}"
    return Answer(Park(reason), failure_from_exception(error), error=error, ran=False)


def is_being_cancelled() -> bool:
    """Return True if the current task is being cancelled.

    Otherwise the handler awaited a different task that was cancelled.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


_UNREAD: Final = object()
"""Marks a payload that has not been decoded yet."""


class FunctionRunner:
    """Calls a handler function and returns its result."""

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
        """Prepare the call once, so that unused features do not slow down messages."""
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
        return self._handle(delivery, _UNREAD, _answer_of)

    def decode(self, delivery: Delivery) -> Any:
        """Decode the payload. Raises Undecodable if it is invalid."""
        if self._read is not None:
            return self._read(delivery)
        decode = self._handler.decode
        return None if decode is None else decode(delivery.body)

    def value(self, delivery: Delivery, payload: Any = _UNREAD) -> Coroutine[Any, Any, Any]:
        """Call the handler and return its return value, or an Answer if it raised an exception."""
        return self._handle(delivery, payload, _identity)

    async def _handle(
        self, delivery: Delivery, payload: Any, finished: Callable[[Any], Any]
    ) -> Any:
        """Decode the payload and call the handler. `finished` converts the return value.

        All of this is done in a single coroutine, because another one would make each suspension
        slower.
        """
        handler = self._handler
        if payload is _UNREAD:
            try:
                payload = self.decode(delivery)
            except Undecodable as error:
                return undecodable(error)
        context = self._context(delivery, self._plan, self._publish)
        if handler.replies and (refused := _refuse_reply(context)) is not None:
            return refused
        token = current_context.set(context)
        try:
            if self._is_direct:
                returned = await handler.call(*handler.arguments(payload, context))
            elif self._is_plain:
                returned = await self._call(
                    delivery, handler.call, handler.arguments(payload, context)
                )
            else:
                # Call the handler with its dependencies, inside the middleware.
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
        except Overdue as overdue:
            self._report(delivery, overdue.deadline, stopped=True)
            return answer_for(overdue)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # Catch everything, because a handler may call sys.exit or await a cancelled task.
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise
            return answer_for(error, handler.options.rules)
        finally:
            end_run(context)
            current_context.reset(token)

    async def _call_with_dependencies(self, context: Context, arguments: tuple[object, ...]) -> Any:
        """Create the dependencies, call the handler and close the dependencies of the run."""
        handler, delivery = self._handler, context.delivery
        if self._injector is None:
            return await self._call(delivery, handler.call, arguments)
        opened = await self._injector.open(context)
        if self._injector.waits_for_settlement:
            self._opened[id(delivery)] = opened
        named = {**dict(zip(handler.names, arguments, strict=True)), **opened.values}
        return await opened.finish(self._call(delivery, partial(handler.call, **named), ()))

    @property
    def waits_for_settlement(self) -> bool:
        """Whether any dependencies have to stay open until the message is settled."""
        return self._injector is not None and self._injector.waits_for_settlement

    async def close_delivery_scope(self, delivery: Delivery) -> None:
        """Close the dependencies with the scope `delivery`."""
        opened = self._opened.pop(id(delivery), None)
        if opened is not None:
            await opened.close_delivery_scope()

    async def close(self) -> None:
        """Shut down the threads. Handlers that are running are not interrupted."""
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
                raise Overdue(deadline) from error
            raise

    async def _in_thread(
        self, delivery: Delivery, call: Callable[..., Any], arguments: tuple[object, ...]
    ) -> Any:
        """Call the handler in a thread. If it exceeds the deadline, this is reported, but it keeps
        running.
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
        report_overdue(self._bus, self._handler.queue, delivery, deadline, stopped=stopped)


def report_overdue(
    bus: Bus, queue: str, delivery: Delivery, deadline: float, *, stopped: bool
) -> None:
    bus.emit(
        "handler.overdue",
        {
            "queue": queue,
            "message_id": delivery.properties.message_id,
            "duration": deadline,
            "deadline": deadline,
            "stopped": stopped,
        },
    )


def _answer_of(returned: Any) -> Answer:
    """Convert the return value of a handler to a result."""
    if returned is None:
        return DONE
    if isinstance(returned, Answer):
        return returned
    if inspect.iscoroutine(returned):
        returned.close()  # avoids a warning, since the reason already explains it
    return Answer(outcome_of(returned))


def _identity(returned: Any) -> Any:
    return returned


def _caught(
    call: Callable[[tuple[object, ...]], Any], arguments: tuple[object, ...]
) -> tuple[Any, BaseException | None]:
    """Return the result or the exception of a call. A future does not accept StopIteration."""
    try:
        return call(arguments), None
    except BaseException as error:
        return None, error


def _refuse_reply(context: Context) -> Answer | None:
    """Reject a bad reply address before the handler runs. Returns None if it is allowed."""
    try:
        check_reply_to(context)
    except ReplyRefused as refused:
        return answer_for(refused)._replace(ran=False)
    return None


async def _reply(context: Context, returned: object) -> None:
    """Send the return value as a reply if one is requested."""
    if context.wants_reply and not context.has_replied:
        await context.reply(returned)


def inside_middleware(
    middleware: Sequence[Middleware],
    run: Run,
    plan: Plan,
    publish: Callable[[Message], Coroutine[Any, Any, None]],
    make_context: type[Context],
) -> Run:
    """Wrap middleware around a run that has no handler function, such as a push."""

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


class Overdue(TimeoutError):
    """Raised when the handler was stopped at its deadline."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        super().__init__(f"stopped after {deadline:g} s")


class Work(Protocol):
    """Handles and settles deliveries."""

    @property
    def in_flight(self) -> int:
        """How many deliveries are being handled."""

    @property
    def settled_count(self) -> int:
        """How many deliveries were settled."""

    @property
    def kept_count(self) -> int:
        """How many deliveries could not be settled."""

    @property
    def held_count(self) -> int:
        """How many deliveries are held because their next queue is unavailable."""

    @property
    def stuck_count(self) -> int:
        """How many workers are blocked by held deliveries."""

    @property
    def trouble(self) -> str:
        """Why the last delivery is held. Empty if there are none."""

    @property
    def may_start(self) -> bool:
        """Whether the circuit breaker and the rate limit allow a message to start."""

    def submit(self, taken: HeldDelivery) -> None:
        """Add a delivery."""

    def conclude(self, taken: HeldDelivery, answer: Answer) -> None:
        """Settle a delivery with a known result."""

    def limit(self, size: int) -> None:
        """Set the maximum number of concurrent runs. 0 pauses."""

    def hold(self) -> None:
        """Don't start handlers until `resume` is called."""

    def resume(self) -> None:
        """Start waiting deliveries again."""

    async def wait_idle(self) -> None:
        """Wait until no handlers are running, except slow ones."""

    async def drain(self) -> None:
        """Wait until all deliveries have been handled, except slow ones."""

    async def wait_settled(self, taken: HeldDelivery) -> None:
        """Wait until a delivery has been handled."""

    def runs(self) -> Sequence[CurrentRun]:
        """Return the current runs."""

    def holds(self, session: ConsumeSession) -> bool:
        """Return True if any deliveries of the session are unsettled."""

    def disregard(self, slow: Collection[asyncio.Task[Any]]) -> None:
        """Exclude these tasks from `wait_idle` and `drain`."""

    def end_early(self, task: asyncio.Task[None], answer: Answer) -> None:
        """Interrupt a run and settle its deliveries with the given result."""

    def wind_down(self) -> int:
        """Drop deliveries that don't have to be started before shutdown. Returns how many were
        dropped.
        """

    def withdraw(self) -> list[HeldDelivery]:
        """Drop and return all deliveries that have not been started."""

    async def finish(self) -> None:
        """Wait until no handler is running."""

    async def flush(self) -> None:
        """Handle the open batch."""

    async def stop(self) -> int:
        """Interrupt running handlers. Returns how many there were."""


class OneByOne:
    """Handles deliveries one by one. Deliveries with the same key are handled in order."""

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
        self._answers: dict[asyncio.Task[Any], Answer] = {}
        """Results of runs that are being interrupted."""
        self.settled_count: int = 0

    @property
    def in_flight(self) -> int:
        return len(self._pool.running)

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
        """How many workers are blocked by held deliveries."""
        return self._settling.held_count

    @property
    def trouble(self) -> str:
        """Why the last delivery is held."""
        return self._settling.trouble

    @property
    def may_start(self) -> bool:
        return self._pool.may_start

    def submit(self, taken: HeldDelivery) -> None:
        if self._key is None:
            self._pool.submit(taken)
        else:
            # The order of the message is unknown if the key function fails, so it is a failure.
            try:
                key = self._key(taken.delivery)
                if key is not None and not isinstance(key, str | int):
                    raise TypeError(
                        f"expected a key of type str, int or None, got {type(key).__name__}"
                    )
            except FAILURES as error:
                answer = answer_for(error, self._rules)._replace(ran=False)
                self._pool.submit(taken.with_answer(answer))
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
        """Wait until no handlers are running, except slow ones."""
        await self._pool.wait_idle()

    async def drain(self) -> None:
        await self._pool.drain()

    async def wait_settled(self, taken: HeldDelivery) -> None:
        await self._pool.wait_finished(taken)

    def runs(self) -> list[CurrentRun]:
        return [CurrentRun(task, (taken,)) for task, taken in self._pool.runs()]

    def holds(self, session: ConsumeSession) -> bool:
        """Return True if any deliveries of the session are unsettled."""
        return self._settling.keeps(session) or any(one.session is session for one in self._pool)

    def disregard(self, slow: Collection[asyncio.Task[Any]]) -> None:
        """Exclude these tasks from waiting."""
        self._pool.disregard(slow)

    def end_early(self, task: asyncio.Task[None], answer: Answer) -> None:
        self._answers[task] = answer
        task.cancel()

    def wind_down(self) -> int:
        return len(self.withdraw())

    def withdraw(self) -> list[HeldDelivery]:
        return self._pool.withdraw()

    async def finish(self) -> None:
        await self._pool.join()

    async def flush(self) -> None:
        """Does nothing, because there are no batches."""

    async def stop(self) -> int:
        return len(await self._pool.stop())

    async def _process_and_close(self, taken: HeldDelivery) -> None:
        """Handle a delivery, then close its dependencies."""
        try:
            await self._process(taken)
        finally:
            if self._settled is not None:
                await self._settled(taken.delivery)

    async def _process(self, taken: HeldDelivery) -> None:
        if taken.session.ended.is_set():
            return
        time = asyncio.get_running_loop().time  # read twice for each message
        began = time()
        try:
            try:
                if self._settling.settle_copy(taken):
                    self.settled_count += 1
                    return
                answer = taken.answer or await self._run(taken.delivery)
            except asyncio.CancelledError:
                answer = self._answer_to_end()
            except FAILURES as error:
                # A bug in Hopback, a codec or a tracer. The failure plan applies.
                answer = answer_for(error)
            duration = time() - began
            if answer is DONE and self._settling.acknowledge(taken, duration):
                self.settled_count += 1
            else:
                # These are two statements because other tasks may change the counter during the
                # await.
                settled = await self._settling.conclude(taken, answer, duration)
                self.settled_count += settled
        except asyncio.CancelledError:
            self._settling.abandon(taken, time() - began, "the handler was interrupted")
            raise
        if self._observe is not None:
            self._observe(answer)

    def _answer_to_end(self) -> Answer:
        """Return the result of an interrupted run. For other runs, raise CancelledError."""
        task = asyncio.current_task()
        answer = None if task is None else self._answers.pop(task, None)
        if task is None or answer is None:
            raise asyncio.CancelledError
        task.uncancel()
        return answer
