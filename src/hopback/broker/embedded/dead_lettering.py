"""Dead-lettering. At most once with an internal publish, or at least once with confirms.

Dead letters have an `x-death` header, whose format depends on the emulated version. It is also used
to detect cycles. There is an entry for each combination of queue and reason, with a count. The
time, exchange and routing keys of an entry are from the first death.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from hopback.broker.embedded.journal import EventKind, Loss
from hopback.broker.embedded.stored import (
    Entry,
    StoredContent,
    copy_table,
    remove_header,
    with_headers,
)
from hopback.broker.embedded.timers import Deadline
from hopback.fields import FieldValue, Headers, Timestamp, as_text, field_text

if TYPE_CHECKING:
    from hopback.broker.embedded.node import Node
    from hopback.broker.embedded.profile import Profile
    from hopback.broker.embedded.queue import LiveQueue

_Table: TypeAlias = "dict[str, FieldValue]"


class Reason(StrEnum):
    """Reasons for dead-lettering a message."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


class MalformedDeaths(Exception):
    """An `x-death` header that crashes the queue process of old versions."""


def deaths_to_count(headers: Headers, profile: Profile) -> tuple[_Table, ...]:
    """Return the deaths in an `x-death` header published by a client. Returns none before 3.13.3
    and since 4.0.
    """
    found = headers.get("x-death")
    if profile.scrambles_deaths or not profile.interprets_published_deaths:
        return ()
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        return ()
    return tuple(copy_table(table) for table in found if isinstance(table, Mapping))


def bury(
    content: StoredContent,
    queue: str,
    reason: Reason,
    *,
    exchange: str,
    routing_key: str | None,
    now: float,
    profile: Profile,
) -> StoredContent:
    """Create the dead letter for a message that died in `queue`."""
    headers = dict(content.headers)  # nested values can be shared because they are never modified
    death = _death(content, queue, reason, now)
    # All deaths, most recent first.
    older: list[_Table] = list(content.deaths)
    if profile.scrambles_deaths:
        older = _read(headers.get("x-death"))
        if len(older) > 1:
            older.reverse()
    same = [table for table in older if _is_same_death(table, death)]
    others = [table for table in older if not _is_same_death(table, death)]
    deaths = [_increment_count(same[0]) if same else death, *others]
    # Add the headers for all deaths, the first one and the last one.
    begun = "x-death" in headers if profile.scrambles_deaths else bool(content.deaths)
    headers["x-death"] = list(deaths)
    for key in ("exchange", "queue", "reason"):
        if not begun:
            headers[f"x-first-death-{key}"] = death[key]
        if profile.last_death_headers:
            headers[f"x-last-death-{key}"] = death[key]
    further = content.properties.further_headers
    if routing_key is not None and profile.removes_cc:
        further = remove_header(headers, further, "CC")
    headers = dict(sorted(headers.items()))
    dead_letter = StoredContent(
        content.body,
        with_headers(content.properties, headers, keep_expiration=False, further=further),
        headers,
        exchange,
        content.keys if routing_key is None else (routing_key,),
        content.origin,
        () if profile.scrambles_deaths else tuple(deaths),
    )
    dead_letter.buried_at = now
    dead_letter.hops = content.hops + 1 if content.buried_at == now else 1
    return dead_letter


def is_cycle(content: StoredContent, queue: str) -> bool:
    """Return True if the message has been in `queue` before and was not rejected since then."""
    deaths = content.headers.get("x-death")
    for table in deaths if isinstance(deaths, list) else ():
        if not isinstance(table, dict):
            continue
        if table.get("reason") == Reason.REJECTED:
            return False
        if table.get("queue") == queue:
            return True
    return False


