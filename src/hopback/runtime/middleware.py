"""Middleware: what an application puts around every run of its handlers.

A middleware is an async function of the context and of `run`, which it awaits once. Returning nothing
changes nothing: the handler's outcome stands, and so does its exception if the middleware has caught
it without saying what else is to happen. No message is done because a `return` was forgotten.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from hopback.errors import InvalidDeclaration, Problem
from hopback.policy.outcome import raised_outcome
from hopback.runtime.context import Context

NextRun: TypeAlias = Callable[[], Awaitable[object]]
"""Runs what is inside, and gives back what the handler returned."""

Middleware: TypeAlias = Callable[[Context, NextRun], Awaitable[object]]
"""Around every run; an outcome that it returns takes the place of the handler's."""


def check_middleware(middleware: Middleware) -> None:
    """InvalidDeclaration unless it is an async function of the context and of what runs inside."""
    called = getattr(middleware, "__call__", None)  # noqa: B004 - the method itself is asked
    is_async = inspect.iscoroutinefunction(middleware) or inspect.iscoroutinefunction(called)
    if is_async and len(inspect.signature(middleware).parameters) == 2:
        return
    found = f"{getattr(middleware, '__name__', middleware)}{inspect.signature(middleware)}"
    problem = Problem("middleware", "async def (context: Context, run: NextRun)", found)
    raise InvalidDeclaration((problem,), where="middleware")


class _Inside:
    """What runs inside a middleware, and what came of it."""

    __slots__ = ("_run", "error", "returned", "was_run")

    def __init__(self, run: Callable[[], Awaitable[Any]]) -> None:
        self._run = run
        self.was_run = False
        self.returned: Any = None
        self.error: BaseException | None = None

    async def __call__(self) -> Any:
        if self.was_run:
            raise RuntimeError("a middleware awaited run() twice: one delivery is one run")
        self.was_run = True
        try:
            self.returned = await self._run()
        except BaseException as error:
            self.returned = raised_outcome(error)
            if self.returned is None:
                self.error = error
                raise
        return self.returned


async def run_through(
    middleware: Sequence[Middleware], context: Context, run: Callable[[], Awaitable[Any]]
) -> Any:
    """Run inside all of them; the first is the outermost."""
    for one in reversed(middleware):
        run = partial(_around, one, context, run)
    return await run()


async def _around(
    middleware: Middleware, context: Context, run: Callable[[], Awaitable[Any]]
) -> Any:
    inside = _Inside(run)
    said = await middleware(context, inside)
    if said is not None:
        return said
    if inside.error is not None:
        raise inside.error
    if not inside.was_run:
        name = getattr(middleware, "__qualname__", repr(middleware))
        raise RuntimeError(
            f"middleware {name} neither awaited run() nor returned an outcome: return Done(), "
            "Retry(…), Park(…) or Snooze(…) to say what becomes of the message"
        )
    return inside.returned
