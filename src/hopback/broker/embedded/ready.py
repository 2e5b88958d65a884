"""The ready messages of a queue in delivery order.

Returned messages are delivered before new ones. In a classic queue they return to their original
position. In a quorum queue they are ordered by the time they were returned.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from hopback.broker.embedded.profile import Priorities

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hopback.broker.embedded.stored import Entry

_HIGHEST = 31
"""The highest priority of quorum queues in 4.3. Larger values are treated as 31."""
_UNSET = 4
"""The default priority. In 4.0, this is also the highest normal one."""


class Ready(Protocol):
    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Entry]: ...

    def push(self, entry: Entry) -> None:
        """Add a new message at the end."""

    def give_back(self, entry: Entry) -> None:
        """Insert a returned message. The position depends on the queue type."""

    def head(self) -> Entry | None:
        """Return the next message."""

    def pop(self) -> Entry:
        """Remove and return the next message."""

    def pop_expired(self, now: float) -> Entry | None:
        """Remove and return an expired message, if there is one where the queue checks."""

    def next_expiry(self) -> float | None:
        """Return the earliest expiry of the messages that the queue checks."""


class ClassicReady:
    """The messages of a classic queue. If it has priorities, there is one instance for each of
    them.
    """

    __slots__ = ("_fresh", "_returned")

    def __init__(self) -> None:
        self._fresh: deque[Entry] = deque()
        # All messages that were delivered before are older than those that were not, so two parts
        # are enough.
        self._returned: list[tuple[int, Entry]] = []

    def __len__(self) -> int:
        return len(self._fresh) + len(self._returned)

    def __iter__(self) -> Iterator[Entry]:
        return chain((entry for _, entry in sorted(self._returned)), self._fresh)

    def push(self, entry: Entry) -> None:
        """Add a new message at the end."""
        self._fresh.append(entry)

    def give_back(self, entry: Entry) -> None:
        heappush(self._returned, (entry.number, entry))

    def head(self) -> Entry | None:
        if self._returned:
            return self._returned[0][1]
        return self._fresh[0] if self._fresh else None

    def pop(self) -> Entry:
        return heappop(self._returned)[1] if self._returned else self._fresh.popleft()

    def pop_expired(self, now: float) -> Entry | None:
        """Remove and return the head if it has expired."""
        return _pop_expired(self, now)

    def next_expiry(self) -> float | None:
        head = self.head()
        return None if head is None else head.expires


class PriorityReady:
    """The messages of a classic queue with `x-max-priority`, highest priority first."""

    __slots__ = ("_by_priority", "_length")

    def __init__(self, highest: int) -> None:
        self._by_priority = [ClassicReady() for _ in range(highest + 1)]
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Entry]:
        return chain.from_iterable(reversed(self._by_priority))

    def push(self, entry: Entry) -> None:
        """Add a new message behind others with its priority."""
        self._of_priority(entry).push(entry)
        self._length += 1

    def give_back(self, entry: Entry) -> None:
        self._of_priority(entry).give_back(entry)
        self._length += 1

    def head(self) -> Entry | None:
        return self._foremost().head() if self._length else None

    def pop(self) -> Entry:
        entry = self._foremost().pop()
        self._length -= 1
        return entry

    def pop_expired(self, now: float) -> Entry | None:
        """Remove and return the head if it has expired."""
        return _pop_expired(self, now)

    def next_expiry(self) -> float | None:
        head = self.head()
        return None if head is None else head.expires

    def _of_priority(self, entry: Entry) -> ClassicReady:
        wanted = entry.content.properties.priority or 0
        return self._by_priority[min(wanted, len(self._by_priority) - 1)]

    def _foremost(self) -> ClassicReady:
        return next(waiting for waiting in reversed(self._by_priority) if waiting)


class QuorumReady:
    """The messages of a quorum queue. Returned messages come first, followed by new ones in order
    of priority.
    """

    __slots__ = ("_fresh", "_length", "_priorities", "_returned", "_turn")

    def __init__(self, priorities: Priorities) -> None:
        self._length = 0
        self._returned: deque[Entry] = deque()
        self._priorities = priorities
        classes = {
            Priorities.IGNORED: 1,
            Priorities.TWO_CLASSES: 2,
            Priorities.STRICT: _HIGHEST + 1,
        }
        self._fresh: Sequence[deque[Entry]] = [deque() for _ in range(classes[priorities])]
        self._turn = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Entry]:
        return chain(self._returned, chain.from_iterable(reversed(self._fresh)))

    def push(self, entry: Entry) -> None:
        """Add a new message behind others with its priority."""
        self._length += 1
        if self._priorities is Priorities.IGNORED:
            self._fresh[0].append(entry)
            return
        priority = entry.content.properties.priority
        if self._priorities is Priorities.TWO_CLASSES:
            level = int((priority or 0) > _UNSET)
        else:
            level = _UNSET if priority is None else min(priority, _HIGHEST)
        self._fresh[level].append(entry)

    def give_back(self, entry: Entry) -> None:
        """Insert a message after earlier returned messages and before new ones."""
        self._length += 1
        self._returned.append(entry)

    def head(self) -> Entry | None:
        waiting = self._returned or self._next_fresh()
        return waiting[0] if waiting else None

    def pop(self) -> Entry:
        self._length -= 1
        if self._returned:
            return self._returned.popleft()
        waiting = self._next_fresh()
        self._turn = (self._turn + 1) % 3
        return waiting.popleft()

    def pop_expired(self, now: float) -> Entry | None:
        """Remove and return an expired head. In 4.3, the head of each priority is checked."""
        for waiting in self._checked_lists():
            if waiting and waiting[0].expires is not None and waiting[0].expires <= now:
                self._length -= 1
                return waiting.popleft()
        return None

    def next_expiry(self) -> float | None:
        """Return the earliest expiry of the heads that are checked."""
        heads = (waiting[0].expires for waiting in self._checked_lists() if waiting)
        return min((moment for moment in heads if moment is not None), default=None)

    def _checked_lists(self) -> Iterator[deque[Entry]]:
        if self._priorities is Priorities.STRICT:
            return chain((self._returned,), reversed(self._fresh))
        return iter((self._returned or self._next_fresh(),))

    def _next_fresh(self) -> deque[Entry]:
        """Return the deque to deliver from next. It is empty if all of them are."""
        fresh = self._fresh
        if len(fresh) == 1:
            return fresh[0]
        if self._priorities is Priorities.TWO_CLASSES:
            normal, high = fresh
            return high if high and (self._turn < 2 or not normal) else normal
        return next((waiting for waiting in reversed(fresh) if waiting), fresh[0])


def _pop_expired(ready: Ready, now: float) -> Entry | None:
    head = ready.head()
    if head is not None and head.expires is not None and head.expires <= now:
        return ready.pop()
    return None
