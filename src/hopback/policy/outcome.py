"""The outcomes of a handler.

Handlers can return or raise an outcome. Other return values, exceptions and HTTP status codes are
converted to outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import FrozenInstanceError, dataclass
from enum import StrEnum
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    Self,
    TypeAlias,
    TypeGuard,
    assert_never,
)

from hopback.durations import Duration, duration_seconds, parse_wait_ms
from hopback.errors import InvalidDeclaration, Problem
from hopback.headers import Failure, type_and_message
from hopback.policy import decision as decided

if TYPE_CHECKING:
    from hopback.policy.decision import Decision


def _read(duration: Duration) -> float:
    """Convert a duration to seconds.

    Invalid values are returned unchanged, because they are rejected later with a list of valid
    outcomes.
    """
    try:
        return duration_seconds(duration)
    except ValueError:
        return duration  # type: ignore[return-value]


class _Raisable(BaseException):
    """Base class for outcomes. They are immutable and can be returned or raised.

    Derives from BaseException, so that `except Exception` in a handler does not catch outcomes.
    """

    __slots__ = ()

    def _names(self) -> tuple[str, ...]:
        return getattr(self, "__match_args__", ())

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self._names())

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._names())
        return f"{type(self).__name__}({fields})"

    def __str__(self) -> str:
        return getattr(self, "reason", "") or repr(self)

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), self._values()

    def __setattr__(self, name: str, value: object) -> None:
        # allow attributes that are set by Python, like `__traceback__`
        if name in self._names():
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super().__setattr__(name, value)


_set_field = object.__setattr__


class Done(_Raisable):
    """The message was handled. Returning None has the same effect."""

    __slots__ = ()

    def __init__(self) -> None: ...


class Retry(_Raisable):
    """The message could not be handled and should be retried later.

    If `after` is given, the message waits in the smallest retry tier that is long enough. If no
    tier is, it uses the delay queues, or the longest tier if they are not declared.
    """

    __slots__ = ("after", "reason")
    __match_args__: Final = ("reason", "after")

    reason: str
    after: float | None
    """Seconds. The argument can also be a string such as `"2h"` or a timedelta."""

    def __init__(
        self, reason: str = "the handler asked for a retry", after: Duration | None = None
    ) -> None:
        _set_field(self, "reason", reason)
        _set_field(self, "after", None if after is None else _read(after))


class Park(_Raisable):
    """Move the message to the dead-letter queue without further retries."""

    __slots__ = ("reason",)
    __match_args__: Final = ("reason",)

    reason: str

    def __init__(self, reason: str) -> None:
        _set_field(self, "reason", reason)


class Snooze(_Raisable):
    """Deliver the message again after `delay`. Does not count as an attempt."""

    __slots__ = ("delay",)
    __match_args__: Final = ("delay",)

    delay: float
    """Seconds. The argument can also be a string such as `"2h"` or a timedelta."""

    def __init__(self, delay: Duration) -> None:
        _set_field(self, "delay", _read(delay))


Outcome: TypeAlias = Done | Retry | Park | Snooze

OUTCOMES = (Done, Retry, Park, Snooze)
"""All outcomes, for use with `except`."""

FAILURES = (Exception, *OUTCOMES)
"""Exceptions and outcomes that functions of the user may raise."""


TOO_EARLY = 425
"""The HTTP status for an event that is not due yet."""


class ConsumerStatus(StrEnum):
    """The names of outcomes on the event bus."""

    ACK = "ACK"
    DROP = "DROP"
    REQUEUE = "REQUEUE"


def outcome_for_status(
    status: int, *, due_in: float = 0.0, retry_after: float | None = None
) -> Outcome:
    """Convert an HTTP status to an outcome.

    2xx means done. 425 means that it is too early, so the event is snoozed for `due_in` seconds.
    All other statuses are retried.
    """
    if 200 <= status <= 299:
        return Done()
    if status == TOO_EARLY:
        return Snooze(due_in)
    return Retry(f"HTTP {status}", retry_after)


def consumer_status(decision: Decision) -> ConsumerStatus | None:
    """Convert a decision to a consumer status.

    Dead-lettered messages are reported as acked. Returns None if the delivery is not settled.
    """
    match decision:
        case decided.Ack() | decided.Park():
            return ConsumerStatus.ACK
        case decided.Retry():
            return ConsumerStatus.DROP
        case decided.Requeue():
            return ConsumerStatus.REQUEUE
        case decided.Keep():
            return None
        case _:
            assert_never(decision)


MENU = "None, Done(), Retry(reason, after=None), Park(reason), Snooze(delay) or a ConsumerStatus"
"""The valid return values of a handler, for errors."""
_FIELDS = "a reason that is a text, and a wait like 30s, 5m or 1h30m"
"""The valid fields of an outcome, for errors."""


_REQUEUE_S = 2.0
"""Maximum delay of a requeue on the event bus in seconds. The plan selects a random fraction of it.
"""


_STATUSES: dict[ConsumerStatus, Outcome] = {
    ConsumerStatus.ACK: Done(),
    ConsumerStatus.DROP: Retry("the handler returned DROP"),
    ConsumerStatus.REQUEUE: Snooze(_REQUEUE_S),
}


class Verdict(StrEnum):
    """What a rule does with a message."""

    RETRY = "retry"
    PARK = "park"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for handling exceptions.

    Args:
        exception: The exception type, or a tuple of types.
        verdict: `"park"` or `"retry"`.
        when: A function that is called with the exception. The rule only applies if it returns
            True.
        after: The minimum delay before the next attempt. If the exception has an attribute `after`
            or `retry_after`, that is used instead.

    Raises:
        InvalidDeclaration: If a value is invalid.
    """

    exception: type[BaseException] | tuple[type[BaseException], ...]
    verdict: Verdict | Literal["retry", "park"]
    when: Callable[[BaseException], bool] | None = None
    after: Duration | None = None

    def __post_init__(self) -> None:
        problems = []
        found: Any = self.exception
        kinds = found if isinstance(found, tuple) else (found,)
        if not kinds or not all(
            isinstance(one, type) and issubclass(one, BaseException) for one in kinds
        ):
            expected = "an exception class or a tuple of exception classes"
            problems.append(Problem("exception", expected, repr(self.exception)))
        try:
            object.__setattr__(self, "verdict", Verdict(self.verdict))
        except ValueError:
            expected = " or ".join(f'"{one}"' for one in Verdict)
            problems.append(Problem("verdict", expected, repr(self.verdict)))
        when: Any = self.when
        if when is not None and not callable(when):
            problems.append(Problem("when", "a function of the exception", repr(when)))
        if self.after is not None:
            try:
                parse_wait_ms(self.after)
            except ValueError as error:
                expected, _, got = str(error).removeprefix("expected ").rpartition(", got ")
                problems.append(Problem("after", expected, got))
        if problems:
            raise InvalidDeclaration(tuple(problems), where="rule")


