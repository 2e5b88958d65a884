"""Templates, and message content for eyes: escaped, bounded, with everything visible that tries to hide.

Content is hostile. It is only ever text here; what cannot be seen (control characters, escapes for
terminals, marks that turn the direction of writing) is written as a name, and what is compressed is
unpacked only as far as it is shown.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hopback.headers import timestamp
from hopback.ops.alerts.values import AlertKind, AlertRule
from hopback.ops.contract.options import options_of
from hopback.ops.contract.requests import RedriveRequest
from hopback.ops.contract.roles import Role
from hopback.ops.contract.values import HELD_BACK, AuditEntry, Moment, TargetChoice
from hopback.ops.messages.body import find_packing, is_msgpack, unpack_body
from hopback.ops.messages.error_groups import first_hour, sum_hours
from hopback.ops.messages.grouping import HOUR_S, HOURS
from hopback.ops.messages.plain import plain_payload, plain_text, pretty_json
from hopback.text import size_text
from hopback.text import visible as spelled_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hopback.message import Delivery
    from hopback.ops.contract.surveys import ErrorGroup, TrendSample

# Of the small line, in the units of its viewBox.
_SPARK_WIDTH = 100.0
_SPARK_HEIGHT = 22.0
_P = ParamSpec("_P")
_T = TypeVar("_T")


def _samples(
    kept: Sequence[TrendSample], now: float, messages: int | None
) -> list[tuple[float, int]]:
    """The depths that were kept, up to now: what changed since the last of them is not left out."""
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
    """Let templates use it, under its name."""
    _FILTERS[function.__name__.strip("_")] = function
    return function


STATIC = Path(__file__).with_name("static")


@cache
def renderer() -> Environment:
    """The environment of all templates, compiled once; what is not defined is an error, not an empty text."""
    environment = Environment(
        loader=PackageLoader("hopback.ops.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["options"] = {one.json: one for one in options_of(RedriveRequest)}
    environment.globals["held_back_means"] = HELD_BACK
    # Every link of a page begins with it: the pages of one broker among several have a path of their own.
    environment.globals["base"] = ""
    environment.globals["switch"] = None
    environment.filters |= {
        **_FILTERS,
        "distinct": _distinct,
        "clock": clock_words,
        "size": size_text,
        "span": span_words,
    }
    return environment


@_filter
def _sentence(text: str) -> str:
    """The text as a sentence: a capital letter, a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


@_filter
def _ticked(text: str) -> Markup:
    """A text of ours in which names stand in backticks, with the names marked."""
    parts = text.split("`")
    return Markup("").join(
        Markup('<b class="name">{}</b>').format(visible(part)) if odd % 2 else visible(part)
        for odd, part in enumerate(parts)
    )


@_filter
def _count(number: int | None) -> str:
    """A number for people; a dash where nobody knows it."""
    return "–" if number is None else f"{number:,}"


