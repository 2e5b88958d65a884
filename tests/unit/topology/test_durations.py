"""Parsing and formatting of durations."""

from __future__ import annotations

import pytest

from hopback.durations import LONGEST_MS, format_duration, parse_duration_ms, parse_wait_ms


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("30s", 30_000),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("250ms", 250),
        ("1m500ms", 60_500),
        ("2d", 172_800_000),
        (" 10s ", 10_000),
        ("0s", 0),
        (15_000, 15_000),
        ("3650d", LONGEST_MS),
    ],
)
def test_durations_are_parsed(text: str | int, expected_ms: int) -> None:
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "got ''"),
        ("15000", "add a unit, as in 15000s"),
        ("1.5s", "got '1.5s'"),
        ("5m1h", "got '5m1h'"),
        ("-5s", "got '-5s'"),
        ("٣s", "got '٣s'"),
        (True, "got True"),
        (1.5, "got 1.5"),
        (-1, "from 0 to 3650d .* got -1"),
        ("3651d", "from 0 to 3650d .* got '3651d'"),
        (10**40, "got a number far beyond that"),
        ("9" * 5000, r"got '9{40}'\.\.\."),
    ],
)
def test_invalid_duration_names_expected_form(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_duration_ms(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(0, "0s"), (30_000, "30s"), (5_400_000, "1h30m"), (86_400_001, "1d1ms"), (999, "999ms")],
)
def test_durations_are_formatted_shortly(duration_ms: int, text: str) -> None:
    assert format_duration(duration_ms) == text


@pytest.mark.parametrize("duration_ms", [-1, LONGEST_MS + 1])
def test_duration_out_of_bounds_is_refused(duration_ms: int) -> None:
    with pytest.raises(ValueError, match="expected 0 to"):
        format_duration(duration_ms)


def test_wait_number_is_seconds() -> None:
    assert parse_wait_ms(0.1) == 100
    assert parse_wait_ms(90) == 90_000
    assert parse_wait_ms("90s") == 90_000


@pytest.mark.parametrize("value", [True, float("nan"), 10**400, None, -1, 1e12])
def test_invalid_wait_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_wait_ms(value)  # type: ignore[arg-type]