def _death(content: StoredContent, queue: str, reason: Reason, now: float) -> _Table:
    copies = content.headers.get("CC")
    keys = [content.keys[0], *(copies if isinstance(copies, list) else ())]
    death: _Table = {
        "count": 1,
        "reason": str(reason),
        "queue": queue,
        "time": Timestamp(now),
        "exchange": field_text(content.exchange),
        "routing-keys": [field_text(key) for key in map(as_text, keys) if key is not None],
    }
    if content.properties.expiration is not None:
        death["original-expiration"] = content.properties.expiration
    return death


def _read(found: FieldValue) -> list[_Table]:
    """Parse the header like old versions do. Anything except an array is discarded."""
    if not isinstance(found, list):
        return []
    tables = [table for table in found if isinstance(table, dict)]
    if len(tables) != len(found):
        raise MalformedDeaths("an entry of x-death is not a table")
    return tables


def _is_same_death(table: _Table, death: _Table) -> bool:
    return table.get("queue") == death["queue"] and table.get("reason") == death["reason"]


def _increment_count(table: _Table) -> _Table:
    """Return a copy of the entry with an incremented count. Copies of a message share their
    entries.
    """
    count = table.get("count", 1)
    if not isinstance(count, int):
        raise MalformedDeaths("the count of an entry of x-death is not an integer")
    return {**table, "count": int(count) + 1}


_WINDOW = 32
"""Maximum number of dead letters in flight per queue (at-least-once)."""
_RETRY_S = 180.0
"""Seconds between attempts to deliver dead letters that were rejected."""


class DeadLetterer:
    """Moves dead letters one by one. A chain of queues would otherwise cause deep recursion."""

    __slots__ = ("_busy", "_node", "_waiting")

    def __init__(self, node: Node) -> None:
        self._node = node
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy = False

    def post(self, queue: LiveQueue, entry: Entry, reason: Reason) -> None:
        """Dead-letter a message that was removed from `queue`."""
        self.do(lambda: self._move(queue, entry, reason))

    def do(self, work: Callable[[], None]) -> None:
        """Run the work now, or later if we are already moving a dead letter."""
        self._waiting.append(work)
        if self._busy:
            return
        self._busy = True
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            self._busy = False

    def _move(self, queue: LiveQueue, entry: Entry, reason: Reason) -> None:
        if queue.settings.dead_letter_exchange is None:
            self._drop(entry, queue, Loss.NO_DEAD_LETTER_EXCHANGE)
            return
        try:
            dead_letter = _dead_letter(queue, entry, reason)
        except MalformedDeaths:
            queue.crash(entry)
            return
        targets = self._node.targets(dead_letter)
        if not targets:
            known = self._node.knows_exchange(dead_letter.exchange)
            lost = Loss.UNROUTABLE_DEAD_LETTER if known else Loss.MISSING_EXCHANGE
            self._drop(entry, queue, lost)
        for target in targets:
            if is_cycle(dead_letter, target.name):
                self._drop(entry, queue, Loss.CYCLE)
            elif not target.take_dead_letter(dead_letter):
                self._drop(entry, queue, Loss.FULL)

    def _drop(self, entry: Entry, queue: LiveQueue, loss: Loss) -> None:
        if self._node.journal is not None:
            self._node.journal.entry(EventKind.DROPPED, entry, queue.name, loss)


def _dead_letter(queue: LiveQueue, entry: Entry, reason: Reason) -> StoredContent:
    """Create the dead letter. Raises MalformedDeaths if old versions would crash."""
    settings = queue.settings
    dead_letter = bury(
        entry.content,
        queue.name,
        reason,
        exchange=settings.dead_letter_exchange or "",
        routing_key=settings.dead_letter_routing_key,
        now=queue.node.now(),
        profile=queue.profile,
    )
    dead_letter.parent = entry.number
    dead_letter.redelivered = entry.redelivered and queue.profile.carries_redelivered
    if queue.profile.carries_failures:
        dead_letter.failed, dead_letter.acquired = queue.dead_letter_counts(entry, reason)
    return dead_letter


