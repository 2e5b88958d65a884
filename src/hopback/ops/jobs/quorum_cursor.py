"""Decide which messages of a quorum queue belong to a job that takes the first messages of the queue.

The queue
---------
A quorum queue delivers requeued messages first, in the order of their return, with the redelivered flag set.
Only then does it deliver *fresh* messages, which it has never delivered. When a channel closes, the queue
requeues the unsettled messages of that channel in the order of their delivery. It has written an ack to disk
before it delivers another message for it: at most as many acks are lost as the prefetch allows.

Finding the selection
---------------------
The cursor first has the driver hold every redelivered message. The first fresh message, or an empty
queue, proves that the job holds all of them. From then on the messages are *in place*: if the job is
killed, the queue requeues the held messages in their original order, before all other messages. They are:

    kept messages and unsettled messages of the window, ending with the anchor
    messages that were delivered after the checkpoint
    other messages that were browsed, in their original order

The job did not send the anchor before the next checkpoint, so the anchor is still there: all messages up
to the anchor are the head. The cursor verifies this. Exactly one message has the anchor's mark and
digest, and the number of unknown messages before it is the number of kept messages. The last redelivered
message has no mark of the window that is still missing. Otherwise messages are equal, or others have
changed the order: the end of the selection is unknown, and the cursor stops.

If the job holds a message behind the selection, the first such message is the anchor, and it is never
sent. Otherwise the last message of the selection is sent alone, after the acks of all others. It is acked
after a checkpoint that says so (SENT). If it is back after a crash, it stays in the queue: a new message
may be equal.

If the job is killed in FINDING, the queue requeues the messages that it holds behind other redelivered
messages, unless it holds all of them. The first consumer gets as many messages as its prefetch allows in one
step of the queue. The order is therefore intact if no more than that number of messages are redelivered
(`Checkpoint.finding`).

If the order is not intact, or if the driver cannot hold all redelivered messages, the messages are not in
place, and the job cannot be resumed. There is one exception: a job that selected the whole queue takes as
many messages as are certainly left. All messages that arrived later are behind them. `_unsure` is the
number of messages that may then remain.

States
------
FINDING  The driver holds redelivered messages. Messages are not sent.
TAKING   Messages are delivered, sent and acked.
LAST     The last message of the selection is being sent.
SENT     It was sent, and so were all others.
STOPPED  The end of the selection is unknown.

Events
------
DELIVERED  FINDING: hold the message, and begin TAKING with the first fresh one. Otherwise: count it.
EMPTY      FINDING: every redelivered message is held. Otherwise: the missing messages have left the queue.
TOO_MANY   The driver cannot hold all redelivered messages: they are not in place.
KEPT       The message stays in the queue and belongs to the head.
ACKED      The message was moved. Its mark stays in the window until APPLIED.
SENDING    Messages will be sent: the acks of the window are no longer known to be applied.
APPLIED    The queue has applied every ack: the window contains only held messages.
LAST_ALONE, DRAINED  Begin and end of LAST.
LAST_SENT  The last message was sent: its ack follows after the next checkpoint.
SHARED     Another consumer takes messages: this job is never resumed.

Invariants
----------
1. Messages are sent only after a checkpoint that contains their marks was saved.
2. The anchor of the saved checkpoint is never acked.
3. A checkpoint of FINDING contains the number of messages that are certainly taken together.
4. At most `head + rest` messages belong to the selection, whatever the queue delivers.
5. A job that has seen another consumer (`is_shared`) is never resumed, because counting would be wrong.
6. `acks_applied` is true only if no message was sent since the queue has applied every ack. Then all
   messages of the window are in the queue, and the length of the head is known without the anchor.
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
    """`by_count` is the length of the head if no message has arrived since the job began. None if unknown.

    `is_whole` is true if the job selected the whole queue. `prefetch` is the usual one of the job.
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
        # A queue applies acks in their order, and delivers no more messages than the prefetch allows.
        self._acked = deque(maxlen=max(remembered, self.first_prefetch + prefetch))
        self._found: list[Delivery] = []
        self._acks_applied = False
        self._unsure = checkpoint.unsure
        """Number of selected messages that may remain behind those that certainly belong to the job."""

    @property
    def count(self) -> int:
        """The length of the head and the rest. FINDING: with the longest possible head."""
        if self.state is CursorState.FINDING:
            return self._began.rest + self._longest_head
        return self._budget

    @property
    def left(self) -> int | None:
        return self._budget + self._unsure

    @property
    def moved_before(self) -> int:
        """The unsure messages: if the queue has no others at the end, an earlier run has moved them."""
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
        CursorEvent.SAVING: IGNORED,
    }
    TABLE: ClassVar[Table] = {
        CursorState.FINDING: {
            CursorEvent.DELIVERED: (_find, _FOUND),
            CursorEvent.EMPTY: (_find_end, _FOUND),
            CursorEvent.TOO_MANY: (_give_up_finding, _FOUND),
            CursorEvent.SHARED: CountingCursor.EVENTS[CursorEvent.SHARED],
            CursorEvent.SAVING: IGNORED,
        },
        CursorState.TAKING: _SELECTING,
        CursorState.LAST: _SELECTING,
        CursorState.SENT: {**_SELECTING, CursorEvent.DRAINED: IGNORED},
        CursorState.STOPPED: {},
    }


def _find_head_by_anchor(began: Checkpoint, found: Sequence[Delivery]) -> int | None:
    """Return the length of the head at the start of the redelivered messages, or None if it is unknown."""
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
