"""The history of a message, based on `x-death` and Hopback's headers.

`x-death` entries are looked up by queue and reason, because their order is only reliable since
RabbitMQ 4.x. In older versions, only the first entry is known to be the latest. `hopback-deaths` is
a copy of the most recent entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import NamedTuple

from hopback.fields import FieldValue, Headers, LongStr, Timestamp, text_bytes
from hopback.headers import names
from hopback.headers.failure import Failure, failure_in, failure_text_in
from hopback.headers.names import DEATHS, X_DEATH
from hopback.text import clip, count_in, json_in, text_in

REMEMBERED_DEATHS = 10
"""Maximum number of entries in `hopback-deaths`."""

# A tuple, because `isinstance` is slower with a union.
_ARRAYS = (list, tuple)
_KEY_TYPES = (str, LongStr)  # routing keys may contain any bytes
_NAME_BYTES = 255  # maximum length of a name in AMQP 0-9-1
_KEYS = 3  # the original key and a few keys from CC
_LONGEST_JSON = 32 * 1024  # characters, longer values were not written by Hopback


class Death(NamedTuple):
    """An entry of `x-death`.

    `exchange`, `routing_keys` and `time` belong to the first death with this queue and reason.
    """

    queue: str
    reason: str
    count: int = 1  # type: ignore[assignment]  # replaces the unused method `tuple.count`
    exchange: str = ""
    routing_keys: tuple[str, ...] = ()
    time: int | None = None


def deaths(headers: Headers) -> tuple[Death, ...]:
    """Return the entries of `x-death`. Entries without a queue or reason are ignored."""
    return tuple(_deaths_in(headers.get(X_DEATH)))


def well_formed_deaths(headers: Headers) -> bool:
    """Return True if `x-death` is missing or well-formed.

    RabbitMQ up to 3.12 trusts an `x-death` header published by a client. If it is malformed, the
    message is lost or the queue process crashes.
    """
    value = headers.get(X_DEATH, ())
    return isinstance(value, _ARRAYS) and all(map(_well_formed, value))


def last_death_queue(headers: Headers) -> str | None:
    """Return the queue that last dead-lettered the message, or None."""
    value = headers.get(X_DEATH)
    if isinstance(value, _ARRAYS) and value:
        first = _death(value[0])
        return None if first is None else first.queue
    return text_in(headers.get("x-last-death-queue"))


def read_deaths(headers: Headers) -> tuple[Death, ...]:
    """Return the entries of `hopback-deaths`, most recent first.

    Returns an empty tuple if it is invalid.
    """
    value = headers.get(DEATHS)
    if isinstance(value, _ARRAYS):
        pieces = [piece for piece in islice(value, _LONGEST_JSON) if isinstance(piece, str)]
        value = "".join(pieces) if len(pieces) == len(value) else None
    if not isinstance(value, str) or len(value) > _LONGEST_JSON:
        return ()
    if len(value) > _LONGEST_CACHED:
        return _read_json(value)
    return _cached_json(value)


def _read_json(text: str) -> tuple[Death, ...]:
    return tuple(_deaths_in(json_in(text)))[:REMEMBERED_DEATHS]


# Maximum number of characters to cache. Messages in a queue often have the same deaths.
_LONGEST_CACHED = 4096
_cached_json = lru_cache(maxsize=256)(_read_json)


_PIECE_BYTES = 64
"""Maximum size of a string in bytes. Erlang stores longer strings outside of the process heap. With
such a string in each of 500,000 messages, RabbitMQ needed 25 % more CPU time per message.
"""
_PIECE_HEAD = 5  # type and length
_MOST_CHARACTER_BYTES = 4  # in UTF-8


def deaths_json(known: Iterable[Death], room: int) -> list[str] | None:
    """Encode recent deaths as JSON, split into short strings.

    As many deaths are included as fit into `room` bytes. Returns None if none of them fit.
    """
    entries = [_entry_json(death) for death in islice(known, REMEMBERED_DEATHS)]
    while entries:
        text = f"[{','.join(entries)}]"
        size = _PIECE_BYTES if text.isascii() else _PIECE_BYTES // _MOST_CHARACTER_BYTES
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        if text_bytes(text) + _PIECE_HEAD * len(pieces) <= room:
            return pieces
        entries.pop()
    return None


def _deaths_in(value: object) -> list[Death]:
    if not isinstance(value, _ARRAYS):
        return []
    return [found for found in map(_death, value) if found is not None]


def _death(entry: object) -> Death | None:
    """Parse an entry. Returns None if it does not have a queue and a reason."""
    # Check for dict first, because checking for an abstract class is about ten times slower.
    if type(entry) is not dict and not isinstance(entry, Mapping):
        return None
    queue, reason = text_in(entry.get("queue")), text_in(entry.get("reason"))
    if queue is None or reason is None:
        return None
    time = entry.get("time")
    return Death(
        queue,
        reason,
        # Treat an invalid count as one.
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
    """Encode an entry as JSON. This is faster than `json.dumps`."""
    keys = ",".join([_quote(key) for key in death.routing_keys[:_KEYS]])
    time = "null" if death.time is None else death.time
    return (
        f'{{"queue":{_quote(death.queue)},"reason":{_quote(death.reason)},"count":{death.count},'
        f'"exchange":{_quote(death.exchange)},"routing-keys":[{keys}],"time":{time}}}'
    )


# The result is cached, because messages of a queue have the same queue names, reasons and exchanges.
@lru_cache(maxsize=1024)
def _quote(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # keep surrogates of invalid UTF-8
        return encode_basestring_ascii(text[:_NAME_BYTES])
    return encode_basestring(clip(text, _NAME_BYTES))


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
        and all(isinstance(key, _KEY_TYPES) for key in keys)
    )


_COUNTED = frozenset({"rejected", "delivery_limit"})


class History:
    """The headers of a message. Values are parsed on first access.

    `attempts`, `snoozes` and `failure` only apply to the queue they were written for.
    """

    __slots__ = ("_deaths", "_headers", "_here", "marked_queue", "queue")

    def __init__(self, headers: Headers, queue: str) -> None:
        self._headers = headers
        self.queue: str = queue
        self.marked_queue: str | None = queue_of_count(headers)
        self._here = self.marked_queue == queue
        self._deaths: tuple[Death, ...] | None = None

    @property
    def headers(self) -> Headers:
        return self._headers

    @property
    def attempts(self) -> int:
        """The number of failed attempts."""
        return count_in(self._headers.get(names.ATTEMPTS)) if self._here else 0

    @property
    def snoozes(self) -> int:
        return count_in(self._headers.get(names.SNOOZES)) if self._here else 0

    @property
    def failure(self) -> Failure | None:
        """The last failure."""
        return failure_in(self._headers.get(names.FAILURE)) if self._here else None

    def failure_text(self) -> str | None:
        """Return the encoded record of the last failure, or None if it is invalid."""
        return failure_text_in(self._headers.get(names.FAILURE)) if self._here else None

    @property
    def copy_id(self) -> str | None:
        """The id shared by all copies of this message since the first failure."""
        return text_in(self._headers.get(names.COPY_ID)) if self._here else None

    @property
    def redrives(self) -> int:
        return count_in(self._headers.get(names.REDRIVES))

    @property
    def redrive_job(self) -> str | None:
        """The id of the last re-drive job."""
        return text_in(self._headers.get(names.REDRIVE_JOB))

    @property
    def origin_exchange(self) -> str | None:
        """The exchange the message was originally published to."""
        return text_in(self._headers.get(names.ORIGIN_EXCHANGE))

    @property
    def origin_routing_key(self) -> str | None:
        """The routing key the message was originally published with."""
        return text_in(self._headers.get(names.ORIGIN_ROUTING_KEY))

    @property
    def origin_user(self) -> str | None:
        """The `user_id` the message was originally published with."""
        return text_in(self._headers.get(names.ORIGIN_USER))

    @property
    def deaths(self) -> tuple[Death, ...]:
        """The most recent deaths from `x-death` and `hopback-deaths`, without duplicates."""
        if not self._headers:
            return ()
        known = (*self.broker_deaths, *read_deaths(self._headers))
        return tuple(dict.fromkeys(known))[:REMEMBERED_DEATHS] if known else ()

    @property
    def broker_deaths(self) -> tuple[Death, ...]:
        """The entries of `x-death`."""
        if self._deaths is None:
            self._deaths = deaths(self._headers)
        return self._deaths

    @property
    def broker_failures(self) -> int:
        """How often the broker dead-lettered the message from this queue after a failure."""
        return sum(
            death.count
            for death in self.broker_deaths
            if death.queue == self.queue and death.reason in _COUNTED
        )

    @property
    def entry_route(self) -> tuple[str, str] | None:
        """The exchange and routing key before the first death in this queue, or None."""
        for death in self.broker_deaths:
            if death.queue == self.queue and death.routing_keys:
                return death.exchange, death.routing_keys[0]
        return None


def read_history(headers: Headers, queue: str) -> History:
    """Return the history of a message for a queue."""
    return History(headers, queue)


def broker_failures(headers: Headers, queue: str) -> int:
    """Return how often the broker dead-lettered the message from `queue` after a failure."""
    return History(headers, queue).broker_failures


def entry_route(headers: Headers, queue: str) -> tuple[str, str] | None:
    """Return the exchange and routing key before the first death in `queue`, or None."""
    return History(headers, queue).entry_route


def queue_of_count(headers: Headers) -> str | None:
    """Return the queue that Hopback's counts were written for, or None."""
    return text_in(headers.get(names.QUEUE))


def counter_in(headers: Headers, name: str | None) -> int:
    """Return the value of a counter, or 0 if it is missing or invalid."""
    return 0 if name is None else count_in(headers.get(name))
