"""Parse and format durations such as `30s`, `5m`, `1h30m` and `250ms`."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import TypeAlias

from hopback.errors import InvalidDeclaration, Problem

Duration: TypeAlias = str | float | timedelta
"""A duration is a string such as `"2h"`, a number of seconds, or a timedelta."""

LONGEST_MS = 315_360_000_000
"""The longest TTL in milliseconds that RabbitMQ accepts. This is ten years."""

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_FORM = re.compile("".join(rf"(?:(\d{{1,12}}){unit})?" for unit, _ in _UNITS), re.ASCII)
_EXAMPLES = "a duration like 250ms, 30s, 5m, 1h30m or 7d (at most 3650d)"


def parse_duration_ms(value: str | int | timedelta) -> int:
    """Parse a duration and return it in milliseconds.

    Integers are taken as milliseconds. Units in a string must be in descending order and must not
    repeat.

    Raises:
        ValueError: If the format is wrong or the duration exceeds ten years.
    """
    if isinstance(value, timedelta):
        value = -(-value // timedelta(milliseconds=1))  # round up
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"expected {_EXAMPLES}, or whole milliseconds, got {value!r}")
    if isinstance(value, str):
        found = _FORM.fullmatch(value.strip())
        if found is None or not any(found.groups()):
            # A missing unit is the most common mistake.
            hint = f" (add a unit, as in {value.strip()}s)" if value.isdecimal() else ""
            raise ValueError(f"expected {_EXAMPLES}, got {_short(value)}{hint}")
        amounts = (int(amount or 0) for amount in found.groups())
        units = (unit_ms for _, unit_ms in _UNITS)
        duration_ms = sum(amount * unit for amount, unit in zip(amounts, units, strict=True))
    else:
        duration_ms = value
    if not 0 <= duration_ms <= LONGEST_MS:
        raise ValueError(f"expected a duration from 0 to 3650d (ten years), got {_short(value)}")
    return duration_ms


def parse_wait_ms(value: Duration) -> int:
    """Parse a duration and return it in milliseconds, rounded up.

    Unlike `parse_duration_ms`, numbers are taken as seconds.

    Raises:
        ValueError: If the format is wrong or the duration exceeds ten years.
    """
    if isinstance(value, str | timedelta):
        return parse_duration_ms(value)
    try:
        fits = math.isfinite(value) and not isinstance(value, bool)
    except (TypeError, OverflowError):
        fits = False
    if not fits:
        raise ValueError(f"expected {_EXAMPLES}, seconds or a timedelta, got {value!r}")
    if not 0 <= value <= LONGEST_MS / 1000:
        raise ValueError(f"expected a duration from 0 to 3650d (ten years), got {value!r}")
    return math.ceil(round(value * 1000, 3))  # 0.1 s is 100 ms, without floating point errors


def read_seconds(value: Duration, option: str, *, where: str, zero: bool = True) -> float:
    """Parse the value of an option and return it in seconds.

    Raises:
        InvalidDeclaration: If the value is not a valid duration, or if it is 0 and `zero` is False.
    """
    try:
        parse_wait_ms(value)
    except ValueError as error:
        expected, _, got = str(error).removeprefix("expected ").rpartition(", got ")
        raise InvalidDeclaration((Problem(option, expected, got),), where=where) from None
    seconds = duration_seconds(value)
    if not seconds and not zero:
        problem = Problem(option, "a duration longer than 0", repr(value))
        raise InvalidDeclaration((problem,), where=where)
    return seconds


def duration_seconds(value: Duration) -> float:
    """Convert a duration to seconds. Numbers are returned unchanged."""
    return parse_duration_ms(value) / 1000 if isinstance(value, str | timedelta) else value


def format_duration(duration_ms: int) -> str:
    """Format milliseconds as the shortest string that `parse_duration_ms` can read."""
    if not 0 <= duration_ms <= LONGEST_MS:
        raise ValueError(f"expected 0 to {LONGEST_MS} ms (ten years), got {duration_ms} ms")
    parts = []
    rest = duration_ms
    for unit, unit_ms in _UNITS:
        amount, rest = divmod(rest, unit_ms)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"


def _short(value: str | int) -> str:
    if isinstance(value, int):
        return str(value) if abs(value) < 10**18 else "a number far beyond that"
    return repr(value) if len(value) <= 40 else f"{value[:40]!r}..."
