"""Templates: escaped without exception, with the few words and figures that pages need."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hopback.admin.content import visible
from hopback.admin.roles import Role
from hopback.deadletters.overview import HELD_BACK
from hopback.headers import timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["renderer", "size_words", "span_words"]

_SPARK_WIDTH = 100.0
_SPARK_HEIGHT = 22.0
_UNITS = ("B", "KiB", "MiB", "GiB")


def renderer() -> Environment:
    """The environment of all templates; what is not defined is an error, not an empty text."""
    environment = Environment(
        loader=PackageLoader("hopback.admin"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["held_back_means"] = HELD_BACK
    environment.filters |= {
        "clock": _clock,
        "count": _count,
        "details": _details,
        "rfc3339": timestamp,
        "role": Role,
        "segment": lambda text: quote(str(text), safe=""),
        "size": size_words,
        "span": span_words,
        "changed": lambda trend: len({value for _, value in trend}) > 1,
        "sentence": _sentence,
        "spark": _spark,
        "target_words": _target_words,
        "ticked": _ticked,
        "trend_words": _trend_words,
        "visible": lambda text: visible(str(text)),
        "visible_lines": lambda text: visible(str(text), lines=True),
    }
    return environment


def _sentence(text: str) -> str:
    """The text as a sentence: a capital letter, a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


_TARGETS = {
    "design": "as the design says",
    "failed-queue": "straight into the queue that failed",
    "retry-exchange": "into the retry queue, to wait once more",
    "origin-exchange": "to the exchange it first came by",
}


def _target_words(target: str) -> str:
    """A job's target for people."""
    return _TARGETS.get(target, f"to {visible(target)}")


def _ticked(text: str) -> Markup:
    """A text of ours in which names stand in backticks, with the names marked."""
    parts = text.split("`")
    return Markup("").join(
        Markup('<b class="name">{}</b>').format(visible(part)) if odd % 2 else visible(part)
        for odd, part in enumerate(parts)
    )


def _count(number: int | None) -> str:
    """A number for people; a dash where nobody knows it."""
    return "–" if number is None else f"{number:,}"


def size_words(size: int) -> str:
    """Bytes in the unit that fits."""
    value = float(size)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def span_words(seconds: float) -> str:
    """A span of time in the unit that fits."""
    seconds = max(seconds, 0.0)
    for limit, unit, divisor in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            value = seconds / divisor
            return f"{value:.1f} {unit}" if unit == "s" and value < 10 else f"{value:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def _clock(seconds: float) -> str:
    """A moment as a clock shows it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _spark(trend: Sequence[tuple[float, int]]) -> str:
    """The points of a small line; nothing if there is no past to draw."""
    if len(trend) < 2:
        return ""
    first, last = trend[0][0], trend[-1][0]
    values = [value for _, value in trend]
    low, high = min(values), max(values)
    rise = (high - low) or 1
    return " ".join(
        f"{(at - first) / (last - first or 1) * _SPARK_WIDTH:.1f},"
        f"{_SPARK_HEIGHT - (value - low) / rise * (_SPARK_HEIGHT - 4):.1f}"
        for at, value in trend
    )


def _trend_words(trend: Sequence[tuple[float, int]]) -> str:
    """The same in words."""
    if len(trend) < 2:
        return "no past known"
    change = trend[-1][1] - trend[0][1]
    during = span_words(trend[-1][0] - trend[0][0])
    return f"{change:+,} in the last {during}" if change else f"unchanged for {during}"


def _details(details: Mapping[str, object]) -> str:
    """The details of an audit entry on one line."""
    parts = (
        f"{name} {value if isinstance(value, str | int | float) else json.dumps(value)}"
        for name, value in details.items()
        if value not in (None, "", [], {})
    )
    return visible(", ".join(parts))
