"""The history of a message: the broker's death records and Hopback's headers.

`x-death` is read in any format. Only the broker's entries can be trusted, and only their content:
RabbitMQ keeps their order from 4.x on, and before that only the first position is certain. The
entries are therefore searched by queue and reason. `hopback-deaths` is Hopback's bounded copy of
them.
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
"""Maximum number of deaths in `hopback-deaths`."""

# Types from the wire, from JSON, and from programs that write headers in Python. A tuple, because
# `isinstance` with a union is slower.
_ARRAYS = (list, tuple)
_KEY_TYPES = (str, LongStr)  # a routing key may be any bytes
_NAME_BYTES = 255  # the longest name that AMQP 0-9-1 can carry
_KEYS = 3  # the first is the original key, the others are from CC and only informative
_LONGEST_JSON = 32 * 1024  # characters. Longer texts are not written by Hopback


class Death(NamedTuple):
    """One entry of `x-death`: how often a message left `queue` for `reason`.

    `exchange`, `routing_keys` and `time` (seconds since 1970) are those of the first such death.
    """

    queue: str
    reason: str
    count: int = 1  # type: ignore[assignment]  # replaces the unused method `tuple.count`
    exchange: str = ""
    routing_keys: tuple[str, ...] = ()
    time: int | None = None


def deaths(headers: Headers) -> tuple[Death, ...]:
    """Return all `x-death` entries with a queue and a reason. Other entries are ignored."""
    return tuple(_deaths_in(headers.get(X_DEATH)))


def well_formed_deaths(headers: Headers) -> bool:
    """Whether `x-death` is absent or has the format that a broker writes.

    RabbitMQ up to 3.12 accepts a client's `x-death` as its own. One in another format crashes the
    queue that dead-letters the message, or loses the message.
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


def read_deaths(headers: Headers) -> tuple[Death, ...]:
    """Return the deaths in `hopback-deaths`, most recent first. An invalid header gives none."""
    value = headers.get(DEATHS)
    if isinstance(value, _ARRAYS):
        pieces = [piece for piece in islice(value, _LONGEST_JSON) if isinstance(piece, str)]
        value = "".join(pieces) if len(pieces) == len(value) else None
    if not isinstance(value, str) or len(value) > _LONGEST_JSON:
        return ()
    if len(value) > _KEPT_JSON:
        return _read_json(value)
    return _kept_json(value)


def _read_json(text: str) -> tuple[Death, ...]:
    return tuple(_deaths_in(json_in(text)))[:REMEMBERED_DEATHS]


# Characters. Adjacent messages have the same deaths, so parsed texts are cached. Long foreign texts
# are not cached.
_KEPT_JSON = 4096
_kept_json = lru_cache(maxsize=256)(_read_json)


_PIECE_BYTES = 64
"""Bytes. Erlang stores longer binaries outside the process heap and counts references to each. With
one such text in each of 500,000 messages RabbitMQ needed a quarter more CPU time per message.
"""
_PIECE_HEAD = 5  # its type and its length
_MOST_CHARACTER_BYTES = 4  # of UTF-8


