"""Runs a handler on one delivery: decode, call, and turn whatever happens into an answer."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from hopback.headers import failure_from_exception
from hopback.policy.outcome import Park, Retry
from hopback.policy.rules import classify, outcome_of
from hopback.runtime.answer import DONE, Answer
from hopback.runtime.context import Context, current_context
from hopback.runtime.payload import Undecodable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hopback.message import Delivery, Message
    from hopback.observe.events import Bus
    from hopback.policy.rules import Rule
    from hopback.runtime.handler import Handler
    from hopback.topology.plan import Plan

__all__ = ["FunctionRunner", "answer_for", "is_being_cancelled", "undecodable"]


def answer_for(error: BaseException, rules: Sequence[Rule] = ()) -> Answer:
    """The answer of a run that raised: a retry or a park by the rules, with the failure's record."""
    return Answer(classify(error, rules), failure_from_exception(error), error=error)


def undecodable(error: Undecodable) -> Answer:
    """The answer for a payload that is not what the handler asks for."""
    reason = f"undecodable payload: {error}"
    return Answer(Park(reason), failure_from_exception(error), error=error)


def is_being_cancelled() -> bool:
    """Whether a CancelledError was meant for our own task: what is left is to end.

    Otherwise a handler awaited something that was cancelled, and that is a failure like others.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class FunctionRunner:
    """Runs a handler function; whatever it does, there is exactly one answer."""

    def __init__(
        self,
        handler: Handler,
        plan: Plan,
        publish: Callable[[Message], Awaitable[None]],
        bus: Bus,
    ) -> None:
        self._handler = handler
        self._plan = plan
        self._publish = publish
        self._bus = bus
        self._threads: ThreadPoolExecutor | None = None
        self._call = self._awaited if handler.is_async else self._in_thread

    async def __call__(self, delivery: Delivery) -> Answer:
        """Run it; what it returned is its outcome."""
        returned = await self.value(delivery)
        if returned is None:
            return DONE
        if isinstance(returned, Answer):
            return returned
        if inspect.iscoroutine(returned):
            returned.close()  # nobody will await it, and the reason says so better than a warning
        return Answer(outcome_of(returned))

    async def value(self, delivery: Delivery) -> Any:
        """Decode and call: what the handler returned, or the Answer to what it raised."""
        handler = self._handler
        try:
            payload = None if handler.decode is None else handler.decode(delivery.body)
        except Undecodable as error:
            return undecodable(error)
        context = Context(delivery, self._plan, self._publish)
        token = current_context.set(context)
        try:
            return await self._call(delivery, handler.arguments(payload, context))
        except _Overdue as overdue:
            return self._overdue(delivery, overdue)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # Not only Exception: a handler that calls sys.exit, or awaits what was cancelled, has
            # failed; it must neither end the service nor leave its message without an outcome.
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise
            return answer_for(error, handler.options.rules)
        finally:
            current_context.reset(token)

    async def close(self) -> None:
        """Let the threads go; those still at work end when their handler returns."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _awaited(self, delivery: Delivery, arguments: tuple[object, ...]) -> Any:
        deadline = self._handler.options.deadline
        if deadline is None:
            return await self._handler.call(*arguments)
        try:
            async with asyncio.timeout(deadline) as limit:
                return await self._handler.call(*arguments)
        except TimeoutError as error:
            if limit.expired():
                raise _Overdue(deadline) from error
            raise

    async def _in_thread(self, delivery: Delivery, arguments: tuple[object, ...]) -> Any:
        """Run it in a thread; one that is late is reported, and nothing is settled until it returns."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                self._handler.options.concurrency, thread_name_prefix=self._handler.queue
            )
        work = asyncio.get_running_loop().run_in_executor(
            self._threads, copy_context().run, _caught, self._handler.call, arguments
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

    def _overdue(self, delivery: Delivery, overdue: _Overdue) -> Answer:
        self._report(delivery, overdue.deadline, stopped=True)
        reason = f"the handler did not finish within its deadline of {overdue.deadline:g} s"
        return Answer(Retry(reason), failure_from_exception(overdue), error=overdue)

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


def _caught(
    call: Callable[..., Any], arguments: tuple[object, ...]
) -> tuple[Any, BaseException | None]:
    """What a call returned or raised: some exceptions (StopIteration) cannot cross into a future."""
    try:
        return call(*arguments), None
    except BaseException as error:
        return None, error


class _Overdue(Exception):
    """The handler was stopped at its deadline."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        super().__init__(f"stopped after {deadline:g} s")
