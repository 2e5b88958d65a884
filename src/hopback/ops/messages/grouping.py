"""Group dead letters by a property."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from hopback.errors import BadRequest
from hopback.headers import clip
from hopback.ops.contract.requests import GroupBy
from hopback.ops.contract.surveys import HourCount
from hopback.ops.contract.values import DeadLetter, Group, Moment
from hopback.ops.messages.dead_letter import last_failure, read_dead_letter
from hopback.ops.messages.filters import value_in
from hopback.ops.messages.plain import plain_text

if TYPE_CHECKING:
    from hopback.message import Delivery
    from hopback.ops.brokers.discovery import DeadLetterQueue


_KEY_BYTES = 255  # bytes of a key. Longer values are grouped by their beginning.
HOUR_S = 3600.0  # seconds
HOURS = 48
"""Number of hours for which failures are counted. Two days include at least one night. Older
failures are not counted.
"""


class Grouping:
    """Count dead letters by a key, and keep a sample for each of up to `most` groups.

    `by` is a `GroupBy`, `header.NAME` or `payload.PATH`. Raises BadRequest for other values.
    Messages of all further groups are counted in the group `…`. `by_hour` counts the last failures
    of `HOURS` hours, starting at `hours_from`. If this is None, it does not count any.
    """

    def __init__(self, by: str, most: int = 10_000, hours_from: float | None = None) -> None:
        self._by = by
        kind, _, path = self._by.partition(".")
        self.needs_content: bool = kind in ("header", "payload") and bool(path)
        if not self.needs_content and self._by not in set(GroupBy):
            raise BadRequest(
                "by", f"{', '.join(GroupBy)}, header.NAME or payload.PATH, got {self._by!r}"
            )
        self._most = most
        self._samples: dict[str, DeadLetter] = {}
        self._counts: dict[str, int] = defaultdict(int)
        self._times: dict[str, tuple[Moment | None, Moment | None]] = {}
        self._hours_from = hours_from
        self._hours: defaultdict[str, Counter[int]] = defaultdict(Counter)

    def add(self, dead_letter: DeadLetter, delivery: Delivery | None = None) -> None:
        """Count a dead letter. `delivery` is required if `needs_content` is True."""
        if not self.needs_content:
            key = str(getattr(dead_letter, self._by))
        else:
            value = None if delivery is None else value_in(delivery, self._by)
            key = "" if value is None else clip(plain_text(value), _KEY_BYTES)
        if key not in self._samples and len(self._samples) >= self._most:
            key = "…"
        self._samples.setdefault(key, dead_letter)
        self._count(key, dead_letter.last_failed)

    def see(self, delivery: Delivery, place: int, source: DeadLetterQueue | None) -> None:
        """Count a message. When grouping by fingerprint, only samples are read completely."""
        if self._by == GroupBy.FINGERPRINT:
            key, failed = last_failure(delivery, source)
            if key in self._samples:
                self._count(key, failed)
                return
        self.add(read_dead_letter(delivery, place, source), delivery)

    def _count(self, key: str, failed: Moment | None) -> None:
        self._counts[key] += 1
        first, last = self._times.get(key, (None, None))
        if failed is not None:
            first = failed if first is None else min(first, failed)
            last = failed if last is None else max(last, failed)
            if self._hours_from is not None:
                hour = int((failed - self._hours_from) // HOUR_S)
                if 0 <= hour < HOURS:
                    self._hours[key][hour] += 1
        self._times[key] = first, last

    def by_hour(self, key: str) -> tuple[HourCount, ...]:
        """Return the number of failures in each hour, oldest first. Hours without failures are omitted."""
        begin = self._hours_from or 0.0
        return tuple(
            HourCount(Moment(begin + hour * HOUR_S), count)
            for hour, count in sorted(self._hours[key].items())
        )

    def groups(self) -> tuple[Group, ...]:
        """Return the groups, largest first."""
        made = (
            Group(key, self._counts[key], *self._times[key], sample)
            for key, sample in self._samples.items()
        )
        return tuple(sorted(made, key=lambda group: (-group.count, group.key)))
