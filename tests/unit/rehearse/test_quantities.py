"""Parsing of rates, shares, sizes and times."""

from __future__ import annotations

import pytest

from hopback.rehearse import quantities as q


@pytest.mark.parametrize(
    ("text", "rate"),
    [("500/s", 500.0), ("30k/min", 500.0), ("1.8M/h", 500.0), ("500", 500.0), (2, 2.0)],
)
def test_rates_are_parsed_per_second(text: str | int, rate: float) -> None:
    assert q.parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "fast", "-1/s", "5/week", "1e9/s", True])
def test_invalid_rate_is_refused_with_example(text: str) -> None:
    with pytest.raises(ValueError, match="expected a rate"):
        q.parse_rate(text)


def test_shares_spreads_consumers_and_sizes_are_parsed() -> None:
    assert q.parse_share("5%") == q.parse_share(0.05) == pytest.approx(0.05)
    assert q.parse_spread("40ms±20ms") == q.parse_spread("40ms+-20ms") == (0.04, 0.02)
    assert q.parse_consumers("4×10") == q.parse_consumers("4x10") == (4, 10)
    assert q.parse_consumers(8) == (1, 8)
    assert q.parse_size("1KiB") == 1024
    assert q.parse_size("2GB") == 2_000_000_000


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (q.parse_share, "120%"),
        (q.parse_share, "nan"),
        (q.parse_spread, "10ms±20ms"),
        (q.parse_consumers, "0×4"),
        (q.parse_consumers, "4×4×4"),
        (q.parse_size, "many"),
    ],
)
def test_invalid_quantities_are_refused(parse: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(ValueError, match="expected"):
        parse(text)


def test_numbers_are_formatted_with_two_units() -> None:
    assert q.show_seconds(2130.4) == "35m30s"
    assert q.show_seconds(7512) == "2h5m"
    assert q.show_seconds(0.25) == "250ms"
    assert q.show_rate(500) == "500/s"
    assert q.show_rate(12.345) == "12.3/s"
    assert q.show_bytes(1536) == "1.5 KiB"
    assert q.show_bytes(3 * 2**40) == "3.0 TiB"