def deaths_json(known: Iterable[Death], room: int) -> list[str] | None:
    """Return as many recent deaths as fit into `room` bytes, as pieces of JSON, or None if none
    fits.
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
    """One entry, or None if it names no queue or no reason."""
    # Headers from the wire are a dict. A check for an abstract class takes ten times as long.
    if type(entry) is not dict and not isinstance(entry, Mapping):
        return None
    queue, reason = text_in(entry.get("queue")), text_in(entry.get("reason"))
    if queue is None or reason is None:
        return None
    time = entry.get("time")
    return Death(
        queue,
        reason,
        # An entry with an invalid count is still at least one death.
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
    """Return the entry as JSON, with the broker's field names and bounded texts.

    It is written without `json`, because every retry and re-drive contains some of these.
    """
    keys = ",".join([_quote(key) for key in death.routing_keys[:_KEYS]])
    time = "null" if death.time is None else death.time
    return (
        f'{{"queue":{_quote(death.queue)},"reason":{_quote(death.reason)},"count":{death.count},'
        f'"exchange":{_quote(death.exchange)},"routing-keys":[{keys}],"time":{time}}}'
    )


# The deaths of a queue's messages name the same few queues, reasons and exchanges.
@lru_cache(maxsize=1024)
def _quote(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # escapes preserve surrogates of bytes that are not UTF-8
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
    """Hopback's headers of one message, for one queue. Each is parsed on first use.

    `attempts`, `snoozes` and `failure` are valid only for the queue they were written for. For
    another queue they are absent.
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
        """Number of failed runs."""
        return count_in(self._headers.get(names.ATTEMPTS)) if self._here else 0

    @property
    def snoozes(self) -> int:
        """How often it was snoozed."""
        return count_in(self._headers.get(names.SNOOZES)) if self._here else 0

    @property
    def failure(self) -> Failure | None:
        """The record of the last failure."""
        return failure_in(self._headers.get(names.FAILURE)) if self._here else None

    def failure_text(self) -> str | None:
        """Return the unchanged record of the last failure, if it may be published again."""
        return failure_text_in(self._headers.get(names.FAILURE)) if self._here else None

    @property
    def copy_id(self) -> str | None:
        """The id that all copies of this message share since its first failure in this queue."""
        return text_in(self._headers.get(names.COPY_ID)) if self._here else None

    @property
    def redrives(self) -> int:
        """How often it was re-driven."""
        return count_in(self._headers.get(names.REDRIVES))

    @property
    def redrive_job(self) -> str | None:
        """The job that re-drove it last."""
        return text_in(self._headers.get(names.REDRIVE_JOB))

    @property
    def origin_exchange(self) -> str | None:
        """The exchange it was first published to."""
        return text_in(self._headers.get(names.ORIGIN_EXCHANGE))

    @property
    def origin_routing_key(self) -> str | None:
        """The routing key it was first published with."""
        return text_in(self._headers.get(names.ORIGIN_ROUTING_KEY))

    @property
    def origin_user(self) -> str | None:
        """The `user_id` it was first published with."""
        return text_in(self._headers.get(names.ORIGIN_USER))

    @property
    def deaths(self) -> tuple[Death, ...]:
        """The most recent deaths without duplicates: the broker's records, then the remembered
        ones.
        """
        if not self._headers:
            return ()
        known = (*self.broker_deaths, *read_deaths(self._headers))
        return tuple(dict.fromkeys(known))[:REMEMBERED_DEATHS] if known else ()

    @property
    def broker_deaths(self) -> tuple[Death, ...]:
        """The broker's present records, parsed once."""
        if self._deaths is None:
            self._deaths = deaths(self._headers)
        return self._deaths

    @property
    def broker_failures(self) -> int:
        """Number of times the broker dead-lettered the message from this queue after a failure."""
        return sum(
            death.count
            for death in self.broker_deaths
            if death.queue == self.queue and death.reason in _COUNTED
        )

    @property
    def entry_route(self) -> tuple[str, str] | None:
        """Exchange and routing key by which it came to this queue before its first death there."""
        for death in self.broker_deaths:
            if death.queue == self.queue and death.routing_keys:
                return death.exchange, death.routing_keys[0]
        return None


def read_history(headers: Headers, queue: str) -> History:
    """Return Hopback's headers for `queue`. Invalid headers count as absent."""
    return History(headers, queue)


def broker_failures(headers: Headers, queue: str) -> int:
    """Return how often the broker dead-lettered the message from `queue` after a failure."""
    return History(headers, queue).broker_failures


def entry_route(headers: Headers, queue: str) -> tuple[str, str] | None:
    """Exchange and routing key by which the message came to `queue` before its first death there."""
    return History(headers, queue).entry_route


def queue_of_count(headers: Headers) -> str | None:
    """The queue our counts were written for, if the message carries any."""
    return text_in(headers.get(names.QUEUE))


def counter_in(headers: Headers, name: str | None) -> int:
    """Return a design's counter, or 0 if it is absent or invalid."""
    return 0 if name is None else count_in(headers.get(name))
