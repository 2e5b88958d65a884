"""Quiet times, during which no notices are sent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_QUIET = re.compile(
    r"(?P<days>[a-z]{3}(?:[ ,]+[a-z]{3})*)?"
    r" *(?:(?P<h1>[0-2]\d):(?P<m1>[0-5]\d) *- *(?P<h2>[0-2]\d):(?P<m2>[0-5]\d))?"
)
_DAY_MIN = 24 * 60  # minutes


@dataclass(frozen=True, slots=True)
class QuietTime:
    """A quiet time in minutes of the day. `days` are the days on which it starts.

    If `end` is before `start`, it ends on the next day.
    """

    days: frozenset[int]
    start: int
    end: int

    def holds(self, moment: datetime) -> bool:
        """Return whether the quiet time includes a time."""
        minute = moment.hour * 60 + moment.minute
        yesterday = (moment - timedelta(days=1)).weekday()
        if self.start < self.end:
            return moment.weekday() in self.days and self.start <= minute < self.end
        began_today = moment.weekday() in self.days and minute >= self.start
        return began_today or (yesterday in self.days and minute < self.end)


def parse_quiet(text: str) -> QuietTime:
    """Parse a quiet time such as `22:00-06:00`, `sat sun` or `fri 18:00-24:00`. Raises ValueError."""
    found = _QUIET.fullmatch(text.strip().lower())
    days = re.findall("[a-z]{3}", found["days"] or "") if found is not None else []
    if found is None or not text.strip() or not set(days) <= set(_DAYS):
        raise ValueError(f"expected `22:00-06:00`, `sat sun` or `fri 18:00-24:00`, got {text!r}")
    start, end = 0, _DAY_MIN
    if found["h1"] is not None:
        start = int(found["h1"]) * 60 + int(found["m1"])
        end = int(found["h2"]) * 60 + int(found["m2"])
    if start >= _DAY_MIN or end > _DAY_MIN:
        raise ValueError(f"expected times from 00:00 to 24:00, got {text!r}")
    wanted = days or _DAYS
    return QuietTime(frozenset(map(_DAYS.index, wanted)), start, end)
