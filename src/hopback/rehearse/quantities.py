"""Parse and format rates, fractions, sizes and times: `500/s`, `5%`, `1KiB`, `40ms±20ms`, `4×10`."""

from __future__ import annotations

import math
import re

from hopback.durations import format_duration, parse_duration_ms

_RATE = re.compile(r"(\d+(?:\.\d+)?)([kM]?)(?:/(s|min|m|h|d))?", re.ASCII)
_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6}
_PERIODS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(B|KiB|MiB|GiB|TiB|kB|MB|GB|TB)?", re.ASCII)
_SIZES = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip


def parse_rate(value: str | float) -> float:
    """Parse a rate such as `500/s`, `30k/min`, `1.5M/h` or a number. Returns messages per second."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        rate = float(value)
    else:
        found = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"expected a rate like 500/s, 30k/min or 2M/h, got {value!r}")
        number, factor, period = found.groups()
        rate = float(number) * _FACTORS[factor] / _PERIODS[period or ""]
    if not 0 <= rate < math.inf:
        raise ValueError(f"expected a rate of 0 or more, got {value!r}")
    return rate


def parse_share(value: str | float) -> float:
    """Parse `5%` or `0.05` and return a number from 0 to 1."""
    try:
        text = str(value).strip()
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = math.nan
    if isinstance(value, bool) or not 0 <= share <= 1:
        raise ValueError(f"expected a share like 5% or 0.05, at most 100%, got {value!r}")
    return share


def parse_seconds(value: str | int) -> float:
    """Parse a duration such as `20m` and return seconds."""
    return parse_duration_ms(value) / 1000


def parse_spread(value: str | int) -> tuple[float, float]:
    """Parse `40ms±20ms` and return the mean and the half width in seconds. The half width is
    optional.
    """
    if not isinstance(value, str):
        return parse_seconds(value), 0.0
    mean, sign, around = value.replace("+-", "±").partition("±")
    seconds, width = parse_seconds(mean), parse_seconds(around) if sign else 0.0
    if width > seconds:
        raise ValueError(f"expected a spread not wider than its mean, got {value!r}")
    return seconds, width


def parse_consumers(value: str | int) -> tuple[int, int]:
    """Parse `4×10` and return the number of processes and the concurrency of each. `10` means one
    process.
    """
    text = str(value).strip().lower().replace("x", "×")
    parts = text.split("×") if "×" in text else ["1", text]
    numbers = [int(part) for part in parts if part.isascii() and part.isdigit()]
    if isinstance(value, bool) or len(parts) != 2 or len(numbers) != 2 or min(numbers) < 1:
        raise ValueError(f"expected processes×concurrency like 4×10, got {value!r}")
    return numbers[0], numbers[1]


def parse_size(value: str | int) -> int:
    """Parse a size such as `1KiB`, `2GB` or a number. Returns bytes."""
    found = None if isinstance(value, bool) else _SIZE.fullmatch(str(value).strip())
    if found is None:
        raise ValueError(f"expected a size like 1KiB, 200MB or 4GiB, got {value!r}")
    return round(float(found[1]) * _SIZES[found[2] or "B"])


def show_seconds(seconds: float) -> str:
    """Format a duration with its two largest units: `35m30s`, `2h5m`, `250ms`."""
    if seconds < 1:
        return format_duration(round(seconds * 1000))
    whole = round(seconds)
    return format_duration((whole if whole < 3600 else whole // 60 * 60) * 1000)


def show_rate(rate: float) -> str:
    """Format a rate: `500/s`. Decimals are only shown if they are significant."""
    if rate >= 100 or rate == round(rate):
        return f"{rate:,.0f}/s"
    return f"{rate:.1f}/s" if rate >= 1 else f"{rate:.2g}/s"


def show_count(count: float) -> str:
    return f"{round(count):,}"


def show_bytes(size: float) -> str:
    """Format a size: `1.4 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
