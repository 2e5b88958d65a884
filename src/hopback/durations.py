"""Durations with units: `30s`, `5m`, `1h30m`, `250ms`."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import TypeAlias

from hopback.errors import InvalidDeclaration, Problem

Duration: TypeAlias = str | float | timedelta
"""A duration in code: `"2h"`, a number of seconds, or a timedelta."""

LONGEST_MS = 315_360_000_000
"""Ten years: the longest time to live that RabbitMQ accepts."""

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_FORM = re.compile("".join(rf"(?:(\d{{1,12}}){unit})?" for unit, _ in _UNITS), re.ASCII)
_EXAMPLES = "a duration like 250ms, 30s, 5m or 1h30m"


def parse_duration_ms(value: str | int | timedelta) -> int:
    """Milliseconds from `30s`, `1h30m`, a timedelta or a whole number of milliseconds.

    Units are in descending order, each at most once. The maximum is ten years. ValueError gives the
    expected format.
    """
    if isinstance(value, timedelta):
        value = -(-value // timedelta(milliseconds=1))  # rounded up
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"expected {_EXAMPLES}, or whole milliseconds, got {value!r}")
    if isinstance(value, str):
        found = _FORM.fullmatch(value.strip())
        if found is None or not any(found.groups()):
            # The commonest mistake is a number without its unit.
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
    """Milliseconds from `30s`, a timedelta or a number of seconds, rounded up.

    ValueError gives the expected format. Files contain whole milliseconds, which
    `parse_duration_ms` reads.
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
        raise ValueError(f"expected a duration from 0 to 3650d (ten years), got {value!r} s")
    return math.ceil(round(value * 1000, 3))  # 0.1 s is 100 ms, not 100.00000000000001


def read_seconds(value: Duration, option: str, *, where: str, zero: bool = True) -> float:
    """Return seconds from `"30s"`, a number of seconds or a timedelta.

    InvalidDeclaration names the option and repeats the value. Without `zero` it refuses 0.
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
    """Seconds from `30s` or a timedelta. A number is returned unchanged and unchecked."""
    return parse_duration_ms(value) / 1000 if isinstance(value, str | timedelta) else value


def format_duration(duration_ms: int) -> str:
    """The shortest text that `parse_duration_ms` reads back as this number."""
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
