"""Decide which messages of a classic queue belong to a job that takes its first messages.

The queue
---------
A classic queue returns requeued messages to their original position. Acks are written to the disk
with a delay. If the broker was killed, messages that the job had finished may be in the queue
again. For this reason, a classic queue starts with a *head*, which consists of messages that the
job has kept, messages it was holding, and messages whose acks were lost. It is followed by the
rest of the selection, then by messages that were never selected, and then by new messages. Any of
these may be equal to a finished message.

Finding the selection
---------------------
Marks alone do not show where the head ends. The number of messages does not show it either, because
new messages may have arrived. To solve this, the job keeps the last delivered message, the
*anchor*, until the next checkpoint is saved. The head ends with the anchor. If several messages
could be the anchor, the length of the head is unknown and the job stops. Neither the redelivered
flags nor the number of messages distinguish them, because other sessions may have browsed the queue
and new messages may have arrived.

The last message of the selection is sent alone, after the acks of all others were processed. Before
it is acked, a checkpoint is saved that records this (SENT). If there is such a message after a
crash, it stays in the queue, because it could be a new message that is equal. If other messages
that the job has sent seem to be back, the job stops for the same reason.

The head can be long, so it is read before the job takes messages (`classic_head`).

States
------
TAKING   Messages are delivered, sent and acked.
LAST     The last message of the selection is being sent.
SENT     All messages were sent, including the last one.
STOPPED  The length of the head is unknown.

Events
------
DELIVERED  Count the message.
EMPTY      The messages that are still missing have left the queue.
KEPT       The message stays in the queue and belongs to the head.
ACKED      The message was moved. Its mark is one of the last acks in the window.
LAST_ALONE, DRAINED  Start and end of LAST.
LAST_SENT  The last message was sent. It is acked after the next checkpoint.
APPLIED    The broker has processed all acks. They stay in the window, because a broker that is
           killed can forget them.
SHARED     Another consumer is taking messages, so this job can never be resumed.

Invariants
----------
1. Messages are only sent after a checkpoint with their marks was saved.
2. The anchor of the saved checkpoint is never acked.
3. The selection contains at most `head + rest` messages, regardless of what the queue delivers.
4. If another consumer was seen (`is_shared`), the job is never resumed, because the count could be
   wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from hopback.ops.jobs.cursor import (
    IGNORED,
    MAYBE_SENT,
    STAYS,
    TAKEN_BY_OTHERS,
    UNKNOWN_END,
    CountingCursor,
    CursorEvent,
    CursorState,
    Events,
    Table,
)
from hopback.ops.jobs.job_record import Checkpoint

if TYPE_CHECKING:
    from hopback.message import Delivery


class ClassicCursor(CountingCursor):
    """The cursor for a classic queue.

    `head` is the number of messages before the rest of the selection, or None if it is unknown.
    """

    sends_last_alone = True
    is_in_place = True

    def __init__(self, checkpoint: Checkpoint, remembered: int, *, head: int | None) -> None:
        unknown = UNKNOWN_END if checkpoint.last_stays else MAYBE_SENT
        reason = unknown if head is None else ""
        reason = TAKEN_BY_OTHERS if checkpoint.is_shared else reason
        state = CursorState.STOPPED if reason else CursorState.TAKING
        super().__init__(state, checkpoint, remembered, reason)
        self._budget = (head or 0) + checkpoint.rest
        self._has_seen = False

    def checkpoint(self) -> Checkpoint:
        if not self._has_seen or self.state is CursorState.STOPPED:
            return replace(self._began, is_shared=self._is_shared)
        last, digest = self._anchor_marks
        return Checkpoint(
            kept=self._kept,
            window=self._window,
            rest=max(self._budget - self._taken, 0),
            is_shared=self._is_shared,
            was_sent=self.was_sent,
            last=last,
            last_digest=digest,
            last_stays=self._anchor_stays,
        )

    def _take(self, delivery: Delivery) -> None:
        self._has_seen = True
        super()._take(delivery)

    _SELECTING: ClassVar[Events] = {
        **CountingCursor.EVENTS,
        CursorEvent.DELIVERED: (_take, STAYS),
        CursorEvent.SENDING: IGNORED,
        CursorEvent.APPLIED: IGNORED,
    }
    TABLE: ClassVar[Table] = {
        CursorState.TAKING: _SELECTING,
        CursorState.LAST: _SELECTING,
        CursorState.SENT: {**_SELECTING, CursorEvent.DRAINED: IGNORED},
        CursorState.STOPPED: {},
    }