@_filter
def _rate(number: float) -> str:
    """Messages a second for people: no digits that nobody needs."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}".removesuffix(".0")


def span_words(seconds: float) -> str:
    """A span of time in the unit that fits."""
    seconds = max(seconds, 0.0)
    for limit, unit, divisor in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            value = seconds / divisor
            return f"{value:.1f} {unit}" if unit == "s" and value < 10 else f"{value:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


_RULES = {
    AlertKind.DEPTH: "more than {above:,} dead letters rest in it",
    AlertKind.GROWTH: "it grows by more than {above:,} within {within}",
    AlertKind.NEW_FINGERPRINT: "a failure shows up that is new within {within}",
    AlertKind.OLDEST_AGE: "a dead letter is older than {older}",
    AlertKind.JOB_STOPPED: "a job has failed or was interrupted",
    AlertKind.HELD_BACK: "the broker holds back more than {above:,} messages",
    AlertKind.CONSUMER_GONE: "a queue of origin lost its consumers",
}


@_filter
def _rule_words(rule: AlertRule) -> str:
    """When a rule fires, for people."""
    words = _RULES[rule.kind].format(
        above=rule.above,
        within=span_words(rule.within_seconds),
        older=span_words(rule.older_than_seconds),
    )
    held = rule.for_seconds and rule.kind is not AlertKind.OLDEST_AGE
    return f"{words} for {span_words(rule.for_seconds)}" if held else words


@_filter
def _moment(seconds: float, now: float) -> str:
    """A moment for people, in UTC and with that said; the day only if it is not today."""
    at, today = datetime.fromtimestamp(seconds, UTC), datetime.fromtimestamp(now, UTC)
    day = "" if at.date() == today.date() else f"{at.day} {at:%b}"
    year = "" if at.year == today.year else f" {at.year}"
    return f"{day}{year}{', ' if day else ''}{at:%H:%M:%S} UTC"


@_filter
def _weight(messages: int | None) -> str:
    """How heavy a queue weighs at a glance: one step for each power of ten from a hundred on."""
    return str(min(max(len(str(messages or 0)) - 1, 1), 4))


def _distinct(choices: Sequence[TargetChoice]) -> list[TargetChoice]:
    """The targets of a re-drive, each way once: the first that leads there is the one to choose."""
    ways: set[tuple[str | None, str | None]] = set()
    kept = []
    for choice in choices:
        way = (choice.exchange, choice.routing_key)
        if None in way or way not in ways:
            kept.append(choice)
        ways.add(way)
    return kept


def clock_words(seconds: float) -> str:
    """A moment as a clock shows it, in UTC; the number where no calendar has such a day."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{seconds}"


_RFC_3339 = re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z")
_CLOCK = Markup('<time datetime="{}" data-clock="{:.0f}">{} {} UTC</time>')


@_filter
def _with_clocks(text: str) -> Markup:
    """A sentence in which moments stand as programs write them, as people read them where they are."""
    shown, last = Markup(""), 0
    for found in _RFC_3339.finditer(text):
        day, hour = found.groups()
        try:
            seconds = datetime.fromisoformat(f"{day}T{hour}+00:00").timestamp()
        except ValueError:  # no calendar has such a day: it stays as it is
            continue
        shown += text[last : found.start()] + _CLOCK.format(found[0], seconds, day, hour)
        last = found.end()
    return shown + text[last:]


@_filter
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


@_filter
def _hourly(error: ErrorGroup, until: float) -> list[tuple[float, int]]:
    """The failures of an error in each hour up to a survey."""
    begin = first_hour(until)
    counts = {hour.at: hour.count for hour in sum_hours(at.by_hour for at in error.queues)}
    hours = (Moment(begin + number * HOUR_S) for number in range(HOURS))
    return [(hour, counts.get(hour, 0)) for hour in hours]


@_filter
def _trend_words(trend: Sequence[tuple[float, int]]) -> str:
    """The same in words."""
    if len(trend) < 2:
        return "no past known"
    change = trend[-1][1] - trend[0][1]
    during = span_words(trend[-1][0] - trend[0][0])
    return f"{change:+,} in the last {during}" if change else f"unchanged for {during}"


# What the audit writes for programs, in words; what is not here is told under its own name.
_DETAILS = {
    "kind": "{}",
    "selected": "{:,} selected",
    "matching": "{:,} match",
    "held": "{:,} held",
    "seen": "{:,} looked at",
    "done": "{:,} done",
    "failed": "{:,} failed",
    "skipped": "{:,} skipped",
    "came_back": "{:,} came back",
    "came_back_least": "at least {:,} came back",
    "arrived_meanwhile": "{:,} arrived meanwhile",
    "remaining": "{:,} remain",
    "returned": "{:,} given back",
    "state": "{}",
    "forced": "despite the danger",
    "address": "from {}",
    "policy": "policy {}",
    "target": "{}",
}


