"""Decide which messages of a queue belong to a job with chosen messages.

Chosen messages are identified by their digests, which cover the body, properties and headers
except for the counters that a queue adds. Instead of a chosen message, a message with the same
digest may be moved. The number of messages moved for each digest is limited to the number chosen.

The driver reads the first `count` messages of the queue. A quorum queue requeues held messages
behind other requeued messages. If digests are missing, the cursor therefore searches the messages
after the first ones, until the queue delivers a fresh message or is empty. At most 10,000 messages
are searched.

It does not matter if another consumer takes messages, because they are just missing. A missing
digest either belongs to a message that an earlier run of the job has taken (`window` contains the
beginnings of these digests), or to a message that has left the queue in another way.

States
------
TAKING   The first `count` messages are delivered. Chosen messages are sent and acked.
SEEKING  Messages after the first `count` messages are searched.
STOPPED  The job was interrupted, and there are other messages equal to chosen ones.

Events
------
DELIVERED  Count the message. In SEEKING, a fresh message ends the search.
KEPT       The message stays in the queue.
SEEK       All messages searched so far were delivered. Search more messages.

Other events are ignored, because the position of messages does not matter.

Invariants
----------
1. Only messages with a chosen digest are sent, and for each digest at most as many as were chosen.
2. A message is only sent after a checkpoint with its digest was saved.
3. If a message equal to a finished one was seen (`has_twins`), the job cannot be resumed, because
   the new cursor would take this message.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar

from hopback.ops.jobs.cursor import (
    IGNORED,
    STAYS,
    UNKNOWN_END,
    CursorEvent,
    CursorState,
    Events,
    SelectionCursor,
    Table,
)
from hopback.ops.jobs.job_record import Checkpoint
from hopback.ops.messages.digest import content_digest
from hopback.text import count_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.message import Delivery

_SOUGHT = 10_000
"""Messages to search after the first ones. Each search counts as a delivery. If messages are still
missing, the job fails.
"""
_SAVED = 16
"""Characters of a digest in a checkpoint, which are enough to distinguish 10,000 messages."""
_IGNORED = (
    CursorEvent.EMPTY, CursorEvent.ACKED, CursorEvent.SENDING, CursorEvent.DRAINED,
    CursorEvent.APPLIED, CursorEvent.SHARED,
)  # fmt: skip


class ChosenCursor(SelectionCursor):
    """The messages with certain digests among the first `count` messages of the queue.

    `is_sought` is True if missing messages may be after the first ones, which is only possible in a
    quorum queue.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        digests: Sequence[str],
        *,
        count: int,
        is_resumed: bool,
        is_sought: bool,
        is_in_place: bool,
    ) -> None:
        is_lost = is_resumed and checkpoint.has_twins
        super().__init__(
            CursorState.STOPPED if is_lost else CursorState.TAKING, UNKNOWN_END if is_lost else ""
        )
        self.is_in_place = is_in_place
        self._count = count
        self._chosen = frozenset(digests)
        self._wanted = Counter(digests)
        self._taken_before = Counter(checkpoint.window)
        self._taken: dict[int, str] = {}
        self._behind: set[int] = set()
        self._is_sought = is_sought
        self._has_twins = False
        self._sought = 0
        self._seen = 0
        self._seen_before = -1
        self._is_over = False

    @property
    def count(self) -> int:
        return self._count

    def why_incomplete(self, *, has_others: bool) -> str:
        missing = self._wanted.total()
        if self._is_over or self._sought < _SOUGHT or not missing:
            return ""
        return (
            f"{count_of(missing)} that were requeued when the job was interrupted may be too far behind"
            " in {queue!r} to be found; start a new job"
        )

    @property
    def moved_before(self) -> int:
        return sum((self._missing & self._taken_before).values())

    @property
    def gone(self) -> int:
        return sum((self._missing - self._taken_before).values())

    @property
    def _missing(self) -> Counter[str]:
        missing = Counter[str]()
        for digest, count in self._wanted.items():
            if count > 0:
                missing[digest[:_SAVED]] += count
        return missing

    def belongs(self, delivery: Delivery) -> bool:
        if delivery.tag in self._behind:
            return False
        digest = content_digest(delivery)
        if not self._wanted[digest]:
            self._has_twins = self._has_twins or digest in self._chosen
            return False
        self._wanted[digest] -= 1
        self._taken[delivery.tag] = digest[:_SAVED]
        return True

    def checkpoint(self) -> Checkpoint:
        window = self._taken_before | Counter(self._taken.values())
        return Checkpoint(window=tuple(window.elements()), has_twins=self._has_twins)

    def more(self) -> int:
        if not self._wanted.total() or self._is_over or not self._is_sought:
            return 0
        if self._seen == self._seen_before:
            self._is_over = True  # there are no more messages
            return 0
        # One message is usually enough to find out that the queue has not requeued any others.
        return min(max(self._sought, 1), _SOUGHT - self._sought)

    def _receive(self, delivery: Delivery) -> None:
        self._seen += 1
        if self.state is CursorState.SEEKING:
            self._is_over = self._is_over or not delivery.redelivered
            if self._is_over:
                self._behind.add(delivery.tag)

    def _seek(self, count: int) -> None:
        self._seen_before = self._seen
        self._sought += count
        self.state = CursorState.SEEKING

    def _keep(self, tag: int) -> None:
        self._taken.pop(tag, None)
        self._behind.discard(tag)

    _SELECTING: ClassVar[Events] = {
        CursorEvent.DELIVERED: (_receive, STAYS),
        CursorEvent.KEPT: (_keep, STAYS),
        CursorEvent.SEEK: (_seek, frozenset({CursorState.SEEKING})),
        **dict.fromkeys(_IGNORED, IGNORED),
    }
    TABLE: ClassVar[Table] = {
        CursorState.TAKING: _SELECTING,
        CursorState.SEEKING: _SELECTING,
        CursorState.STOPPED: {},
    }
