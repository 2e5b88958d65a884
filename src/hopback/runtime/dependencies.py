"""Dependency injection for handlers.

A parameter `session: Annotated[Session, Depends(open_session)]` receives the value that the
provider returns or yields. Providers are resolved once, when the service is created.
"""

from __future__ import annotations

import inspect
import logging
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from hopback.errors import InvalidDeclaration, Problem
from hopback.policy.outcome import FAILURES
from hopback.runtime.context import Context
from hopback.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping


Provider: TypeAlias = "Callable[..., Any]"
"""A function, coroutine function or generator that yields once."""

Overrides: TypeAlias = "Mapping[Provider, Provider]"
"""Maps providers to their replacements."""

_LOG = logging.getLogger("hopback.runtime")

_OTHER_SCOPES = {
    "app": "application",
    "function": "run",
    "message": "delivery",
    "request": "delivery",
    "session": "application",
    "singleton": "application",
}
"""Scopes of other libraries, used for hints."""


class Scope(StrEnum):
    """How long a value is kept."""

    RUN = "run"
    """One run of a handler. The value is closed before the message is settled, so an error while
    closing fails the run. Useful for transactions.
    """
    DELIVERY = "delivery"
    """One delivery. The value is closed after the message is settled."""
    APPLICATION = "application"
    """The whole application. The value is created before the first message."""


@dataclass(frozen=True, slots=True)
class Depends:
    """Declares the provider of a parameter: `Annotated[Session, Depends(open_session)]`."""

    provider: Provider
    scope: Scope | str = Scope.DELIVERY

    def __post_init__(self) -> None:
        given: object = self.provider
        if not callable(given):
            problem = Problem("provider", "a function, not its result", repr(given))
            raise InvalidDeclaration((problem,), where="Depends")
        if self.scope not in [*Scope]:
            meant = _OTHER_SCOPES.get(str(self.scope), "")
            hint = f" (did you mean {meant}?)" if meant else did_you_mean(str(self.scope), Scope)
            problem = Problem("scope", ", ".join(Scope), f"{self.scope!r}{hint}")
            raise InvalidDeclaration((problem,), where=f"Depends({_name(self.provider)})")
        object.__setattr__(self, "scope", Scope(self.scope))


@dataclass(frozen=True, slots=True)
class Need:
    """A parameter that is filled by a provider. If `depends` is None, it receives the context."""

    name: str
    depends: Depends | None


def needs_of(call: Callable[..., Any], where: str) -> tuple[Need, ...]:
    """Return the parameters of a function that have a provider."""
    hints = hints_of(call, where)
    found = []
    for name, parameter in inspect.signature(call).parameters.items():
        if isinstance(parameter.default, Depends):
            told = f"{name}: Annotated[…, Depends({_name(parameter.default.provider)})]"
            problem = Problem(name, f"the provider in its annotation: `{told}`", "it as a default")
            raise InvalidDeclaration((problem,), where=where)
        hint = hints.get(name)
        further = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        found += [Need(name, one) for one in further if isinstance(one, Depends)][:1]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _ProviderCall:
    provider: Provider
    opens: Callable[..., Any] | None
    """Creates a context manager from a generator function."""
    is_async: bool
    scope: Scope
    needs: tuple[tuple[str, Provider | None], ...]


@dataclass(slots=True)
class Opened:
    """The values created for a single run."""

    values: dict[str, Any] = field(default_factory=dict)
    run: AsyncExitStack = field(default_factory=AsyncExitStack)
    delivery: AsyncExitStack = field(default_factory=AsyncExitStack)
    error: BaseException | None = None
    """The exception raised by the handler. Passed to the providers, so that they can roll back."""

    async def finish(self, run: Awaitable[Any]) -> Any:
        """Await a run and close the values with the scope `run`.

        A provider that catches the exception of the handler does not make the run successful.
        """
        try:
            async with self.run:
                try:
                    returned = await run
                except BaseException as error:
                    self.error = error
                    raise
        except BaseException as error:
            self.error = error
            raise
        if self.error is not None:
            raise self.error
        return returned

    async def close_delivery_scope(self) -> None:
        """Close the values with the scope `delivery`. Errors are logged."""
        error = self.error
        kind, trace = (None, None) if error is None else (type(error), error.__traceback__)
        try:
            await self.delivery.__aexit__(kind, error, trace)
        except FAILURES:
            _LOG.exception("a dependency could not be closed after its delivery was settled")