class KeptDeadLetter:
    """A dead letter that is kept by its source queue until all targets have confirmed it."""

    __slots__ = ("content", "entry", "reason", "taken_by", "way")

    def __init__(self, entry: Entry, reason: Reason) -> None:
        self.entry: Entry = entry
        self.reason: Reason = reason
        self.content: StoredContent | None = None
        self.way: tuple[str | None, str | None] = (None, None)
        """The dead-letter exchange and routing key that were used."""
        self.taken_by: set[str] = set()


class AtLeastOnce:
    """The unconfirmed dead letters of a queue with at-least-once dead-lettering.

    If there is no target, or if all targets would form a cycle, the dead letter stays forever.
    RabbitMQ does the same.
    """

    __slots__ = ("_alarm", "_queue", "_under_way", "_waiting", "byte_count")

    def __init__(self, queue: LiveQueue) -> None:
        self._queue = queue
        self._waiting: deque[KeptDeadLetter] = deque()
        self._under_way: list[KeptDeadLetter] = []
        self._alarm = Deadline(queue.node.timers, self._retry)
        self.byte_count: int = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._under_way)

    @property
    def dead_letters(self) -> list[KeptDeadLetter]:
        """All dead letters, those in flight first."""
        return [*self._under_way, *self._waiting]

    def keep(self, entry: Entry, reason: Reason) -> None:
        """Keep a message and try to deliver it."""
        self._tell(EventKind.HELD, entry, reason)
        self._waiting.append(KeptDeadLetter(entry, reason))
        self.byte_count += len(entry.content.body)
        self._queue.node.dead_letterer.do(self._work)

    def abandon(self, loss: Loss) -> None:
        self._queue.ticks.before_change()
        for dead_letter in self.dead_letters:
            self._tell(EventKind.DROPPED, dead_letter.entry, loss)
        self._waiting.clear()
        self._under_way.clear()
        self._alarm.clear()
        self.byte_count = 0

    def _work(self) -> None:
        while self._waiting and len(self._under_way) < _WINDOW:
            dead_letter = self._waiting.popleft()
            if not self._pass_on(dead_letter):
                self._under_way.append(dead_letter)
        if self._under_way:
            self._alarm.set(self._queue.node.now() + _RETRY_S)

    def _retry(self) -> None:
        self._queue.ticks.before_change()
        self._under_way = [
            dead_letter for dead_letter in self._under_way if not self._pass_on(dead_letter)
        ]
        self._work()

    def _pass_on(self, dead_letter: KeptDeadLetter) -> bool:
        """Send the dead letter to all targets that have not confirmed it. Returns True when it is
        done.
        """
        try:
            # Reuse the dead letter if the exchange and routing key are still the same.
            settings = self._queue.settings
            way = (settings.dead_letter_exchange, settings.dead_letter_routing_key)
            if dead_letter.content is None or dead_letter.way != way:
                dead_letter.content = _dead_letter(
                    self._queue, dead_letter.entry, dead_letter.reason
                )
                dead_letter.way = way
            content = dead_letter.content
        except MalformedDeaths:
            self._done(dead_letter, EventKind.DROPPED, Loss.CRASH)
            return True
        targets = [
            target
            for target in self._queue.node.targets(content)
            if not is_cycle(content, target.name)
        ]
        for target in targets:
            if target.name not in dead_letter.taken_by and target.take_confirmed(content):
                dead_letter.taken_by.add(target.name)
        if not targets or any(target.name not in dead_letter.taken_by for target in targets):
            return False
        self._done(dead_letter, EventKind.FORWARDED, dead_letter.reason)
        return True

    def _done(self, dead_letter: KeptDeadLetter, kind: EventKind, reason: str) -> None:
        self.byte_count -= len(dead_letter.entry.content.body)
        self._tell(kind, dead_letter.entry, reason)

    def _tell(self, kind: EventKind, entry: Entry, reason: str) -> None:
        journal = self._queue.node.journal
        if journal is not None:
            journal.entry(kind, entry, self._queue.name, reason)
