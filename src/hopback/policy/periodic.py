"""Schedules of periodic messages. They use a fixed interval or a cron expression.

The times are the same in all processes. Intervals are aligned to the epoch, so a message with "5m"
is due at :00, :05, :10 and so on. All times are in milliseconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

_SKIP_AFTER_MS = 60_000
"""Maximum delay of a message if `Missed.SKIP` is set. Must be longer than it takes to notice that
another process has died.
"""

_SHORTEST_MS = 1_000
"""The shortest interval. Handlers that run more often should use a loop."""

_MOST_AT_ONCE = 100
"""Maximum number of missed messages that are sent before the progress is saved."""

_SEARCHED_DAYS = 9 * 366
"""Number of days to search. Two leap days can be eight years apart."""


class Missed(StrEnum):
    """What to do with messages that were due while no process was running."""

    ONCE = "once"
    """Send one message for the most recent time."""
    SKIP = "skip"
    """Skip missed messages. They are still sent if they are less than a minute late."""
    EACH = "each"
    """Send every missed message, oldest first."""


class Schedule(Protocol):
    def after(self, moment_ms: int) -> int:
        """Return the next time after `moment_ms`."""

    def latest(self, moment_ms: int) -> int:
        """Return the latest time that is not after `moment_ms`."""


@dataclass(frozen=True, slots=True)
class Every:
    """A schedule with a fixed interval."""

    period_ms: int

    def __post_init__(self) -> None:
        if self.period_ms < _SHORTEST_MS:
            raise ValueError(f"expected a period of 1s or more, got {self.period_ms} ms")

    def after(self, moment_ms: int) -> int:
        return self.latest(moment_ms) + self.period_ms

    def latest(self, moment_ms: int) -> int:
        return moment_ms // self.period_ms * self.period_ms


@dataclass(frozen=True, slots=True)
class Cron:
    """A schedule with a cron expression and a time zone.

    If daylight saving time skips a time, it is due an hour later. If a time occurs twice, it is
    only due once, except if the expression matches every hour.
    """

    text: str
    zone: ZoneInfo
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    any_day: bool
    """Whether one of the two day fields is `*`. Otherwise it is enough if one of them matches."""

    def after(self, moment_ms: int) -> int:
        first = self._local_date(moment_ms)
        for days in range(_SEARCHED_DAYS):
            found = [due for due in self._due_on(first + timedelta(days)) if due > moment_ms]
            if found:
                return min(found)
        raise ValueError(f"expected a cron expression that matches a date, got {self.text!r}")

    def latest(self, moment_ms: int) -> int:
        last = self._local_date(moment_ms)
        for days in range(_SEARCHED_DAYS):
            found = [due for due in self._due_on(last - timedelta(days)) if due <= moment_ms]
            if found:
                return max(found)
        raise ValueError(f"expected a cron expression that matches a date, got {self.text!r}")

    def _local_date(self, moment_ms: int) -> date:
        return datetime.fromtimestamp(moment_ms / 1000, self.zone).date()

    def _due_on(self, day: date) -> Iterator[int]:
        by_date, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        fits = by_date and by_weekday if self.any_day else by_date or by_weekday
        if day.month not in self.months or not fits:
            return
        folds = (0, 1) if len(self.hours) == 24 else (0,)
        for hour in self.hours:
            for minute in self.minutes:
                for fold in folds:
                    moment = datetime(
                        day.year, day.month, day.day, hour, minute, tzinfo=self.zone, fold=fold
                    )
                    yield int(moment.timestamp()) * 1000


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _WEEKDAYS),
)


def parse_zone(name: str) -> ZoneInfo:
    """Return the time zone with this name. Raises ValueError if it does not exist."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"expected a time zone like Europe/Oslo, got {name[:100]!r}") from error


def parse_cron(text: str, timezone: str = "UTC") -> Cron:
    """Parse a cron expression with the fields `minute hour day month weekday`.

    Fields can contain `*`, numbers, names, `a-b`, `a,b` and `/step`.

    Raises:
        ValueError: If a field is invalid, or if the expression never matches.
    """
    fields = text.lower().split()
    if len(fields) != len(_FIELDS):
        raise ValueError(
            "expected five fields (minute, hour, day of the month, month, day of the week), as in "
            f"'0 3 * * mon-fri', got {text[:100]!r}"
        )
    zone = parse_zone(timezone)
    minutes, hours, days, months, weekdays = (
        _values(field, *of) for field, of in zip(fields, _FIELDS, strict=True)
    )
    weekdays = frozenset(day % 7 for day in weekdays)  # 7 is also Sunday
    any_day = fields[2].startswith("*") or fields[4].startswith("*")
    cron = Cron(text, zone, minutes, hours, days, months, weekdays, any_day)
    cron.after(0)
    return cron


def _values(field: str, name: str, least: int, most: int, words: tuple[str, ...]) -> frozenset[int]:
    def wrong() -> ValueError:
        by_name = f" or from {words[0]} to {words[-1]}" if words else ""
        return ValueError(f"expected {name} from {least} to {most}{by_name}, got {field[:100]!r}")

    def number(text: str) -> int:
        if text in words:
            return words.index(text) + least
        if not text.isascii() or not text.isdecimal() or not least <= int(text[:4]) <= most:
            raise wrong()
        return int(text)

    found: set[int] = set()
    for part in field.split(","):
        span, slash, step = part.partition("/")
        if slash and not (step.isascii() and step.isdecimal() and 1 <= int(step[:4]) <= most):
            raise wrong()
        first, dash, last = span.partition("-")
        if span == "*":
            low, high = least, most
        elif dash:
            low, high = number(first), number(last)
        else:
            low = number(first)
            high = most if slash else low
        if low > high:
            raise wrong()
        found.update(range(low, high + 1, int(step) if slash else 1))
    return frozenset(found)


def due_now(
    schedule: Schedule, last_ms: int, now_ms: int, missed: Missed
) -> tuple[tuple[int, ...], int]:
    """Return the times of the messages that have to be sent now, and the time of the last message
    after that.
    """
    latest = schedule.latest(now_ms)
    if latest <= last_ms:
        return (), last_ms
    if missed is Missed.ONCE:
        return (latest,), latest
    if missed is Missed.SKIP:
        return ((latest,) if now_ms - latest <= _SKIP_AFTER_MS else ()), latest
    found: list[int] = []
    due = schedule.after(last_ms)
    while due <= latest and len(found) < _MOST_AT_ONCE:
        found.append(due)
        due = schedule.after(due)
    return tuple(found), found[-1]


def due_id(name: str, due_ms: int) -> str:
    """Return the message id of a periodic message.

    All processes generate the same id, so an inbox can detect duplicates.
    """
    moment = datetime.fromtimestamp(due_ms / 1000, UTC)
    return f"{name}@{moment.isoformat(timespec='milliseconds' if due_ms % 1000 else 'seconds')}"
