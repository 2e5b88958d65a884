"""The outcomes that a handler can choose for a delivery, by returning or raising them.

Return values, raised exceptions and HTTP responses to pushed events are converted to outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import FrozenInstanceError, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, TypeGuard, assert_never

from hopback.durations import Duration, duration_seconds, parse_wait_ms
from hopback.errors import InvalidDeclaration, Problem
from hopback.headers import Failure, type_and_message
from hopback.policy import decision as decided

if TYPE_CHECKING:
    from hopback.policy.decision import Decision


def _read(duration: Duration) -> float:
    """Return seconds. An invalid text is kept, so that the outcome is refused with the menu."""
    try:
        return duration_seconds(duration)
    except ValueError:
        return duration  # type: ignore[return-value]


class _Raisable(BaseException):
    """A value that a handler can return or raise. It is immutable and compared by content.

    It is a BaseException, as pytest's outcomes are: `except Exception` between the raise and the
    handler must not swallow the decision.
    """

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__match_args__)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
        return f"{type(self).__name__}({fields})"

    def __str__(self) -> str:
        return getattr(self, "reason", "") or repr(self)

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), self._values()

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.__match_args__:  # Python itself sets `__traceback__` and others
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super().__setattr__(name, value)


_set_field = object.__setattr__


class Done(_Raisable):
    """The work is done. A handler that returns None has the same effect."""

    __slots__ = ()

    def __init__(self) -> None:
        """Takes no arguments."""


class Retry(_Raisable):
    """The run failed and may succeed later. `after` selects the smallest tier that is long enough.

    A wait longer than every tier uses the delay queues if the application has declared them, and is
    exact there. Otherwise the message waits in the longest tier.
    """

    __slots__ = ("after", "reason")
    __match_args__ = ("reason", "after")

    reason: str
    after: float | None
    """Seconds. The argument may be a text (`"2h"`), a number or a timedelta."""

    def __init__(
        self, reason: str = "the handler asked for a retry", after: Duration | None = None
    ) -> None:
        _set_field(self, "reason", reason)
        _set_field(self, "after", None if after is None else _read(after))


class Park(_Raisable):
    """Park the message now, with this reason. Retrying would not help."""

    __slots__ = ("reason",)
    __match_args__ = ("reason",)

    reason: str

    def __init__(self, reason: str) -> None:
        _set_field(self, "reason", reason)


class Snooze(_Raisable):
    """Redeliver the message after `delay` without counting an attempt."""

    __slots__ = ("delay",)
    __match_args__ = ("delay",)

    delay: float
    """Seconds. The argument may be a text (`"2h"`), a number or a timedelta."""

    def __init__(self, delay: Duration) -> None:
        _set_field(self, "delay", _read(delay))


Outcome: TypeAlias = Done | Retry | Park | Snooze

OUTCOMES = (Done, Retry, Park, Snooze)
"""The outcomes, for `except`."""

FAILURES = (Exception, *OUTCOMES)
"""For `except` around a function of the application: it may raise an error or an outcome."""


TOO_EARLY = 425
"""The answer of a service to an event whose `processAfterDelayMs` is not over."""


class ConsumerStatus(StrEnum):
    """The event bus document's names for the actions of a consumer."""

    ACK = "ACK"
    DROP = "DROP"
    REQUEUE = "REQUEUE"


def outcome_for_status(
    status: int, *, due_in: float = 0.0, retry_after: float | None = None
) -> Outcome:
    """Return the outcome of an HTTP response status.

    2xx is done. 425 is not due yet and snoozes for `due_in` seconds. Every other status is retried:
    429, 409, server errors, other client errors (which will probably fail again and be parked), and
    unexpected statuses.
    """
    if 200 <= status <= 299:
        return Done()
    if status == TOO_EARLY:
        return Snooze(due_in)
    return Retry(f"HTTP {status}", retry_after)


def consumer_status(decision: Decision) -> ConsumerStatus | None:
    """Return the document's name for a decision. In its table a parked message is acknowledged.

    Returns None if the delivery is not settled, for which the document has no name.
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
"""The valid return values of a handler, for the error message about any other."""
_FIELDS = "a reason that is a text, and a wait like 30s, 5m or 1h30m"
"""The valid fields of an outcome, for the error message about any other."""


_REQUEUE_S = 2.0
"""The longest of the event bus's short waits before a requeue: its plan takes a random part of it."""