def check_rules(rules: object, *, where: str) -> tuple[Rule, ...]:
    """Check that all values are rules, and return them as a tuple.

    Raises:
        InvalidDeclaration: If a value is not a `Rule`.
    """
    is_list = isinstance(rules, Iterable) and not isinstance(rules, str)
    found: tuple[Any, ...] = tuple(rules) if is_list else (rules,)  # type: ignore[arg-type]
    for number, one in enumerate(found):
        if is_list and isinstance(one, Rule):
            continue
        is_kind = isinstance(one, type) and issubclass(one, BaseException)
        name = one.__name__ if is_kind else "KeyError"
        kind = "a rule" if is_list else "a list of rules"
        expected = f'{kind}, as in `rules=[Rule({name}, "park")]`'
        place = f"rules[{number}]" if is_list else "rules"
        raise InvalidDeclaration(
            (Problem(place, expected, name if is_kind else repr(one)),), where=where
        )
    return found


def classify(
    exception: BaseException, rules: Sequence[Rule] = (), failure: Failure | None = None
) -> Outcome:
    """Return the outcome for an exception. Exceptions that do not match a rule are retried.

    `failure` is the failure record of the exception, if available.
    """
    rule = next((rule for rule in rules if _fits(rule, exception)), None) if rules else None
    reason = reason_of(exception) if failure is None else _reason(failure.type, failure.message)
    if rule is not None and rule.verdict == Verdict.PARK:
        return Park(reason)
    wanted = _wait_of(exception)
    return Retry(reason, wanted if wanted is not None or rule is None else rule.after)


def reason_of(exception: BaseException) -> str:
    """Describe an exception in a single line."""
    return _reason(*type_and_message(exception))


def _reason(kind: str, message: str) -> str:
    name = kind.rpartition(".")[2]
    return f"{name}: {message}" if message else name


def outcome_of(returned: object) -> Outcome:
    """Convert the return value of a handler to an outcome.

    The message is dead-lettered if it is invalid.
    """
    match returned:
        case None:
            return Done()
        case Done() | Park(reason=str()):
            return returned
        case Retry(reason=str(), after=after) if after is None or _is_wait(after):
            return returned
        case Snooze(delay=delay) if _is_wait(delay):
            return returned
        case ConsumerStatus():  # only accept the enum, and not a string with the same value
            return _STATUSES[returned]
    try:
        text = repr(returned)
    except Exception:
        text = "something that cannot be shown"
    shown = f"{text[:200]} ({type(returned).__name__})"
    expected = _FIELDS if isinstance(returned, OUTCOMES) else MENU
    return Park(f"the handler returned {shown}, expected {expected}")


def raised_outcome(error: BaseException) -> Outcome | None:
    """Return the outcome if one was raised. Otherwise return None.

    This also finds an outcome that is the only exception in an exception group. Its traceback is
    removed to release the frames of the handler.
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if not isinstance(error, OUTCOMES):
        return None
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return outcome_of(error)


def is_outcome(returned: object) -> bool:
    """Return True if a value is an outcome. This does not include None, since a handler may return
    a reply.
    """
    return isinstance(returned, (*OUTCOMES, ConsumerStatus))


def _fits(rule: Rule, exception: BaseException) -> bool:
    """Return True if a rule matches. If `when` raises an exception, this counts as no match."""
    try:
        return isinstance(exception, rule.exception) and (
            rule.when is None or bool(rule.when(exception))
        )
    except KeyboardInterrupt:
        raise
    except BaseException:
        return False


def _wait_of(exception: BaseException) -> float | None:
    """Return the delay that the exception asks for, in seconds."""
    for name in ("after", "retry_after"):
        try:
            wanted: object = getattr(exception, name, None)
            if wanted is None:
                continue
            wanted = duration_seconds(wanted)  # type: ignore[arg-type]
        except Exception:
            wanted = None  # not a duration, it may be an HTTP date
        if _is_wait(wanted):
            return wanted
    return None


def _is_wait(value: object) -> TypeGuard[float]:
    """Return True for non-negative numbers. NaN does not count."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
