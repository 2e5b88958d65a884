"""Middleware for handlers.

Middleware is an async function that takes `context` and `run`, and must await `run` once. If it
returns None, the handler's own outcome is used. This also applies if the handler raised an
exception that the middleware caught, so a missing return statement never marks a failed message as
done.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from hopback.errors import InvalidDeclaration, Problem
from hopback.policy.outcome import raised_outcome
from hopback.runtime.context import Context
from hopback.runtime.dependencies import is_async, show_function

NextRun: TypeAlias = Callable[[], Awaitable[object]]
"""Calls the next middleware or the handler, and returns the result of the handler."""

Middleware: TypeAlias = Callable[[Context, NextRun], Awaitable[object]]
"""A middleware. If it returns an outcome, this replaces the outcome of the handler."""


def check_middleware(middleware: Middleware) -> None:
    """Raise InvalidDeclaration if the signature is not valid for middleware."""
    if is_async(middleware) and len(inspect.signature(middleware).parameters) == 2:
        return
    found = show_function(middleware)
    if not is_async(middleware):
        found += ", which is not async"
    problem = Problem("middleware", "async def (context: Context, run: NextRun)", found)
    raise InvalidDeclaration((problem,), where="middleware")


class _Inside:
    """A call of the next middleware, along with its result or exception."""

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
    """Call `run` inside all middleware. The first one is the outermost."""
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
            "Retry(…), Park(…) or Snooze(…) to decide about the message"
        )
    return inside.returned