_STATUSES: dict[ConsumerStatus, Outcome] = {
    ConsumerStatus.ACK: Done(),
    ConsumerStatus.DROP: Retry("the handler returned DROP"),
    ConsumerStatus.REQUEUE: Snooze(_REQUEUE_S),
}
"""The outcomes of the event bus's names."""


class Verdict(StrEnum):
    """The decision of a rule about an exception."""

    RETRY = "retry"
    PARK = "park"


@dataclass(frozen=True, slots=True)
class Rule:
    """An exception type, narrowed by `when`, and the handling of the message.

    `verdict` is `Verdict.PARK` or `Verdict.RETRY`, or their texts `"park"` and `"retry"`. `after`
    (`"30s"`, seconds or a timedelta) is the shortest wait before the next run. An `after` or
    `retry_after` attribute of the exception takes precedence. InvalidDeclaration names a wrong value.
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
    """Return the rules of a handler. InvalidDeclaration names a value that is not a `Rule`."""
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
    """Return the outcome of the first matching rule. Without one the exception is retried.

    `failure` is the record of the exception, if it already exists.
    """
    rule = next((rule for rule in rules if _fits(rule, exception)), None) if rules else None
    reason = reason_of(exception) if failure is None else _reason(failure.type, failure.message)
    if rule is not None and rule.verdict == Verdict.PARK:
        return Park(reason)
    wanted = _wait_of(exception)
    return Retry(reason, wanted if wanted is not None or rule is None else rule.after)


def reason_of(exception: BaseException) -> str:
    """Describe an exception in one line."""
    return _reason(*type_and_message(exception))


def _reason(kind: str, message: str) -> str:
    name = kind.rpartition(".")[2]
    return f"{name}: {message}" if message else name


def outcome_of(returned: object) -> Outcome:
    """Return the outcome of a handler's return value. An invalid value parks and is quoted."""
    match returned:
        case None:
            return Done()
        case Done() | Park(reason=str()):
            return returned
        case Retry(reason=str(), after=after) if after is None or _is_wait(after):
            return returned
        case Snooze(delay=delay) if _is_wait(delay):
            return returned
        case ConsumerStatus():  # not a text that looks like one
            return _STATUSES[returned]
    try:
        text = repr(returned)
    except Exception:
        text = "something that cannot be shown"
    shown = f"{text[:200]} ({type(returned).__name__})"
    expected = _FIELDS if isinstance(returned, OUTCOMES) else MENU
    return Park(f"the handler returned {shown}, expected {expected}")


def raised_outcome(error: BaseException) -> Outcome | None:
    """Return the outcome that was raised, also as the only error of a TaskGroup. None for an error.

    The traceback is dropped, because a held message would keep the frames of its run alive.
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if not isinstance(error, OUTCOMES):
        return None
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return outcome_of(error)


def is_outcome(returned: object) -> bool:
    """Whether a value is an outcome. None is not: the handler may return a reply."""
    return isinstance(returned, (*OUTCOMES, ConsumerStatus))


def _fits(rule: Rule, exception: BaseException) -> bool:
    """Whether a rule matches. A check or predicate that raises does not match."""
    try:
        return isinstance(exception, rule.exception) and (
            rule.when is None or bool(rule.when(exception))
        )
    except KeyboardInterrupt:
        raise
    except BaseException:
        return False


def _wait_of(exception: BaseException) -> float | None:
    """The wait in seconds that the exception itself asks for."""
    for name in ("after", "retry_after"):
        try:
            wanted: object = getattr(exception, name, None)
            if wanted is None:
                continue
            wanted = duration_seconds(wanted)  # type: ignore[arg-type]
        except Exception:
            wanted = None  # not a duration, such as an HTTP date
        if _is_wait(wanted):
            return wanted
    return None


def _is_wait(value: object) -> TypeGuard[float]:
    """Whether a value is a number of seconds, 0 or more. Comparisons with NaN are false."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
