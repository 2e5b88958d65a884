"""Group the errors of several queues by fingerprint."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hopback.ops.contract.requests import GroupBy
from hopback.ops.contract.surveys import ErrorGroup, ErrorInQueue, HourCount
from hopback.ops.contract.values import Group, Moment
from hopback.ops.messages.grouping import HOUR_S, HOURS, Grouping

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


MOST_GROUPS = 200
"""Number of errors to keep for each queue, starting with the most frequent."""


def group_errors(now: float | None = None) -> Grouping:
    """Create a grouping by fingerprint. It counts more groups than are kept, to find the frequent
    ones.

    Failures are counted by hour, up to the hour of `now`.
    """
    hours_from = None if now is None else first_hour(now)
    return Grouping(GroupBy.FINGERPRINT, MOST_GROUPS * 10, hours_from)


def first_hour(now: float) -> float:
    """Return the start of the first hour to count. The last hour contains `now`."""
    return (now // HOUR_S - HOURS + 1) * HOUR_S


def error_of(group: Group, first_seen: Moment) -> ErrorGroup:
    """Convert a group of messages to an error."""
    sample = group.sample
    return ErrorGroup(
        fingerprint=group.key,
        error=sample.error,
        message=sample.error_message,
        reason=sample.reason,
        count=group.count,
        first=group.first,
        last=group.last,
        first_seen=first_seen,
    )


def add_errors(
    known: tuple[ErrorGroup, ...], groups: tuple[Group, ...], now: float
) -> tuple[ErrorGroup, ...]:
    """Add the counts and times of new groups to the known errors. The result is sorted by frequency."""
    sums = {one.fingerprint: one for one in known}
    for group in groups:
        fresh = error_of(group, Moment(now))
        before = sums.get(group.key)
        if before is None:
            sums[group.key] = fresh
            continue
        sums[group.key] = replace(
            before,
            count=before.count + fresh.count,
            first=min(_known(before.first, fresh.first), default=None),
            last=max(_known(before.last, fresh.last), default=None),
        )
    return _most_frequent(sums.values())[:MOST_GROUPS]


def merge_errors(
    queues: Mapping[str, tuple[ErrorGroup, ...]], new_after: Mapping[str, float]
) -> tuple[ErrorGroup, ...]:
    """Combine the errors of all queues by fingerprint. The result is sorted by frequency.

    An error is new if all of its queues have first seen it after the time in `new_after`.
    """
    found: defaultdict[str, list[tuple[str, ErrorGroup]]] = defaultdict(list)
    for queue, errors in sorted(queues.items()):
        for error in errors:
            found[error.fingerprint].append((queue, error))
    merged = []
    for places in found.values():
        errors_here = [error for _, error in places]
        merged.append(
            replace(
                errors_here[0],
                count=sum(error.count for error in errors_here),
                queues=tuple(ErrorInQueue(queue, error.count) for queue, error in places),
                first=min(_known(*(error.first for error in errors_here)), default=None),
                last=max(_known(*(error.last for error in errors_here)), default=None),
                first_seen=min(error.first_seen or Moment(0) for error in errors_here),
                is_new=all((error.first_seen or 0.0) > new_after[queue] for queue, error in places),
            )
        )
    return _most_frequent(merged)


def sum_hours(parts: Iterable[tuple[HourCount, ...]]) -> tuple[HourCount, ...]:
    """Return the sum for each hour, oldest first."""
    sums: Counter[Moment] = Counter()
    for hours in parts:
        for hour in hours:
            sums[hour.at] += hour.count
    return tuple(HourCount(at, count) for at, count in sorted(sums.items()))


def continue_hours(
    before: Mapping[str, tuple[HourCount, ...]],
    since: Mapping[str, tuple[HourCount, ...]],
    now: float,
) -> dict[str, tuple[HourCount, ...]]:
    """Add a stream's failures since its last survey to the earlier ones, and remove old hours.

    `before` and `since` contain the counts per hour for each fingerprint. The result only contains
    the fingerprints in `since`.
    """
    begin = first_hour(now)
    return {
        key: sum_hours((tuple(one for one in before.get(key, ()) if one.at >= begin), more))
        for key, more in since.items()
    }


def add_hours(
    errors: tuple[ErrorGroup, ...], hours: Mapping[str, Mapping[str, tuple[HourCount, ...]]]
) -> tuple[ErrorGroup, ...]:
    """Add the failures per hour to errors. `hours` contains them by queue and fingerprint."""
    return tuple(
        replace(
            error,
            queues=tuple(
                replace(at, by_hour=hours.get(at.queue, {}).get(error.fingerprint, ()))
                for at in error.queues
            ),
        )
        for error in errors
    )


def add_discards(
    errors: tuple[ErrorGroup, ...], discards: Iterable[tuple[str, tuple[ErrorGroup, ...]]]
) -> tuple[ErrorGroup, ...]:
    """Add the number of discarded messages in each queue to errors."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for queue, groups in discards:
        for group in groups:
            counts[group.fingerprint][queue] += group.count
    return tuple(
        replace(
            error,
            discarded=tuple(
                ErrorInQueue(queue, count)
                for queue, count in sorted(counts[error.fingerprint].items())
            ),
        )
        if error.fingerprint in counts
        else error
        for error in errors
    )


def _known(*times: Moment | None) -> list[Moment]:
    return [time for time in times if time is not None]


def _most_frequent(errors: Iterable[ErrorGroup]) -> tuple[ErrorGroup, ...]:
    return tuple(sorted(errors, key=lambda one: (-one.count, one.fingerprint)))
