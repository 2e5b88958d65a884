"""The broker's record of deaths: `x-death`, read from any shape, and our bounded memory of it.

Only the broker's own entries can be trusted, and only by what they say: their order is kept by
4.x alone; before it, nothing but the first place is certain. So we search by queue and reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from hopback.fields import Timestamp, text_bytes
from hopback.headers.names import DEATHS, X_DEATH
from hopback.headers.text import clipped, count_in, text_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hopback.fields import FieldValue, Headers

__all__ = [
    "REMEMBERED_DEATHS",
    "Death",
    "deaths",
    "deaths_json",
    "last_death_queue",
    "remembered_deaths",
    "well_formed_deaths",
]

REMEMBERED_DEATHS = 10
"""How many deaths `hopback-deaths` remembers."""

_NAME_BYTES = 255  # the longest name that AMQP 0-9-1 can carry
_KEYS = 3  # the first is where it came from; CC brings the others, which only inform
_write_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_LONGEST_JSON = 32 * 1024  # we never write more: what is longer is not ours, and not worth parsing


@dataclass(frozen=True, slots=True)
class Death:
    """One entry of `x-death`: how often a message left `queue` for `reason`.

    `exchange`, `routing_keys` and `time` (seconds since 1970) are those of the first such death.
    """

    queue: str
    reason: str
    count: int = 1
    exchange: str = ""
    routing_keys: tuple[str, ...] = ()
    time: int | None = None


def deaths(headers: Headers) -> tuple[Death, ...]:
    """Every entry of `x-death` that names a queue and a reason; nothing else, and never an error."""
    return tuple(_deaths_in(headers.get(X_DEATH)))


def well_formed_deaths(headers: Headers) -> bool:
    """Whether `x-death` is absent, or such as a broker writes it.

    RabbitMQ up to 3.12 takes a client's `x-death` for its own; one of another form crashes the
    queue that dead-letters the message, or loses it.
    """
    value = headers.get(X_DEATH, ())
    return isinstance(value, list | tuple) and all(map(_well_formed, value))


def last_death_queue(headers: Headers) -> str | None:
    """The queue the message died in last, if it ever did."""
    value = headers.get(X_DEATH)
    if isinstance(value, list | tuple) and value:
        first = _death(value[0])
        return None if first is None else first.queue
    return text_in(headers.get("x-last-death-queue"))


def remembered_deaths(headers: Headers) -> tuple[Death, ...]:
    """What `hopback-deaths` remembers, the most recent first; nothing if it makes no sense."""
    value = headers.get(DEATHS)
    if not isinstance(value, str) or len(value) > _LONGEST_JSON:
        return ()
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return ()
    return tuple(_deaths_in(found))[:REMEMBERED_DEATHS]


def deaths_json(known: Iterable[Death], room: int) -> str | None:
    """As many of the most recent deaths as fit into `room` bytes, as JSON; None if none does."""
    entries = [_entry(death) for death in islice(known, REMEMBERED_DEATHS)]
    while entries:
        text = _write_json(entries)
        if text_bytes(text) <= room:
            return text
        entries.pop()
    return None


def _deaths_in(value: object) -> Iterator[Death]:
    if isinstance(value, list | tuple):
        yield from (found for found in map(_death, value) if found is not None)


def _death(entry: object) -> Death | None:
    """One entry, or None if it names no queue or no reason."""
    # The wire reads a dict; to ask for an abstract class costs ten times as much.
    if type(entry) is not dict and not isinstance(entry, Mapping):
        return None
    queue, reason = text_in(entry.get("queue")), text_in(entry.get("reason"))
    if queue is None or reason is None:
        return None
    time = entry.get("time")
    return Death(
        queue,
        reason,
        # A count that is no number still stands for a death that happened.
        count_in(entry.get("count")) or 1,
        text_in(entry.get("exchange")) or "",
        _texts(entry.get("routing-keys")),
        int(time) if isinstance(time, int) and not isinstance(time, bool) else None,
    )


def _texts(value: FieldValue) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(text for text in map(text_in, value) if text is not None)


def _entry(death: Death) -> dict[str, object]:
    """The entry as our JSON has it: the broker's field names, every text bounded."""
    return {
        "queue": clipped(death.queue, _NAME_BYTES),
        "reason": clipped(death.reason, _NAME_BYTES),
        "count": death.count,
        "exchange": clipped(death.exchange, _NAME_BYTES),
        "routing-keys": [clipped(key, _NAME_BYTES) for key in death.routing_keys[:_KEYS]],
        "time": death.time,
    }


def _well_formed(entry: object) -> bool:
    if not isinstance(entry, Mapping):
        return False
    count, keys = entry.get("count"), entry.get("routing-keys")
    texts = (entry.get(name) for name in ("queue", "reason", "exchange"))
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(count, int)
        and not isinstance(count, bool | Timestamp)
        and count > 0
        and isinstance(entry.get("time"), Timestamp)
        and isinstance(keys, list | tuple)
        and all(isinstance(key, str) for key in keys)
    )