class Injector:
    """Provides the arguments of a function."""

    def __init__(
        self,
        needs: Iterable[Need],
        *,
        where: str,
        overrides: Overrides | None = None,
        has_context: bool = True,
    ) -> None:
        self._where = where
        self._overrides = overrides or {}
        self._has_context = has_context
        self._steps: dict[Provider, _ProviderCall] = {}
        self._parameters: list[tuple[str, Provider]] = []
        for need in needs:
            if need.depends is not None:
                self._parameters.append((need.name, self._plan(need.depends, ())))
        self._application: dict[Provider, Any] = {}

    @property
    def waits_for_settlement(self) -> bool:
        """Whether any value has to stay open until the message is settled."""
        steps = self._steps.values()
        return any(one.opens is not None and one.scope is Scope.DELIVERY for one in steps)

    async def start(self, made: dict[Provider, Any], stack: AsyncExitStack) -> None:
        """Create the values with the scope `application`. They are shared by all functions."""
        self._application = made
        for step in self._steps.values():
            if step.scope is Scope.APPLICATION and step.provider not in made:
                made[step.provider] = await _call(step, made, None, stack)

    async def open(self, context: Context | None) -> Opened:
        """Create the values for a run. If a provider fails, values that were already created are
        closed.
        """
        opened = Opened()
        made = dict(self._application)
        try:
            for step in self._steps.values():
                if step.scope is not Scope.APPLICATION or step.provider not in made:
                    stack = opened.run if step.scope is Scope.RUN else opened.delivery
                    made[step.provider] = await _call(step, made, context, stack)
        except BaseException as error:
            try:
                await opened.run.__aexit__(type(error), error, error.__traceback__)
            finally:
                await opened.delivery.__aexit__(type(error), error, error.__traceback__)
            raise
        opened.values = {name: made[provider] for name, provider in self._parameters}
        return opened

    def _plan(self, depends: Depends, above: tuple[Provider, ...]) -> Provider:
        """Add a provider after all of its dependencies."""
        provider = self._overrides.get(depends.provider, depends.provider)
        scope = Scope(depends.scope)
        if provider in above:
            ring = " → ".join(_name(one) for one in (*above, provider))
            self._refuse("dependencies", "providers that do not need themselves", ring)
        known = self._steps.get(provider)
        if known is not None:
            if known.scope is not scope:
                found = f"{known.scope} and {scope}"
                self._refuse(_name(provider), "one scope", found)
            return provider
        needs: list[tuple[str, Provider | None]] = []
        for need in _provider_needs(provider, self._where):
            if need.depends is None:
                if scope is Scope.APPLICATION:
                    expected = "no Context, because its value is made before any delivery"
                    self._refuse(_name(provider), expected, "one. Give it scope='run'")
                if not self._has_context:
                    expected = "no Context, because its value is made for several deliveries"
                    self._refuse(_name(provider), expected, "one")
                needs.append((need.name, None))
                continue
            self._check_scopes(provider, scope, need.depends)
            needs.append((need.name, self._plan(need.depends, (*above, provider))))
        self._steps[provider] = _step(provider, scope, tuple(needs))
        return provider

    def _check_scopes(self, provider: Provider, scope: Scope, inner: Depends) -> None:
        """Reject a provider whose value would outlive one of its dependencies."""
        if scope is Scope.RUN or inner.scope in (scope, Scope.APPLICATION):
            return
        name, needed = _name(provider), _name(inner.provider)
        if scope is Scope.APPLICATION:
            expected = (
                "only providers of scope application, because its value is shared by all runs"
            )
            found = f"{needed}, which is made for each {inner.scope}"
        else:
            expected = "no provider of scope run, because its value is used until the settlement"
            found = f"{needed}, which is closed before the settlement"
        remedy = f"Give {name} scope={str(inner.scope)!r}, or {needed} scope={str(scope)!r}"
        self._refuse(name, expected, f"{found}. {remedy}")

    def _refuse(self, place: str, expected: str, found: str) -> None:
        raise InvalidDeclaration((Problem(place, expected, found),), where=self._where)


