"""Create lists of retry delays."""

from __future__ import annotations

from hopback.durations import LONGEST_MS, Duration, format_duration, parse_wait_ms
from hopback.errors import InvalidDeclaration, Problem


def exponential(
    first: Duration, *, attempts: int, limit: Duration | None = None, factor: float = 2
) -> list[str]:
    """Return exponentially increasing delays.

    Each distinct delay needs its own queue. `exponential("1s", attempts=5)` returns `["1s", "2s",
    "4s", "8s"]`.

    Args:
        first: The first delay.
        attempts: The number of attempts. There is one delay less.
        limit: The maximum delay.
        factor: The factor between two delays.
    """
    if not 1 <= factor <= 1000:
        raise _invalid("exponential", "factor", "a number from 1 to 1000", factor)
    waits = _growing("exponential", first, attempts, limit)
    for number in range(1, len(waits)):
        waits[number] = min(round(waits[number - 1] * factor), waits[number])
    return [format_duration(wait) for wait in waits]


def linear(
    first: Duration, *, attempts: int, limit: Duration | None = None, step: Duration | None = None
) -> list[str]:
    """Return linearly increasing delays.

    `linear("10s", attempts=4)` returns `["10s", "20s", "30s"]`.

    Args:
        first: The first delay.
        attempts: The number of attempts. There is one delay less.
        limit: The maximum delay.
        step: The difference between two delays. Defaults to `first`.
    """
    waits = _growing("linear", first, attempts, limit)
    added = waits[0] if step is None else _read("linear", "step", step)
    for number in range(1, len(waits)):
        waits[number] = min(waits[number - 1] + added, waits[number])
    return [format_duration(wait) for wait in waits]


def _growing(function: str, first: Duration, attempts: int, limit: Duration | None) -> list[int]:
    """Return the delays in milliseconds. All delays except the first have the maximum length."""
    runs: object = attempts
    if not isinstance(runs, int) or not 2 <= runs <= 1000:
        raise _invalid(function, "attempts", "a number of runs from 2 to 1000", attempts)
    shortest = _read(function, "first", first)
    longest = LONGEST_MS if limit is None else _read(function, "limit", limit)
    if not 0 < shortest <= longest:
        expected = "more than 0" if limit is None else f"more than 0 and at most {limit!r}"
        raise _invalid(function, "first", expected, first)
    return [shortest] + [longest] * (attempts - 2)


def _read(function: str, option: str, wait: Duration) -> int:
    try:
        return parse_wait_ms(wait)
    except ValueError as error:
        expected = str(error).removeprefix("expected ").rpartition(", got ")[0]
        raise _invalid(function, option, expected, wait) from None


def _invalid(function: str, option: str, expected: str, got: object) -> InvalidDeclaration:
    return InvalidDeclaration((Problem(option, expected, repr(got)),), where=function)
