"""Handlers and their options."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Never,
    NoReturn,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from hopback.durations import Duration, parse_wait_ms, read_seconds
from hopback.errors import InvalidDeclaration, InvalidTopology, Problem
from hopback.policy.breaker import BreakerPolicy
from hopback.policy.outcome import MENU, Outcome, Rule, check_rules
from hopback.runtime.codecs import Codec
from hopback.runtime.context import Context
from hopback.runtime.dependencies import (
    Injector,
    Need,
    hints_of,
    is_async,
    needs_of,
    show_function,
)
from hopback.runtime.payload import Decoder, decoder_for, guard
from hopback.text import did_you_mean

if TYPE_CHECKING:
    from hopback.fields import FieldValue
    from hopback.message import Delivery

P = ParamSpec("P")
R = TypeVar("R")


def blames_rows(error: Exception) -> bool:
    """Return True if single messages may have caused the error.

    Connection errors and timeouts affect the whole batch.
    """
    return not isinstance(error, OSError | TimeoutError)


_AHEAD_S = 10
"""Maximum number of seconds of work to prefetch if there is a rate limit."""

_LONGEST_TURN_S = 300
"""Maximum number of seconds that a delivery waits for its batch or its turn in a rate limit. Much
shorter than the consumer timeout of RabbitMQ (30 minutes by default), which would requeue it.
"""


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Options of a batch handler.

    Attributes:
        size: Maximum number of messages in a batch.
        wait: Maximum time to wait for a batch to fill up, in seconds.
        batchers: Maximum number of batches that are handled concurrently.
        isolates: Called with an exception. If it returns True, the batch is split to find the messages that
            caused it.
        deadline: Maximum duration of a call, in seconds.
        breaker: Circuit breaker settings.
    """

    size: int = 1000
    wait: float = 1.0
    batchers: int = 2
    isolates: Callable[[Exception], bool] = blames_rows
    rules: tuple[Rule, ...] = ()
    deadline: float | None = None
    breaker: BreakerPolicy | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        require("size", _is_number(self.size, 1), "a whole number from 1", self.size)
        fits = 0 <= self.wait <= _LONGEST_TURN_S
        expected = (
            f"0 to {_LONGEST_TURN_S} seconds, because RabbitMQ limits how long a message is unacked"
        )
        require("wait", fits, expected, self.wait)
        require("batchers", _is_number(self.batchers, 1), "a whole number from 1", self.batchers)
        if self.rate is not None:
            slow = self.size / self.rate > _LONGEST_TURN_S
            expected = f"at most {int(_LONGEST_TURN_S * self.rate)} messages, those of 5 minutes"
            require("size", not slow, f"{expected} at this rate", self.size)
        require("isolates", callable(self.isolates), "a function of an exception", self.isolates)
        _require_common(self)

    @property
    def window(self) -> int:
        """The prefetch count. Allows one batch to be collected while the others are handled."""
        if self.rate is not None:
            return min(2 * self.size, 65_535)
        return min(self.size * (self.batchers + 1), 65_535)


@dataclass(frozen=True, slots=True)
class BatchHandler:
    """A batch handler. Called with a list of payloads.

    `prepare` is called for each message before it is added to a batch. Its return value replaces
    the payload. If it returns an outcome, the message is settled separately.
    """

    queue: str
    call: Callable[..., Awaitable[Sequence[object] | None]]
    decode: Decoder
    options: BatchOptions
    prepare: Handler | None = None
    needs: tuple[Need, ...] = ()
    name: str = ""
    """The name of the parameter for the payloads."""
    wanted: Any = None
    """The type of a payload."""


def deadline_seconds(deadline: Duration | None, *, where: str) -> float | None:
    """Convert a deadline to seconds. None means no deadline."""
    if deadline is None:
        return None
    return read_seconds(deadline, "deadline", where=where, zero=False)


def require(
    option: str, fits: bool, expected: str, got: object, *, where: str = "handler options"
) -> None:
    """Raise InvalidDeclaration if an option is invalid."""
    if not fits:
        raise InvalidDeclaration((Problem(option, expected, repr(got)),), where=where)


_OTHER_NAMES = {
    "max_attempts": "attempts",
    "max_retries": "attempts",
    "retries": "retry",
    "timeout": "deadline",
    "type": "message_type",
    "workers": "concurrency",
}
"""Names of options in other libraries, used for hints."""


