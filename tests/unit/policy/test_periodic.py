"""Due times: of periods and of cron lines, and which of them are sent."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopback.policy.periodic import Every, Missed, due_id, due_now, parse_cron


def _ms(text: str, zone: str = "UTC") -> int:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=ZoneInfo(zone))
    return int(moment.timestamp()) * 1000


def _shown(moment_ms: int, zone: str = "UTC") -> str:
    return datetime.fromtimestamp(moment_ms / 1000, ZoneInfo(zone)).isoformat(timespec="minutes")


@given(st.integers(1_000, 10**9), st.integers(0, 10**13))
def test_period_is_due_at_its_multiples(period_ms: int, moment_ms: int) -> None:
    every = Every(period_ms)
    latest, following = every.latest(moment_ms), every.after(moment_ms)
    assert latest <= moment_ms < following == latest + period_ms
    assert latest % period_ms == 0


@pytest.mark.parametrize(
    ("line", "after", "due"),
    [
        ("* * * * *", "2026-11-17T10:00", "2026-11-17T10:01"),
        ("*/15 * * * *", "2026-11-17T10:01", "2026-11-17T10:15"),
        ("0 3 * * *", "2026-11-17T03:00", "2026-11-18T03:00"),
        ("30 9-17/4 * * mon-fri", "2026-11-20T17:30", "2026-11-23T09:30"),
        ("0 0 1 jan,jul *", "2026-02-01T00:00", "2026-07-01T00:00"),
        ("0 0 29 2 *", "2026-01-01T00:00", "2028-02-29T00:00"),
        ("0 0 29 2 *", "2096-03-01T00:00", "2104-02-29T00:00"),
        ("0 0 * * 7", "2026-11-17T00:00", "2026-11-22T00:00"),
        ("0 0 13 * fri", "2026-11-07T00:00", "2026-11-13T00:00"),  # either of the two fits
        ("0 0 13 * fri", "2026-11-13T00:00", "2026-11-20T00:00"),
        ("5/20 1 * * *", "2026-11-17T01:05", "2026-11-17T01:25"),
    ],
)
def test_cron_expression_matches_its_times(line: str, after: str, due: str) -> None:
    """Lists, ranges, steps and names. Both day fields combine as in cron."""
    cron = parse_cron(line)
    found = cron.after(_ms(after))
    assert _shown(found) == f"{due}+00:00"
    assert cron.latest(found) == found
    assert cron.after(cron.latest(found - 1)) == found


def test_clock_changes_neither_skip_nor_repeat_daily_times() -> None:
    """A skipped time follows an hour later, a repeated one is used once, hourly ones twice."""
    oslo = "Europe/Oslo"
    daily = parse_cron("30 2 * * *", oslo)
    assert _shown(daily.after(_ms("2026-03-29T00:00", oslo)), oslo) == "2026-03-29T03:30+02:00"
    first = daily.after(_ms("2026-10-25T00:00", oslo))
    assert _shown(first, oslo) == "2026-10-25T02:30+02:00"
    assert _shown(daily.after(first), oslo) == "2026-10-26T02:30+01:00"
    hourly = parse_cron("30 * * * *", oslo)
    assert hourly.after(first) - first == 3_600_000
    assert hourly.latest(first + 3_600_000) == first + 3_600_000


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("0 3 * *", "five fields"),
        ("60 * * * *", "expected minute from 0 to 59, got '60'"),
        ("* 5-2 * * *", "expected hour from 0 to 23, got '5-2'"),
        ("* * 0 * *", "day of the month from 1 to 31"),
        ("* * * foo *", "month from 1 to 12 or from jan to dec, got 'foo'"),
        ("*/0 * * * *", "minute from 0 to 59, got '\\*/0'"),
        ("0 0 31 2 *", "matches a date, got '0 0 31 2 \\*'"),
        ("٣ * * * *", "minute"),
    ],
)
def test_invalid_cron_expression_is_refused_with_field(line: str, told: str) -> None:
    """So is one that never matches a date."""
    with pytest.raises(ValueError, match=told):
        parse_cron(line)
    with pytest.raises(ValueError, match=r"time zone like Europe/Oslo, got '\.\./etc'"):
        parse_cron("* * * * *", "../etc")
    with pytest.raises(ValueError, match="1s or more"):
        Every(999)


def test_missed_times_follow_catch_up_setting() -> None:
    """A time that is only slightly late is not missed."""
    every, last, now = Every(5_000), 100_000, 122_000
    assert due_now(every, last, now, Missed.ONCE) == ((120_000,), 120_000)
    each = (105_000, 110_000, 115_000, 120_000)
    assert due_now(every, last, now, Missed.EACH) == (each, 120_000)
    assert due_now(every, last, now, Missed.SKIP) == ((120_000,), 120_000)
    assert due_now(every, 120_000, now, Missed.EACH) == ((), 120_000)
    hourly, late = Every(3_600_000), 3_600_000 * 2 + 60_001
    assert due_now(hourly, 0, late, Missed.SKIP) == ((), 7_200_000)
    assert due_now(hourly, 0, late - 1, Missed.SKIP) == ((7_200_000,), 7_200_000)
    many, reached = due_now(Every(1_000), 0, 1_000_000, Missed.EACH)
    assert (len(many), reached) == (100, 100_000)


def test_periodic_id_contains_name_and_time() -> None:
    due_ms = _ms("2026-11-17T03:00")
    assert due_id("reports", due_ms) == "reports@2026-11-17T03:00:00+00:00"
    assert datetime.fromisoformat(due_id("r", due_ms + 5)[2:]).astimezone(UTC).microsecond == 5000


def test_cron_expression_that_never_matched_is_refused() -> None:
    with pytest.raises(ValueError, match="matches a date"):
        replace(parse_cron("0 0 1 2 *"), days=frozenset({31})).latest(0)
