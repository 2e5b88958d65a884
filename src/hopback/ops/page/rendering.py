"""The template environment with its filters, and functions that display untrusted content safely.

Content is always escaped. Control characters, terminal escapes, direction marks and other invisible
characters are replaced with their names. Compressed bodies are only decompressed up to the
displayed size.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hopback.fields import Timestamp
from hopback.headers import timestamp
from hopback.ops.alerts.values import AlertKind, AlertRule
from hopback.ops.contract.options import options_of
from hopback.ops.contract.requests import RedriveRequest
from hopback.ops.contract.roles import Role
from hopback.ops.contract.values import HELD_BACK, AuditEntry, Moment, TargetChoice
from hopback.ops.messages.body import find_packing, is_msgpack
from hopback.ops.messages.error_groups import first_hour, sum_hours
from hopback.ops.messages.grouping import HOUR_S, HOURS
from hopback.ops.messages.plain import plain_payload, plain_text, plain_value
from hopback.ops.messages.shown_payload import show_payload
from hopback.text import size_text, span_text
from hopback.text import visible as spelled_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hopback.message import Delivery
    from hopback.ops.contract.surveys import ErrorGroup, TrendSample
    from hopback.ops.messages.shown_payload import Form, ShownPayload

# The size of a sparkline in units of its viewBox.
_SPARK_WIDTH = 100.0
_SPARK_HEIGHT = 22.0
_VALUE_SHOWN = 2000  # characters of a header
_P = ParamSpec("_P")
_T = TypeVar("_T")


def _samples(
    kept: Sequence[TrendSample], now: float, messages: int | None
) -> list[tuple[float, int]]:
    """Return the recorded depths and the current one."""
    line = [(float(one.at), one.messages) for one in kept]
    return line if messages is None else [*line, (now, messages)]


_FILTERS: dict[str, Callable[..., object]] = {
    "changed": lambda trend: len({value for _, value in trend}) > 1,
    "rfc3339": timestamp,
    "samples": _samples,
    "role": Role,
    "segment": lambda text: quote(str(text), safe=""),
    "visible": lambda text: visible(str(text)),
    "visible_lines": lambda text: visible(str(text), lines=True),
}


def _filter(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Register a function as a template filter with the same name."""
    _FILTERS[function.__name__.strip("_")] = function
    return function


STATIC = Path(__file__).with_name("static")


