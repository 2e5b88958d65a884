"""Decide which messages of a classic queue belong to a job that takes the first messages of the queue.

The queue
---------
A classic queue returns requeued messages to their original position. It writes acks to disk late: after
the broker was killed, messages that the job has finished may be back. A classic queue therefore begins
with a *head* of messages that the job kept, messages that it held, and messages whose acks were lost. The
untouched rest of the selection follows, then messages that were never selected, then new messages. Each
of these may be equal to a finished message.

Finding the selection
---------------------
Marks alone do not show where the head ends, and neither does the number of messages, because new messages
may have arrived. But the job keeps the last delivered message, the *anchor*, until the next checkpoint is
saved: the head ends with the anchor. If several messages could be the anchor, the redelivered flags and
the number of messages decide if they agree. Otherwise the length of the head is unknown, and the job
stops.

The last message of the selection is sent alone, after the acks of all others were read. It is acked after
a checkpoint that says so (SENT). If it is back after a crash, it stays in the queue: a new message may be
equal.

The head is read before the job takes messages (`classic_head`), because it may be long.

States
------
TAKING   Messages are delivered, sent and acked.
PAUSED   Messages are sent and acked. The queue delivers no messages, because equal messages are held: the
         redelivered flag then separates the held messages from the rest.
LAST     The last message of the selection is being sent.
SENT     It was sent, and so were all others.
STOPPED  The length of the head is unknown.

Events
------
DELIVERED  Count the message.
EMPTY      The messages that are still missing have left the queue.
KEPT       The message stays in the queue and belongs to the head.
ACKED      The message was moved. Its mark is among the last acks of the window.
PAUSE, CONTINUE      Begin and end of PAUSED.
LAST_ALONE, DRAINED  Begin and end of LAST.
LAST_SENT  The last message was sent: its ack follows after the next checkpoint.
APPLIED    The broker has read every ack: with equal messages, the window contains only held ones.
SHARED     Another consumer takes messages: this job is never resumed.
SAVING     Note whether messages of the window have equal marks.

Invariants
----------
1. Messages are sent only after a checkpoint that contains their marks was saved.
2. The anchor of the saved checkpoint is never acked.
3. At most `head + rest` messages belong to the selection, whatever the queue delivers.
4. A job that has seen another consumer (`is_shared`) is never resumed, because counting would be wrong.
5. The last acks stay in the window when the queue has read them: a killed broker may forget them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

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
    enters,
)
from hopback.ops.jobs.job_record import Checkpoint

if TYPE_CHECKING:
    from hopback.message import Delivery


class ClassicCursor(CountingCursor):
    """`head` is the number of messages before the rest of the selection, or None if unknown."""

    sends_last_alone = True
    is_in_place = True

    def __init__(self, checkpoint: Checkpoint, remembered: int, *, head: int | None) -> None:
        reason = UNKNOWN_END if head is None else ""
        reason = TAKEN_BY_OTHERS if checkpoint.is_shared else reason
        state = CursorState.STOPPED if reason else CursorState.TAKING
        super().__init__(state, checkpoint, remembered, reason)
        self._budget = (head or 0) + checkpoint.rest
        self._has_seen = False
        self._has_seen_fresh = False
        self._has_twins = checkpoint.has_twins
        """Whether the job ever held messages with equal marks."""

    @property
    def must_pause(self) -> bool:
        """Whether the redelivered flags must separate equal messages."""
        return self._has_twins

    def checkpoint(self) -> Checkpoint:
        if not self._has_seen or self.state is CursorState.STOPPED:
            return replace(self._began, is_shared=self._is_shared)
        last, digest = self._anchor_marks
        return Checkpoint(
            kept=self._kept,
            window=self._window,
            rest=max(self._budget - self._taken, 0),
            is_shared=self._is_shared,
            has_twins=self._has_twins,
            rest_is_untouched=self._has_seen_fresh and self.state is CursorState.PAUSED,
            last=last,
            last_digest=digest,
            last_stays=self._anchor_stays,
        )

    def _take(self, delivery: Delivery) -> None:
        self._has_seen = True
        self._has_seen_fresh = self._has_seen_fresh or not delivery.redelivered
        super()._take(delivery)

    def _find_twins(self, _value: object) -> None:
        if not self._has_twins:
            window = self._window
            self._has_twins = len(set(window)) < len(window)

    def _pause(self, _value: object) -> None:
        if self.state is not CursorState.LAST:
            self.state = CursorState.PAUSED

    def _forget_acks(self, _value: object) -> None:
        if self._has_twins:
            self._acked.clear()

    _SELECTING: ClassVar[Events] = {
        **CountingCursor.EVENTS,
        CursorEvent.DELIVERED: (_take, STAYS),
        CursorEvent.SENDING: IGNORED,
        CursorEvent.SAVING: (_find_twins, STAYS),
        CursorEvent.APPLIED: (_forget_acks, STAYS),
        CursorEvent.PAUSE: (_pause, frozenset({CursorState.PAUSED})),
    }
    TABLE: ClassVar[Table] = {
        CursorState.TAKING: _SELECTING,
        CursorState.PAUSED: {**_SELECTING, CursorEvent.CONTINUE: enters(CursorState.TAKING)},
        CursorState.LAST: _SELECTING,
        CursorState.SENT: {**_SELECTING, CursorEvent.DRAINED: IGNORED, CursorEvent.PAUSE: IGNORED},
        CursorState.STOPPED: {},
    }
