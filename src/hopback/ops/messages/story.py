"""Explain in sentences why a dead letter is in its queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.headers import read_history, timestamp
from hopback.ops.contract.values import DeadLetter, Moment, TimelineEntry
from hopback.ops.messages.body import parse_content
from hopback.ops.messages.plain import plain_text
from hopback.ops.messages.tasks import read_task_call
from hopback.text import count_of

if TYPE_CHECKING:
    from hopback.message import Delivery


_BROKER = {
    "rejected": "A consumer of {queue} rejected it{after}",
    "expired": "It expired in {queue}{after}",
    "maxlen": "It was dropped from {queue}, which was full{after}",
    "delivery_limit": (
        "It exceeded the delivery limit of {queue}{after}. Its consumer probably crashed or was killed and"
        " left no record of a failure"
    ),
}


def describe_failure(dead_letter: DeadLetter, delivery: Delivery | None = None) -> str:
    """Describe the failure, earlier re-drives and the task of a message in sentences."""
    times, before = dead_letter.redrives, ""
    if times:
        before = f" It was re-driven{_times(times) or ' once'} before{_by(dead_letter)}."
    task = ""
    if delivery is not None:
        call = read_task_call(delivery, parse_content(delivery))
        task = "" if call is None else f" It is the {plain_text(str(call))}."
    return f"{_cause(dead_letter)}.{before}{task}"


def timeline(delivery: Delivery, dead_letter: DeadLetter) -> tuple[TimelineEntry, ...]:
    """Return attempts, deaths and re-drives, oldest first. Those without a time come last.

    Brokers report the time of a death in whole seconds. Within the same second, the first failure
    comes before the deaths, and the last failure after them.
    """
    known = read_history(delivery.properties.headers, dead_letter.origin)
    events = [
        TimelineEntry(
            None if death.time is None or death.time < 0 else Moment(death.time),
            plain_text(f"left {death.queue} ({death.reason}{_times(death.count)})"),
        )
        for death in known.deaths
    ]
    if dead_letter.recorded_by:
        first, last, queue = dead_letter.first_failed, dead_letter.last_failed, _queue(dead_letter)
        if first is not None and first != last:
            events.insert(0, TimelineEntry(first, f"failed first in {queue}"))
        events.append(TimelineEntry(last, f"failed last in {queue}: {_error(dead_letter)}"))
    if times := dead_letter.redrives:
        events.append(TimelineEntry(None, f"re-driven{_times(times)}{_by(dead_letter)}"))
    return tuple(sorted(events, key=lambda event: (event.time is None, int(event.time or 0))))


def _cause(dead_letter: DeadLetter) -> str:
    queue, after = _queue(dead_letter), _after(dead_letter)
    if dead_letter.recorded_by:
        recorder, last = dead_letter.recorded_by, dead_letter.last_failed
        by = "" if recorder == "hopback" else f" (recorded by {recorder})"
        when = "" if last is None else f" at {timestamp(last)}"
        return f"{queue} gave up{after}{when}{by}: {_error(dead_letter)}"
    if dead_letter.reason in _BROKER:
        return _BROKER[dead_letter.reason].format(queue=queue, after=after)
    if dead_letter.reason == "parked":
        return f"A consumer of {queue} parked it without a record{after}"
    if dead_letter.reason == "unknown":
        return "It does not contain the reason for its failure"
    return f"It left {queue} for the reason {dead_letter.reason!r}"


def _after(dead_letter: DeadLetter) -> str:
    if not dead_letter.attempts:
        return ""
    least = "at least " if dead_letter.attempts_at_least else ""
    return f" after {least}{count_of(dead_letter.attempts, 'attempt')}"


def _by(dead_letter: DeadLetter) -> str:
    return f", last by job {dead_letter.redrive_job}" if dead_letter.redrive_job else ""


def _times(count: int) -> str:
    return "" if count == 1 else f" {count} times"


def _queue(dead_letter: DeadLetter) -> str:
    return dead_letter.origin or "an unknown queue"


def _error(dead_letter: DeadLetter) -> str:
    parts = [part for part in (dead_letter.error, dead_letter.error_message) if part]
    return ": ".join(parts).rstrip(".") or "no reason given"