@_filter
def _told(entry: AuditEntry) -> str:
    """What an audit entry says beside who, where and why, on one line; what is not so goes without."""
    details = dict(entry.details)
    if details.pop("came_back_at_least", False) and details.get("came_back"):
        details["came_back_least"] = details.pop("came_back")
    if details.get("kind") == "discard" or details.get("target") == "design":
        details.pop("target", None)  # there is none, or it is the one that goes without saying
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
        except ValueError:  # a number was expected, and a hand-written entry has a text
            parts.append(f"{name} {shown}")
    return visible(", ".join(parts))


_SHOWN_BYTES = 128 * 1024  # browsers stay quick; the whole is behind Download
_PARSED_BYTES = (
    512 * 1024
)  # parsed within a few milliseconds, and as much as a packed body may grow to
_HEX_BYTES = 4096  # 256 rows
_HEX_ROW = 16  # as hex dumps have


class Form(StrEnum):
    """How a payload can be shown."""

    PRETTY = "pretty"
    RAW = "raw"
    HEX = "hex"


@dataclass(frozen=True, slots=True)
class ShownPayload:
    """A payload made ready to be shown. `note` says what was done to it or left out."""

    form: Form
    text: str
    note: str
    size: int


def visible(text: str, *, lines: bool = False) -> str:
    """The text with everything invisible spelled out; `lines` keeps line ends and tabs."""
    return spelled_out(plain_text(text), lines=lines)


def payload_of(delivery: Delivery, form: Form) -> ShownPayload:
    """The payload in that form; a binary one is shown in hex whatever was asked for."""
    body = delivery.body
    if form is Form.HEX:
        return _hex(body, "")
    # What is inside a packed body, never more than is shown, and what was done to it.
    said = delivery.properties
    notes: list[str] = []
    inside, is_whole, packed_by = unpack_body(delivery, _PARSED_BYTES)
    if packed_by:
        notes.append(f"unpacked from {packed_by}{'' if is_whole else ', as far as it is shown'}")
    else:
        inside, how = body, find_packing(said.content_encoding, said.headers)
        notes += [f"says it is {how}, and is not"] if how else []
    if form is Form.PRETTY and is_msgpack(said.content_type):
        payload, encoding = plain_payload(delivery)
        if encoding == "msgpack":
            inside = json.dumps(payload, ensure_ascii=False).encode()
            notes.append("as JSON, from MessagePack")
    cut_at = len(inside)
    if cut_at > _SHOWN_BYTES:  # where a character ends
        cut_at = _SHOWN_BYTES
        while cut_at > _SHOWN_BYTES - 4 and inside[cut_at] & 0xC0 == 0x80:
            cut_at -= 1
    try:
        text = inside[:cut_at].decode("utf-8")
    except UnicodeDecodeError:
        return _hex(body, "not UTF-8 text, therefore in hex")
    if form is Form.PRETTY:
        # Larger ones would take a browser too long to show, and us to parse.
        small = len(inside) <= _PARSED_BYTES
        pretty = pretty_json(inside, _SHOWN_BYTES) if small else None
        if pretty is not None:
            text, cut = pretty
            notes += ["cut: the whole is behind Download"] if cut else []
            return ShownPayload(Form.PRETTY, visible(text, lines=True), "; ".join(notes), len(body))
    if len(inside) > _SHOWN_BYTES:
        notes.append(f"the first {_SHOWN_BYTES // 1024} KiB; the whole is behind Download")
    return ShownPayload(Form.RAW, visible(text, lines=True), "; ".join(notes), len(body))


def _hex(body: bytes, note: str) -> ShownPayload:
    if len(body) > _HEX_BYTES:
        cut = f"the first {_HEX_BYTES // 1024} KiB; the whole is behind Download"
        note = f"{note}; {cut}" if note else cut
    rows = []
    for start in range(0, min(len(body), _HEX_BYTES), _HEX_ROW):
        row = body[start : min(start + _HEX_ROW, _HEX_BYTES)]
        shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in row)
        rows.append(f"{start:08x}  {row.hex(' '):<{_HEX_ROW * 3 - 1}}  {shown}")
    return ShownPayload(Form.HEX, "\n".join(rows), note, len(body))
