"""The broker's record of deaths: `x-death`, read from any shape, and our bounded memory of it.

Only the broker's own entries can be trusted, and only by what they say: their order is kept by
4.x alone; before it, nothing but the first place is certain. So we search by queue and reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, NamedTuple

from hopback.fields import Timestamp, text_bytes
from hopback.headers.names import DEATHS, X_DEATH
from hopback.headers.text import clipped, count_in, json_in, text_in

if TYPE_CHECKING:
    from collections.abc import Iterable

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

# Of the wire, of JSON, and of whoever writes headers in Python; a union of types is asked more slowly.
_ARRAYS = (list, tuple)
_NAME_BYTES = 255  # the longest name that AMQP 0-9-1 can carry
_KEYS = 3  # the first is where it came from; CC brings the others, which only inform
_LONGEST_JSON = 32 * 1024  # we never write more: what is longer is not ours, and not worth parsing


class Death(NamedTuple):
    """One entry of `x-death`: how often a message left `queue` for `reason`.

    `exchange`, `routing_keys` and `time` (seconds since 1970) are those of the first such death.
    """

    queue: str
    reason: str
    count: int = 1  # type: ignore[assignment]  # instead of a method of tuples that nobody needs here
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
    return isinstance(value, _ARRAYS) and all(map(_well_formed, value))


def last_death_queue(headers: Headers) -> str | None:
    """The queue the message died in last, if it ever did."""
    value = headers.get(X_DEATH)
    if isinstance(value, _ARRAYS) and value:
        first = _death(value[0])
        return None if first is None else first.queue
    return text_in(headers.get("x-last-death-queue"))


def remembered_deaths(headers: Headers) -> tuple[Death, ...]:
    """What `hopback-deaths` remembers, the most recent first; nothing if it makes no sense."""
    value = headers.get(DEATHS)
    if not isinstance(value, str) or len(value) > _LONGEST_JSON:
        return ()
    if len(value) > _KEPT_JSON:
        return _read_json(value)
    return _kept_json(value)


def _read_json(text: str) -> tuple[Death, ...]:
    return tuple(_deaths_in(json_in(text)))[:REMEMBERED_DEATHS]


# Neighbours in a queue remember the same deaths; a stranger's long texts are not kept.
_KEPT_JSON = 4096
_kept_json = lru_cache(maxsize=256)(_read_json)


def deaths_json(known: Iterable[Death], room: int) -> str | None:
    """As many of the most recent deaths as fit into `room` bytes, as JSON; None if none does."""
    entries = [_entry_json(death) for death in islice(known, REMEMBERED_DEATHS)]
    while entries:
        text = f"[{','.join(entries)}]"
        if text_bytes(text) <= room:
            return text
        entries.pop()
    return None


def _deaths_in(value: object) -> list[Death]:
    if not isinstance(value, _ARRAYS):
        return []
    return [found for found in map(_death, value) if found is not None]


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
    if not isinstance(value, _ARRAYS):
        return ()
    return tuple([text for text in map(text_in, value) if text is not None])


def _entry_json(death: Death) -> str:
    """The entry as our JSON has it: the broker's field names, every text bounded.

    Written out by hand: every message that is retried or re-driven carries some of these.
    """
    keys = ",".join([_quoted(key) for key in death.routing_keys[:_KEYS]])
    time = "null" if death.time is None else death.time
    return (
        f'{{"queue":{_quoted(death.queue)},"reason":{_quoted(death.reason)},"count":{death.count},'
        f'"exchange":{_quoted(death.exchange)},"routing-keys":[{keys}],"time":{time}}}'
    )


# The deaths of a queue's messages name the same few queues, reasons and exchanges.
@lru_cache(maxsize=1024)
def _quoted(text: str) -> str:
    return encode_basestring(clipped(text, _NAME_BYTES))


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
        and isinstance(keys, _ARRAYS)
        and all(isinstance(key, str) for key in keys)
    )