def explain_options(declare: Callable[P, R]) -> Callable[P, R]:
    """Decorator that suggests the correct name if an option is unknown."""
    known = list(inspect.signature(declare).parameters)[1:]

    @wraps(declare)
    def call(*given: P.args, **options: P.kwargs) -> R:
        for name in options:
            if name not in known:
                right = _OTHER_NAMES.get(name, "")
                hint = f" (did you mean {right}?)" if right in known else did_you_mean(name, known)
                raise TypeError(
                    f"{declare.__name__}: unexpected option {name!r}{hint}: "
                    f"expected {', '.join(known)}"
                )
        return declare(*given, **options)

    return call


@contextmanager
def locate_errors(where: str) -> Iterator[None]:
    """Context manager that adds the location to errors raised for invalid declarations."""
    try:
        yield
    except (InvalidDeclaration, InvalidTopology) as error:
        raise InvalidDeclaration(error.problems, where=where) from None


def _is_number(value: object, least: int, most: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _require_common(options: BatchOptions | HandlerOptions) -> None:
    """Reject options that would otherwise only fail once a message is handled."""
    late = options.deadline is None or 0 < options.deadline < math.inf
    require("deadline", late, "more than 0 seconds", options.deadline)
    fits = options.breaker is None or isinstance(options.breaker, BreakerPolicy)
    require("breaker", fits, "a BreakerPolicy, or None", options.breaker)
    check_rules(options.rules, where="handler options")


def require_queue_name(decorator: str, queue: object) -> None:
    """Raise InvalidDeclaration if the decorator was used without a queue name."""
    if isinstance(queue, str):
        return
    name = getattr(queue, "__name__", None)
    got = repr(queue) if name is None else f"the function {name} (the parentheses are missing)"
    line = f'`@app.{decorator}("{name or "orders"}", retry=["30s", "5m"])`'
    raise InvalidDeclaration(
        (Problem("queue", f"the name of a queue, as in {line}", got),), where=f"app.{decorator}"
    )


def waits_ms(waits: Iterable[object] | int, *, where: str) -> list[int]:
    """Convert retry delays to milliseconds. Raises InvalidDeclaration if it is not a list."""
    if isinstance(waits, str | int):
        example = f"[{waits!r}]" if isinstance(waits, str) else "['30s', '5m']"
        runs = "" if isinstance(waits, str) else " (`attempts=` is the number of runs)"
        expected = f"a list of waits, as in `retry={example}`{runs}"
        raise InvalidDeclaration((Problem("retry", expected, repr(waits)),), where=where)
    found: list[int] = []
    last: object = None
    for number, wait in enumerate(waits):
        option = f"retry[{number}]"
        read_seconds(wait, option, where=where, zero=False)  # type: ignore[arg-type]
        found.append(parse_wait_ms(wait))  # type: ignore[arg-type]
        if number and found[-1] < found[-2]:
            expected = f"a wait no shorter than the one before it ({last!r})"
            raise InvalidDeclaration((Problem(option, expected, repr(wait)),), where=where)
        last = wait
    return found


@dataclass(frozen=True, slots=True)
class HandlerOptions:
    """Options of a handler.

    Attributes:
        concurrency: Maximum number of concurrent runs.
        prefetch: The prefetch count. Derived from `concurrency` by default.
        deadline: Maximum duration of a run, in seconds. Coroutines are cancelled and the message is
            retried. Threads cannot be stopped, so this is only reported.
        key: A function that returns the key of a message: text, an integer or None. Messages with
            the same key are handled in order.
        breaker: Circuit breaker settings.
        rate: Maximum number of messages per second.
    """

    concurrency: int = 10
    prefetch: int | None = None
    deadline: float | None = None
    key: Callable[[Delivery], FieldValue] | None = None
    breaker: BreakerPolicy | None = None
    rules: tuple[Rule, ...] = ()
    rate: float | None = None

    def __post_init__(self) -> None:
        fits = _is_number(self.concurrency, 1)
        require("concurrency", fits, "a whole number from 1", self.concurrency)
        window = self.prefetch is None or _is_number(self.prefetch, 1, 65_535)
        require("prefetch", window, "a number from 1 to 65535", self.prefetch)
        if self.prefetch is not None and self.rate is not None:
            slow = self.prefetch / self.rate > _LONGEST_TURN_S
            expected = f"at most {int(_LONGEST_TURN_S * self.rate)} messages, those of 5 minutes"
            require("prefetch", not slow, f"{expected} at this rate", self.prefetch)
        fits = self.key is None or callable(self.key)
        require("key", fits, "a function of the delivery, or None", self.key)
        _require_common(self)

    @property
    def window(self) -> int:
        """The prefetch count, which has to be large enough to keep all slots busy."""
        if self.prefetch is not None:
            return self.prefetch
        usual = min(max(2 * self.concurrency, 20), 65_535)
        return usual if self.rate is None else min(usual, math.ceil(self.rate * _AHEAD_S))


@dataclass(frozen=True, slots=True)
class Output:
    """A message published by a handler, for AsyncAPI documents: `publishes=[Output(…)]`.

    `routing_key` may be a pattern. This is only used for documentation.
    """

    routing_key: str
    payload: Any = Any
    exchange: str = ""
    message_type: str | None = None


@dataclass(frozen=True, slots=True)
class Handler:
    """The handler of a queue. `decode` is None if the function does not take a payload."""

    queue: str
    call: Callable[..., Any]
    decode: Decoder | None
    takes_context: bool
    is_async: bool
    options: HandlerOptions
    needs: tuple[Need, ...] = ()
    """Parameters that have a provider."""
    names: tuple[str, ...] = ()
    """Names of the other parameters."""
    wanted: Any = None
    """The type of the payload, or None if the codec is fixed."""
    replies: bool = False
    """True if the return value is sent as a reply."""
    publishes: tuple[Output, ...] = ()

    def arguments(self, payload: object, context: Context) -> tuple[object, ...]:
        given = () if self.decode is None else (payload,)
        return (*given, context) if self.takes_context else given


def inspect_handler(
    queue: str,
    call: Callable[..., Any],
    options: HandlerOptions,
    *,
    makes_row: bool = False,
    replies: bool = False,
) -> Handler:
    """Create a handler from a function.

    Args:
        queue: The name of the queue.
        call: The function.
        options: Options of the handler.
        makes_row: True for the `prepare` function of a batch. It may return any value.
        replies: If True, the return value is sent as a reply.

    Raises:
        InvalidDeclaration: If the signature is not supported.
    """
    where = f"handler of queue {queue!r}"
    _require_function(call, where)
    needs = needs_of(call, where)
    Injector(needs, where=where)  # check the dependencies
    provided = {need.name for need in needs}
    signature = inspect.signature(call).parameters.values()
    parameters = [one for one in signature if one.name not in provided]
    hints = _hints(call, where)
    takes_context = bool(parameters) and _is_context(parameters[-1], hints)
    payload = parameters[:-1] if takes_context else parameters
    kinds = (
        _NAMED if needs else _POSITIONAL
    )  # if there are dependencies, arguments are passed by name
    if len(payload) > 1 or any(one.kind not in kinds for one in parameters):
        expected = (
            "(payload), (payload, context: Context) or (context: Context), and "
            "further parameters as Annotated[T, Depends(provider)]"
        )
        found = show_function(call)
        if any(_is_context(one, hints) for one in payload):
            found += ". Put the payload first"
        raise InvalidDeclaration((Problem("parameters", expected, found),), where=where)
    if not makes_row and not replies:
        _require_outcome(call, hints, where)
    names = tuple(one.name for one in parameters)
    has_await = is_async(call)
    if not payload:
        return Handler(
            queue, call, None, takes_context, has_await, options, needs, names, replies=replies
        )
    wanted: Any = hints.get(payload[0].name, Any)
    fixed = _codec_of(hints_of(call, where).get(payload[0].name))
    if fixed is not None:
        decode, wanted = guard(fixed.decoder(wanted)), None
    else:
        decode = _decoder(payload[0], hints, where)
    return Handler(
        queue, call, decode, takes_context, has_await, options, needs, names, wanted, replies
    )


def inspect_batch_handler(
    queue: str,
    call: Callable[..., Any],
    options: BatchOptions,
    prepare: Handler | None = None,
) -> BatchHandler:
    """Create a batch handler from an async function with a list parameter."""
    where = f"batch handler of queue {queue!r}"
    _require_function(call, where)
    needs = needs_of(call, where)
    Injector(needs, where=where, has_context=False)
    provided = {need.name for need in needs}
    signature = inspect.signature(call).parameters.values()
    parameters = [one for one in signature if one.name not in provided]
    wanted = _hints(call, where).get(parameters[0].name, list) if parameters else None
    if len(parameters) != 1 or not is_async(call) or not _is_list_type(wanted):
        found = show_function(call)
        raise InvalidDeclaration(
            (Problem("signature", "async def (payloads: list[T])", found),), where=where
        )
    name = parameters[0].name
    if prepare is not None:
        return BatchHandler(queue, call, bytes, options, prepare, needs, name)
    item = (*get_args(wanted), Any)[0] if get_origin(wanted) in (list, Sequence) else Any
    try:
        decode = decoder_for(item)
    except TypeError as error:
        problem = Problem(
            parameters[0].name, "a list of a type that a payload can be decoded into", str(error)
        )
        raise InvalidDeclaration((problem,), where=where) from error
    return BatchHandler(queue, call, decode, options, None, needs, name, item)


def _require_function(call: Callable[..., Any], where: str) -> None:
    """Reject other objects, and generator functions, because their body would never run."""
    if not callable(call):
        raise InvalidDeclaration((Problem("handler", "a function", repr(call)),), where=where)
    for function in (call, getattr(call, "__call__", None)):  # noqa: B004 - the method itself
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            expected = "a function without `yield`, which belongs in a provider of `Depends(…)`"
            problem = Problem("handler", expected, show_function(call))
            raise InvalidDeclaration((problem,), where=where)


def _is_list_type(annotation: object) -> bool:
    """Return True if the parameter accepts a list: `list[T]`, a base class such as `Sequence[T]`,
    or `Any`.
    """
    base = get_origin(annotation) or annotation
    return base is Any or (isinstance(base, type) and issubclass(list, base))


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _hints(call: Callable[..., Any], where: str) -> dict[str, Any]:
    """Return the resolved annotations. Raises InvalidDeclaration if one cannot be resolved."""
    # Look at the function inside a partial, or at `__call__` of an object.
    inner = getattr(call, "func", None)
    called = inner if callable(inner) else type(call).__call__
    try:
        return get_type_hints(call if inspect.isroutine(call) else called)
    except NameError as error:
        problem = Problem("annotations", "names that the handler's module defines", str(error))
        raise InvalidDeclaration((problem,), where=where) from error


def _require_outcome(call: Callable[..., Any], hints: dict[str, Any], where: str) -> None:
    """Check that the return annotation is an outcome.

    A handler that returns anything else would cause its messages to be dead-lettered.
    """
    if not _may_be_outcome(hints.get("return", Any)):
        found = show_function(call)
        expected = (
            f"{MENU}: publish a result with `await context.publish(...)` and annotate the handler "
            "`-> None`, or send it as the reply with `replies=True`"
        )
        raise InvalidDeclaration((Problem("return value", expected, found),), where=where)


def _may_be_outcome(hint: Any) -> bool:
    """Return True if the annotated type can be an outcome."""
    if get_origin(hint) in (Union, UnionType):
        return all(map(_may_be_outcome, get_args(hint)))
    if hint in (None, type(None), Any, object, NoReturn, Never) or isinstance(hint, TypeVar):
        return True
    return isinstance(hint, type) and issubclass(hint, get_args(Outcome))


def _is_context(parameter: inspect.Parameter, hints: dict[str, Any]) -> bool:
    return hints.get(parameter.name) is Context or (
        parameter.name == "context" and parameter.name not in hints
    )


def _codec_of(hint: Any) -> Codec | None:
    """Return the codec of `Annotated[T, codec]`, which takes precedence over the content type."""
    further = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((one for one in further if isinstance(one, Codec)), None)


def _decoder(parameter: inspect.Parameter, hints: dict[str, Any], where: str) -> Decoder:
    """Return the decoder for the payload. Accepts any JSON if there is no annotation."""
    try:
        return decoder_for(hints.get(parameter.name, Any))
    except TypeError as error:
        problem = Problem(parameter.name, "a type that a payload can be decoded into", str(error))
        raise InvalidDeclaration((problem,), where=where) from error