def check_overrides(overrides: Overrides, needs: Iterable[Need], *, where: str) -> None:
    """Raise InvalidDeclaration if an override would have no effect.

    Providers needed by a replaced provider or by its replacement also count as used.
    """
    problems = [
        Problem("override", f"a function that replaces {_name(provider)}", repr(replacement))
        for provider, replacement in dict[Provider, object](overrides).items()
        if not callable(replacement)
    ]
    used = set() if problems else _reachable_providers(overrides, needs, where)
    for provider in () if problems else overrides:
        if provider not in used:
            known = sorted(map(_name, used))
            expected = f"a provider of this application ({', '.join(known) or 'it has none'})"
            found = f"{getattr(provider, '__module__', '')}.{_name(provider)}"
            problems.append(Problem("override", expected, found))
    if problems:
        raise InvalidDeclaration(tuple(problems), where=where)


def _reachable_providers(overrides: Overrides, needs: Iterable[Need], where: str) -> set[Provider]:
    """Return all required providers, with or without the overrides."""
    used: set[Provider] = set()
    waiting = [need.depends.provider for need in needs if need.depends is not None]
    while waiting:
        provider = waiting.pop()
        if provider in used:
            continue
        used.add(provider)
        for one in {provider, overrides.get(provider, provider)}:
            needed = _provider_needs(one, where)
            waiting += [need.depends.provider for need in needed if need.depends is not None]
    return used


async def _call(
    step: _ProviderCall,
    made: Mapping[Provider, Any],
    context: Context | None,
    stack: AsyncExitStack,
) -> Any:
    given = {name: context if inner is None else made[inner] for name, inner in step.needs}
    if step.opens is None:
        value = step.provider(**given)
        return await value if step.is_async else value
    if step.is_async:
        return await stack.enter_async_context(step.opens(**given))
    return stack.enter_context(step.opens(**given))


def _step(
    provider: Provider, scope: Scope, needs: tuple[tuple[str, Provider | None], ...]
) -> _ProviderCall:
    if inspect.isasyncgenfunction(provider):
        return _ProviderCall(provider, asynccontextmanager(provider), True, scope, needs)
    if inspect.isgeneratorfunction(provider):
        return _ProviderCall(provider, contextmanager(provider), False, scope, needs)
    return _ProviderCall(provider, None, is_async(provider), scope, needs)


def _provider_needs(provider: Provider, where: str) -> Iterable[Need]:
    place = f"{where}, provider {_name(provider)}"
    own = {need.name: need for need in needs_of(provider, place)}
    hints = hints_of(provider, place)
    for name, parameter in inspect.signature(provider).parameters.items():
        if name in own:
            yield own[name]
        elif hints.get(name) is Context:
            yield Need(name, None)
        elif parameter.default is parameter.empty and parameter.kind not in _MANY:
            expected = f"a provider (`{name}: Annotated[…, Depends(…)]`), a Context, or a default"
            raise InvalidDeclaration((Problem(name, expected, "neither"),), where=place)


_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def hints_of(call: Callable[..., Any], where: str) -> dict[str, Any]:
    """Resolve the annotations of the parameters and ignore the return annotation."""
    inner = getattr(call, "func", call)  # unwrap partial
    if inspect.isclass(inner):
        target: Any = inner.__init__
    else:
        target = inner if inspect.isroutine(inner) else type(inner).__call__
    target = inspect.unwrap(target)
    try:
        written = {n: a for n, a in target.__annotations__.items() if n != "return"}
        bare = SimpleNamespace(__annotations__=written)
        return get_type_hints(bare, target.__globals__, include_extras=True)
    except NameError as error:
        problem = Problem("annotations", "names that its module defines", str(error))
        raise InvalidDeclaration((problem,), where=where) from error
    except AttributeError:
        return {}  # implemented in C, so there are no annotations


def show_function(call: Callable[..., Any]) -> str:
    """Format the signature of a function as it appears in the source code. Used in errors."""
    keyword = "async def" if is_async(call) or inspect.isasyncgenfunction(call) else "def"
    return f"{keyword} {getattr(call, '__name__', call)}{inspect.signature(call)}"


def is_async(call: Callable[..., Any]) -> bool:
    """Return True if a function or callable object must be awaited."""
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
        getattr(call, "__call__", None)  # noqa: B004 - the method itself is asked
    )


def _name(provider: Provider) -> str:
    return getattr(provider, "__qualname__", None) or repr(provider)
