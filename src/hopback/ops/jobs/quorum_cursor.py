"""Decide which messages of a quorum queue belong to a job that takes its first messages.

The queue
---------
A quorum queue delivers requeued messages first, in the order in which they were requeued and with
the redelivered flag. After these, it delivers *fresh* messages, which were never delivered before.
When a channel is closed, its unsettled messages are requeued in the order of their delivery. An ack
is written to the disk before it causes another delivery, so the number of lost acks is limited by
the prefetch.

Finding the selection
---------------------
At first, the driver holds all redelivered messages. When it receives a fresh message or the queue
is empty, it has all of them. From then on, the messages are *in place*. If the job is killed, the
queue requeues them in their original order before all other messages. They are:

    kept messages and unsettled messages of the window, which end with the anchor
    messages that were delivered after the checkpoint
    other messages that were browsed, in their original order

The anchor is not sent before the next checkpoint, so it is still in the queue. All messages up to
the anchor are the head. The cursor verifies this. Only one message has the mark and the digest of
the anchor. The number of unknown messages before it is the number of kept messages. The last
redelivered message does not have a mark of the window that is still missing. If one of these is not
true, messages are equal or the order was changed by others. The end of the selection is then
unknown, and the cursor stops.

If the job holds messages behind the selection, the first of them is the anchor, and it is never
sent. Otherwise, the last message of the selection is sent alone, after the acks of all others.
Before it is acked, a checkpoint is saved that records this (SENT). If there is such a message after
a crash, it stays in the queue, because it could be a new message that is equal.

If the job is killed in FINDING and does not hold all redelivered messages, the queue requeues those
it was holding behind the others. In one step of the queue, the first consumer receives as many
messages as its prefetch allows. The order is therefore intact if the number of redelivered messages
is not higher than this (`Checkpoint.finding`).

If the order is not intact, or the driver cannot hold all redelivered messages, the messages are not
in place and the job cannot be resumed. A job that has selected the whole queue is an exception. It
takes as many messages as are certainly left, because all messages that have arrived later are
behind them. `_unsure` is the number of messages that may be left after this.

States
------
FINDING  The driver holds redelivered messages. No messages are sent.
TAKING   Messages are delivered, sent and acked.
LAST     The last message of the selection is being sent.
SENT     All messages were sent, including the last one.
STOPPED  The end of the selection is unknown.

Events
------
DELIVERED  In FINDING, hold the message, and start TAKING if it is fresh. Otherwise count it.
EMPTY      In FINDING, all redelivered messages are held. Otherwise, messages that are still missing
           have left the queue.
TOO_MANY   The driver cannot hold all redelivered messages, so they are not in place.
KEPT       The message stays in the queue and belongs to the head.
ACKED      The message was moved. Its mark stays in the window until APPLIED.
SENDING    Messages are about to be sent, so it becomes unknown whether all acks are applied.
APPLIED    The queue has applied all acks, so the window only contains held messages.
LAST_ALONE, DRAINED  Start and end of LAST.
LAST_SENT  The last message was sent. It is acked after the next checkpoint.
SHARED     Another consumer is taking messages, so this job can never be resumed.

Invariants
----------
1. Messages are only sent after a checkpoint with their marks was saved.
2. The anchor of the saved checkpoint is never acked.
3. A checkpoint in FINDING contains how many messages are certainly taken together.
4. The selection contains at most `head + rest` messages, regardless of what the queue delivers.
5. If another consumer was seen (`is_shared`), the job is never resumed, because the count could be
   wrong.
6. `acks_applied` is only True if no message was sent after the queue has applied all acks. All
   messages of the window are then in the queue, and the length of the head is known without the
   anchor.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from hopback.ops.browse.prefetch import FIRST_PREFETCH
from hopback.ops.jobs.cursor import (
    IGNORED,
    STAYS,
    TAKEN_BY_OTHERS,
    UNKNOWN_END,
    CountingCursor,
    CursorEvent,
    CursorState,
    Events,
    Table,
    mark_of,
)
from hopback.ops.jobs.job_record import Checkpoint
from hopback.ops.messages.digest import content_digest
from hopback.text import count_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.message import Delivery


_FOUND = frozenset({CursorState.TAKING, CursorState.STOPPED})


class QuorumCursor(CountingCursor):
    """The cursor for a quorum queue.

    `by_count` is the length of the head if no messages have arrived since the job was started, or
    None if it is unknown. `is_whole` is True if the job has selected the whole queue. `prefetch` is
    the usual prefetch of the job.
    """

    needs_proof = True

    def __init__(
        self,
        checkpoint: Checkpoint,
        remembered: int,
        *,
        is_resumed: bool,
        is_whole: bool,
        by_count: int | None = None,
        prefetch: int = FIRST_PREFETCH,
    ) -> None:
        super().__init__(CursorState.FINDING, checkpoint, remembered)
        self._is_resumed = is_resumed
        self._is_whole = is_whole
        self._by_count = by_count
        self._prefetch = prefetch
        self._is_behind = False
        # Acks are applied in order, and the prefetch limits how many messages are delivered.
        self._acked = deque(maxlen=max(remembered, self.first_prefetch + prefetch))
        self._found: list[Delivery] = []
        self._acks_applied = False
        self._unsure = checkpoint.unsure
        """The number of selected messages that may be left after those that certainly belong to the job."""

    @property
    def count(self) -> int:
        """The length of the head and of the rest. In FINDING, the maximum length of the head is used."""
        if self.state is CursorState.FINDING:
            return self._began.rest + self._longest_head
        return self._budget

    @property
    def left(self) -> int | None:
        return self._budget + self._unsure

    @property
    def moved_before(self) -> int:
        """The unsure messages. If the queue has no others at the end, an earlier run has moved them."""
        return self._unsure

    def why_incomplete(self, *, has_others: bool) -> str:
        if not self._unsure or not has_others:
            return ""
        return (
            f"the job was interrupted, and up to {count_of(self._unsure)} of its"
            " selection may be left in {queue!r} among newer ones; start a new job"
        )

    @property
    def _longest_head(self) -> int:
        longest = self._began.kept + len(self._began.window)
        return longest if self._by_count is None else max(min(longest, self._by_count), 0)

    @property
    def first_prefetch(self) -> int:
        most = max(self._began.rest + self._longest_head, 1)
        if not self._is_resumed:
            return min(FIRST_PREFETCH, most)
        return min(max(self._longest_head, self._began.finding) + self._prefetch, most)

    @property
    def sends_last_alone(self) -> bool:
        """Whether the anchor belongs to the selection."""
        return not self._is_behind

    def checkpoint(self) -> Checkpoint:
        if self.state is CursorState.STOPPED:
            return replace(self._began, in_place=False, is_shared=self._is_shared)
        if self.state is CursorState.FINDING:
            most = self.first_prefetch
            finding = min(self._began.finding or most, most)
            return replace(self._began, finding=finding, is_shared=self._is_shared)
        last, digest = self._anchor_marks
        return Checkpoint(
            kept=self._kept,
            window=self._window,
            rest=max(self._budget - self._taken, 0),
            in_place=self.is_in_place,
            acks_applied=self._acks_applied,
            is_shared=self._is_shared,
            was_sent=self.was_sent,
            unsure=self._unsure,
            last=last,
            last_digest=digest,
            last_stays=self._anchor_stays,
            last_is_behind=self._is_behind,
        )

    def _receive_behind(self, delivery: Delivery) -> None:
        super()._receive_behind(delivery)
        if not self._is_behind:
            self._is_behind = True
            self._anchor, self._anchor_is_done = delivery, False

    def _find(self, delivery: Delivery) -> None:
        self._found.append(delivery)
        if not delivery.redelivered:
            self._begin_taking(in_place=True)

    def _find_end(self, _value: object) -> None:
        self._begin_taking(in_place=True)
        if self.state is CursorState.TAKING:
            self._end(None)

    def _give_up_finding(self, _value: object) -> None:
        self._begin_taking(in_place=False)

    def _begin_taking(self, *, in_place: bool) -> None:
        head = self._find_head(is_complete=in_place)
        is_short = self._by_count is not None and head is not None and head > self._by_count
        if head is None or is_short:
            self._stop(TAKEN_BY_OTHERS if is_short or self._began.is_shared else UNKNOWN_END)
            return
        self.is_in_place = in_place
        self._budget = head + self._began.rest
        self.state = CursorState.TAKING
        for delivery in self._found:
            self._take(delivery)
        self._found.clear()

    def _find_head(self, *, is_complete: bool) -> int | None:
        """Return the length of the head, or None if it is unknown."""
        began = self._began
        found = [one for one in self._found if one.redelivered]
        is_intact = not began.finding or (is_complete and len(found) <= began.finding)
        in_place = began.in_place and is_intact
        if not self._is_resumed:
            return 0
        if began.is_shared:
            return None
        if began.is_sent:
            return began.kept
        if began.acks_applied and (in_place or self._is_whole):
            return began.kept + len(began.window)
        if in_place:
            return _find_head_by_anchor(began, found)
        if not self._is_whole:
            return None
        is_certain = bool(began.last_stays) and began.last in began.window
        self._unsure += len(began.window) - is_certain
        return began.kept + is_certain

    def _send(self, _value: object) -> None:
        self._acks_applied = False

    def _forget_acks(self, _value: object) -> None:
        self._acks_applied = True
        self._acked.clear()

    _SELECTING: ClassVar[Events] = {
        **CountingCursor.EVENTS,
        CursorEvent.SENDING: (_send, STAYS),
        CursorEvent.APPLIED: (_forget_acks, STAYS),
    }
    TABLE: ClassVar[Table] = {
        CursorState.FINDING: {
            CursorEvent.DELIVERED: (_find, _FOUND),
            CursorEvent.EMPTY: (_find_end, _FOUND),
            CursorEvent.TOO_MANY: (_give_up_finding, _FOUND),
            CursorEvent.SHARED: CountingCursor.EVENTS[CursorEvent.SHARED],
        },
        CursorState.TAKING: _SELECTING,
        CursorState.LAST: _SELECTING,
        CursorState.SENT: {**_SELECTING, CursorEvent.DRAINED: IGNORED},
        CursorState.STOPPED: {},
    }


def _find_head_by_anchor(began: Checkpoint, found: Sequence[Delivery]) -> int | None:
    """Return the length of the head among the redelivered messages, or None if it is unknown."""
    if not began.window:
        return began.kept
    missing, unknown, ends, mark = Counter(began.window), 0, list[int](), ""
    for length, delivery in enumerate(found, 1):
        mark = mark_of(delivery)
        is_last = mark == began.last and content_digest(delivery) == began.last_digest
        if is_last and began.last_is_behind and unknown == began.kept:
            ends.append(length - 1)
        if not missing[mark]:
            unknown += 1
        elif not ends:
            missing[mark] -= 1
        if is_last and not began.last_is_behind and unknown == began.kept:
            ends.append(length)
    is_rotated = bool(ends) and ends[0] + began.last_is_behind < len(found) and missing[mark] > 0
    if len(ends) > 1 or is_rotated:
        return None
    return ends[0] if ends else None
