"""What happened to a dead letter, for people: one sentence, and a timeline. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.deadletters.contract import Moment, TimelineEntry
from hopback.deadletters.plain import plain_text
from hopback.headers import read_history, timestamp
from hopback.renamed import old_names

if TYPE_CHECKING:
    from hopback.deadletters.contract import DeadLetter
    from hopback.message import Delivery

__all__ = ["timeline", "what_happened"]

_BROKER = {
    "rejected": "A consumer of {queue} rejected it",
    "expired": "It waited in {queue} until its time to live was over",
    "maxlen": "It was pushed out of {queue}, which was full",
    "delivery_limit": (
        "The broker took it from {queue} because it came back unanswered too often; its consumer"
        " probably crashed or was killed, and left no record of a failure"
    ),
}


def what_happened(letter: DeadLetter) -> str:
    """One sentence or two that say why this message is here."""
    return f"{_cause(letter)}.{_before(letter)}"


def timeline(delivery: Delivery, letter: DeadLetter) -> tuple[TimelineEntry, ...]:
    """Attempts, deaths and re-drives, the oldest first; what has no time comes last."""
    known = read_history(delivery.properties.headers, letter.origin)
    events = [
        TimelineEntry(
            None if death.time is None or death.time < 0 else Moment(death.time),
            plain_text(f"left {death.queue} ({death.reason}{_times(death.count)})"),
        )
        for death in known.deaths
    ]
    if letter.recorded_by:
        if letter.first_failed is not None and letter.first_failed != letter.last_failed:
            events.append(TimelineEntry(letter.first_failed, f"failed first in {_queue(letter)}"))
        events.append(
            TimelineEntry(letter.last_failed, f"failed last in {_queue(letter)}: {_error(letter)}")
        )
    if letter.redrives:
        events.append(TimelineEntry(None, f"re-driven{_times(letter.redrives)}{_by(letter)}"))
    return tuple(sorted(events, key=lambda event: (event.time is None, event.time or 0.0)))


def _cause(letter: DeadLetter) -> str:
    if letter.recorded_by:
        by = "" if letter.recorded_by == "hopback" else f" (recorded by {letter.recorded_by})"
        when = "" if letter.last_failed is None else f" at {timestamp(letter.last_failed)}"
        return f"{_queue(letter)} gave up{_after(letter)}{when}{by}: {_error(letter)}"
    if letter.reason in _BROKER:
        return _BROKER[letter.reason].format(queue=_queue(letter)) + _after(letter)
    if letter.reason == "parked":
        return f"A consumer of {_queue(letter)} parked it without a record{_after(letter)}"
    if letter.reason == "unknown":
        return "Nothing in it says why it is here"
    return f"It left {_queue(letter)} for the reason {letter.reason!r}"


def _after(letter: DeadLetter) -> str:
    if not letter.attempts:
        return ""
    return " after 1 attempt" if letter.attempts == 1 else f" after {letter.attempts} attempts"


def _before(letter: DeadLetter) -> str:
    if not letter.redrives:
        return ""
    return f" It was re-driven{_times(letter.redrives) or ' once'} before{_by(letter)}."


def _by(letter: DeadLetter) -> str:
    return f", last by job {letter.redrive_job}" if letter.redrive_job else ""


def _times(count: int) -> str:
    return "" if count == 1 else f" {count} times"


def _queue(letter: DeadLetter) -> str:
    return letter.origin or "an unknown queue"


def _error(letter: DeadLetter) -> str:
    parts = [part for part in (letter.error, letter.error_message) if part]
    return ": ".join(parts).rstrip(".") or "no reason given"


__getattr__ = old_names(__name__, {"Event": "hopback.deadletters.TimelineEntry"})
