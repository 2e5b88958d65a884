"""Format names, values, paths and failure plans for users.

Names may be untrusted, so control characters are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from difflib import get_close_matches

from hopback.durations import format_duration
from hopback.text import printable
from hopback.topology.plan import Count, Leave, Plan, Return, Tier


def waits(plan: Plan) -> tuple[tuple[Tier, int], ...]:
    """Return the tiers used by a message that always fails, and how often each is used in a row."""
    laps = max(plan.attempts - 1, 0)
    once = [(tier, 1) for tier in plan.tiers[:-1]][:laps]
    rest = laps - len(once)
    return (*once, *((tier, rest) for tier in plan.tiers[-1:] if rest))


def plan_in_words(plan: Plan) -> tuple[str, ...]:
    """Describe a plan in sentences."""
    steps = [
        format_duration(tier.delay_ms)
        + (f" ({_times(laps).removeprefix('up to ')})" if laps > 1 else "")
        for tier, laps in waits(plan)
    ]
    between = f", waiting {', then '.join(steps)} between runs"
    back = "straight to its queue" if plan.returns is Return.QUEUE else "through an exchange"
    counts = "Hopback's header" if plan.count is Count.HEADER else "x-death and Hopback's header"
    counts += f" and {printable(plan.count_header)}" if plan.count_header else ""
    redriven = "restarts at one" if plan.redrive.reset else "continues"
    snoozed = "in a retry queue, without counting"
    if plan.snooze is not None:
        shortest, longest = format_duration(plan.snooze.min_ms), format_duration(plan.snooze.max_ms)
        snoozed = f"{shortest} to {longest} in the consumer and is requeued"
    parked = f"in {printable(plan.parking.queue)} {_way_out(plan.parking.by)}"
    if not steps:
        return (
            "The handler runs once. There is no retry.",
            f"A failure parks the message {parked}.",
        )
    return (
        f"The handler runs {_times(plan.attempts)}{between}.",
        f"A failed message leaves {_way_out(plan.leave)} and returns {back}.",
        f"Its last failure parks it {parked}.",
        f"Attempts are counted in {counts}. The count {redriven} after a re-drive.",
        f"A snoozed message waits {snoozed}.",
    )


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"up to {count} times")


def _way_out(leave: Leave) -> str:
    if leave is Leave.PUBLISH:
        return "by confirmed publish"
    return "by reject, moved by the broker"


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_LONGEST = 60  # maximum length of a value in a message


def quote(text: str) -> str:
    """Quote and escape a string. Long strings are truncated."""
    inner = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    escaped = inner.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(escaped)}"'


def path_to(path: str, key: str | int) -> str:
    """Return the path of an item: `queues.orders`, `queues."a b"`, `retry[2]`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    step = key if _BARE_KEY.fullmatch(key) else quote(key)
    return f"{path}.{step}" if path else step


def show_value(value: object) -> str:
    """Format a value for an error message."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(int(value)) if abs(value) < 10**30 else "a far larger number"
        case float():
            return str(float(value))
        case str():
            return quote(str(value))
        case Mapping():
            return "a table" if value else "an empty table"
        case list() | tuple():
            return "an array" if value else "an empty array"
        case datetime() | date() | time():
            return "a date or time"
    return f"a value of type {type(value).__name__}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint if there is a similar word, otherwise an empty string."""
    close = get_close_matches(word[:_LONGEST], list(known), n=1)
    return f" (did you mean {quote(close[0])}?)" if close else ""


def either(options: Iterable[str]) -> str:
    """Format a list of options: `"a", "b" or "c"`."""
    words = [quote(option) for option in options]
    return " or ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
