"""Runs a handler on one delivery: decode, call, and turn whatever happens into an answer."""

from __future__ import annotations

import asyncio
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
    from collections.abc import Awaitable, Callable

    from hopback.message import Delivery, Message
    from hopback.observe.events import Bus
    from hopback.runtime.handler import Handler
    from hopback.topology.plan import Plan

__all__ = ["FunctionRunner"]


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
        """Decode and call; an exception becomes a retry or a park by the handler's rules."""
        handler = self._handler
        try:
            payload = None if handler.decode is None else handler.decode(delivery.body)
        except Undecodable as error:
            return Answer(Park(f"undecodable payload: {error}"), failure_from_exception(error))
        context = Context(delivery, self._plan, self._publish)
        token = current_context.set(context)
        try:
            returned = await self._call(delivery, handler.arguments(payload, context))
        except _Overdue as overdue:
            return self._overdue(delivery, overdue)
        except Exception as error:
            return Answer(classify(error, handler.options.rules), failure_from_exception(error))
        finally:
            current_context.reset(token)
        return DONE if returned is None else Answer(outcome_of(returned))

    async def close(self) -> None:
        """Let the threads go; those still at work end when their handler returns."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)

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
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(
            self._threads, copy_context().run, self._handler.call, *arguments
        )
        deadline = self._handler.options.deadline
        if deadline is not None:
            finished, _ = await asyncio.wait({work}, timeout=deadline)
            if not finished:
                self._report(delivery, deadline, stopped=False)
        return await asyncio.shield(work)

    def _overdue(self, delivery: Delivery, overdue: _Overdue) -> Answer:
        self._report(delivery, overdue.deadline, stopped=True)
        reason = f"the handler did not finish within its deadline of {overdue.deadline:g} s"
        return Answer(Retry(reason), failure_from_exception(overdue))

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


class _Overdue(Exception):
    """The handler was stopped at its deadline."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        super().__init__(f"stopped after {deadline:g} s")