@cache
def renderer() -> Environment:
    """Return the template environment. Undefined variables cause an error."""
    environment = Environment(
        loader=PackageLoader("hopback.ops.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["options"] = {one.json: one for one in options_of(RedriveRequest)}
    environment.globals["held_back_means"] = HELD_BACK
    # The path prefix of all links. If there are several brokers, each has its own.
    environment.globals["base"] = ""
    environment.globals["switch"] = None
    environment.filters |= {
        **_FILTERS,
        "distinct": _distinct,
        "clock": clock_words,
        "size": size_text,
        "span": lambda seconds: span_text(round(seconds, 1)),
    }
    return environment


@_filter
def _sentence(text: str) -> str:
    """Capitalise the first letter and add a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


@_filter
def _mark_names(text: str) -> Markup:
    """Mark up the names in backticks."""
    parts = text.split("`")
    return Markup("").join(
        Markup('<b class="name">{}</b>').format(visible(part)) if odd % 2 else visible(part)
        for odd, part in enumerate(parts)
    )


_LONG_NAME = 24
"""Characters of a class name that fit in any column. Longer names can be wrapped at separators."""


@_filter
def _class_name(name: str) -> Markup:
    r"""Mark up a class name, so that browsers prefer to wrap it after `.`, `:` and `\`."""
    shown = visible(name)
    parts = re.split(r"(?<=[.:\\])(?=\w)", shown) if len(shown) > _LONG_NAME else [shown]
    return Markup("<wbr>").join(parts)


@_filter
def _count(number: int | None) -> str:
    """Format a number, or a dash for None."""
    return "–" if number is None else f"{number:,}"


@_filter
def _rate(number: float) -> str:
    """Format a number of messages per second. It has one decimal if it is less than 10."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}".removesuffix(".0")


_RULES = {
    AlertKind.DEPTH: "more than {above:,} dead letters",
    AlertKind.GROWTH: "grows by more than {above:,} within {within}",
    AlertKind.NEW_FINGERPRINT: "a new failure within {within}",
    AlertKind.OLDEST_AGE: "a dead letter is older than {older}",
    AlertKind.JOB_STOPPED: "a job failed or was interrupted",
    AlertKind.HELD_BACK: "the broker holds back more than {above:,} messages",
    AlertKind.CONSUMER_GONE: "a queue of origin lost its consumers",
}


@_filter
def _rule_words(rule: AlertRule) -> str:
    """Describe the condition of a rule."""
    words = _RULES[rule.kind].format(
        above=rule.above,
        within=span_text(rule.within_seconds),
        older=span_text(rule.older_than_seconds),
    )
    held = rule.for_seconds and rule.kind is not AlertKind.OLDEST_AGE
    return f"{words} for {span_text(rule.for_seconds)}" if held else words


@_filter
def _moment(seconds: float, now: float) -> str:
    """Format a time in UTC. The date is omitted if it is today."""
    at, today = datetime.fromtimestamp(seconds, UTC), datetime.fromtimestamp(now, UTC)
    day = "" if at.date() == today.date() else f"{at.day} {at:%b}"
    year = "" if at.year == today.year else f" {at.year}"
    return f"{day}{year}{', ' if day else ''}{at:%H:%M:%S} UTC"


@_filter
def _weight(messages: int | None) -> str:
    """Return the weight of a queue, which is used for its style. It is from 1 to 4, depending on
    the number of digits.
    """
    return str(min(max(len(str(messages or 0)) - 1, 1), 4))


def _distinct(choices: Sequence[TargetChoice]) -> list[TargetChoice]:
    """Remove targets whose exchange and routing key are the same as those of an earlier target."""
    ways: set[tuple[str | None, str | None]] = set()
    kept = []
    for choice in choices:
        way = (choice.exchange, choice.routing_key)
        if None in way or way not in ways:
            kept.append(choice)
        ways.add(way)
    return kept


def clock_words(seconds: float) -> str:
    """Format a time in UTC. If it is outside the calendar, the number is returned."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{seconds}"


_RFC_3339 = re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z")
_CLOCK = Markup('<time datetime="{}" data-clock="{:.0f}">{} {} UTC</time>')


@_filter
def _with_clocks(text: str) -> Markup:
    """Replace RFC 3339 times with elements that browsers show in local time."""
    shown, last = Markup(""), 0
    for found in _RFC_3339.finditer(text):
        day, hour = found.groups()
        try:
            seconds = datetime.fromisoformat(f"{day}T{hour}+00:00").timestamp()
        except ValueError:  # not a valid date, so keep the text
            continue
        shown += text[last : found.start()] + _CLOCK.format(found[0], seconds, day, hour)
        last = found.end()
    return shown + text[last:]


@_filter
def _spark(trend: Sequence[tuple[float, int]]) -> str:
    """Return the points of a sparkline. It is empty if there are fewer than two samples."""
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


@_filter
def _hourly(error: ErrorGroup, until: float) -> list[tuple[float, int]]:
    """Return how often an error occurred in each of the hours before a survey."""
    begin = first_hour(until)
    counts = {hour.at: hour.count for hour in sum_hours(at.by_hour for at in error.queues)}
    hours = (Moment(begin + number * HOUR_S) for number in range(HOURS))
    return [(hour, counts.get(hour, 0)) for hour in hours]


@_filter
def _trend_words(trend: Sequence[tuple[float, int]]) -> str:
    """Describe a trend."""
    if len(trend) < 2:
        return "no history"
    change = trend[-1][1] - trend[0][1]
    during = span_text(trend[-1][0] - trend[0][0])
    return f"{change:+,} in the last {during}" if change else f"unchanged for {during}"


# Formats for details of audit entries. Other details are shown with their names.
_DETAILS = {
    "kind": "{}",
    "selected": "{:,} selected",
    "matching": "{:,} match",
    "held": "{:,} held",
    "seen": "{:,} read",
    "done": "{:,} done",
    "failed": "{:,} failed",
    "skipped": "{:,} skipped",
    "came_back": "{:,} returned",
    "came_back_least": "at least {:,} returned",
    "arrived_meanwhile": "{:,} arrived during the job",
    "remaining": "{:,} remain",
    "returned": "{:,} requeued",
    "state": "{}",
    "forced": "forced",
    "address": "from {}",
    "policy": "policy {}",
    "target": "{}",
}


@_filter
def _details_line(entry: AuditEntry) -> str:
    """Return the details of an audit entry in one line. Empty details are omitted."""
    details = dict(entry.details)
    if details.pop("came_back_at_least", False) and details.get("came_back"):
        details["came_back_least"] = details.pop("came_back")
    if isinstance(rate := details.get("rate"), float | int):
        details["rate"] = f"{rate:g} a second"
    parts = []
    for name, value in details.items():
        if value in (None, "", [], {}, False, 0):
            continue
        shown = value if isinstance(value, str | int | float) else json.dumps(value)
        words = _DETAILS.get(name)
        try:
            parts.append(f"{name} {shown}" if words is None else words.format(shown))
        except ValueError:  # an entry may contain text where a number is expected
            parts.append(f"{name} {shown}")
    return visible(", ".join(parts))


def visible(text: str, *, lines: bool = False) -> str:
    """Replace invisible characters with their names. If `lines` is True, keep line breaks and tabs."""
    return spelled_out(plain_text(text), lines=lines)


def payload_of(delivery: Delivery, form: Form) -> ShownPayload:
    """Return a payload for the page. Invisible characters are replaced."""
    properties = delivery.properties
    packing = find_packing(properties.content_encoding, properties.headers)
    parsed = plain_payload(delivery) if is_msgpack(properties.content_type) else (None, "")
    found = show_payload(delivery.body, form, packing, parsed, "Download returns all")
    return replace(found, text=visible(found.text, lines=True))


def _add_dates(value: Any) -> Any:
    """Add dates to AMQP timestamps, which for example occur in `x-death`."""
    match value:
        case Timestamp():
            return f"{clock_words(value)} ({int(value)})"
        case dict():
            return {key: _add_dates(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_add_dates(inner) for inner in value]
    return value


def header_text(value: Any) -> str:
    """Format the value of a header. Strings are not changed, and other values are shown as JSON."""
    plain = plain_value(_add_dates(value))
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, indent=1)
    cut = text[:_VALUE_SHOWN]
    return visible(cut, lines=True) + ("…" if len(text) > len(cut) else "")
