"""A cursor decides which messages of a queue belong to a job, even after a crash. This is the shared part.

A cursor is a pure state machine. It receives events and performs no I/O. The driver (`cursor_driver`) takes
messages from the queue and reports deliveries, an empty queue, kept messages and acks. The engine (`engine`)
reports the other events, for example that the last message goes alone or that another consumer was seen. The
engine also saves the cursor's checkpoint before it sends messages. After a crash or a lost connection the job
continues with a new cursor that starts from the last saved checkpoint. Each cursor's file begins with its
states, events and invariants, and its class ends with the table that `SelectionCursor.handle` reads. There is
one cursor for each way to find the selection again:

- `quorum_cursor`: the first messages of a quorum queue, by position and one mark.
- `classic_cursor`: the first messages of a classic queue, by position, marks and counts.
- `chosen_cursor`: chosen messages of either type, by digest.

Marks
-----
A *mark* is a short checksum of a message. It is the same after a redelivery and cheap enough to compute for
every message. Equal messages have equal marks, so marks alone never show where a selection ends.

Words
-----
*Kept* messages were delivered to the job and stay in the queue: they do not match the filter, or they
could not be moved.

The *window* is the set of messages, other than kept ones, that may still be in the queue. The job holds them,
or it has acked them so recently that the queue may not have applied the ack. The checkpoint contains their
marks.

The *head* is the part of the queue before the untouched messages of the selection, as an interrupted job
finds it. It consists of kept messages and of the messages of the window that are still in the queue.

The *rest* is the part of the selection that was not delivered to the job before the last checkpoint. It
follows the head.

The *anchor* is the message at which the head ends. It is usually the last delivered message of the
selection. `BatchReader` holds it back until the next checkpoint is saved, so that an interrupted job finds
it in the queue.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, TypeAlias
from zlib import crc32

from hopback.headers.raw import message_id_in
from hopback.ops.browse.prefetch import FIRST_PREFETCH
from hopback.ops.messages.digest import content_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hopback.message import Delivery
    from hopback.ops.jobs.job_record import Checkpoint


UNKNOWN_END = (
    "the job was interrupted, and it is unknown where the selection ends: messages of {queue!r} are equal, or"
    " messages behind the selection were browsed before; start a new job"
)
TAKEN_BY_OTHERS = (
    "the job was interrupted, and other consumers have taken messages from {queue!r} since it started, so it"
    " is unknown where the selection ends; start a new job"
)
_MARKED_BYTES = 64 * 1024
"""Bytes of a body that are part of its mark. The mark also contains the length of the body."""


def mark_of(delivery: Delivery) -> str:
    """Return a short checksum that is the same when the message is delivered again."""
    body = delivery.body
    raw: bytes | None = getattr(delivery, "raw_properties", None)
    message_id = delivery.properties.message_id if raw is None else message_id_in(raw)
    about = f"{len(body)} {message_id} {delivery.routing_key}".encode("utf-8", "surrogateescape")
    return f"{crc32(body[:_MARKED_BYTES]):08x}{crc32(about):08x}"


class CursorState(Enum):
    """The states of all cursors. Each cursor's file explains those that it uses."""

    FINDING = "finding"
    TAKING = "taking"
    PAUSED = "paused"
    LAST = "last"
    SENT = "sent"
    SEEKING = "seeking"
    STOPPED = "stopped"


class CursorEvent(Enum):
    """The events of all cursors, with the value that the driver or the engine passes."""

    DELIVERED = "delivered"  # the delivery
    EMPTY = "empty"  # the queue has no more ready messages
    TOO_MANY = "too many"  # the driver cannot hold more messages while the cursor is finding
    KEPT = "kept"  # the tag of a message that stays in the queue
    ACKED = "acked"  # the tag of a message whose publish was confirmed and whose ack was sent
    SENDING = "sending"  # the next checkpoint is saved before messages are sent
    PAUSE = "pause"  # the consumer was cancelled: the queue delivers no message
    CONTINUE = "continue"  # the queue may deliver messages again
    LAST_ALONE = "last alone"  # the last message is about to be sent, after all others were acked
    LAST_SENT = "last sent"  # the last message was sent: a checkpoint is saved before its ack
    DRAINED = "drained"  # no message is in flight, and no further message will be sent
    APPLIED = "applied"  # the queue has applied every ack
    SHARED = "shared"  # another consumer takes messages from the queue
    SEEK = "seek"  # every message of the searched part was delivered: search behind it
    SAVING = "saving"  # every delivered message was reported: the next checkpoint is saved


Events: TypeAlias = "Mapping[CursorEvent, tuple[Callable[..., None], frozenset[CursorState]]]"
"""The accepted events, each with the method that handles it and the states that may follow."""

Table: TypeAlias = "Mapping[CursorState, Events]"
"""The events that each state accepts."""

STAYS: frozenset[CursorState] = frozenset()
"""The event does not change the state."""

IGNORED = (lambda _cursor, _value: None, STAYS)
"""The event is accepted and has no effect."""


def enters(state: CursorState) -> tuple[Callable[..., None], frozenset[CursorState]]:
    """The event leads to this state and has no other effect."""

    def handle(cursor: SelectionCursor, _value: object) -> None:
        cursor.state = state

    return handle, frozenset({state})


class SelectionCursor:
    """A state machine that is driven by its table. The driver and the engine know only this class."""

    TABLE: ClassVar[Table]
    is_counting: ClassVar[bool] = False
    """Whether messages are selected by their position. Another consumer makes this impossible."""
    needs_proof: ClassVar[bool] = False
    """Whether the consumer count of the queue must prove that all acks were applied."""
    is_in_place: bool = False
    """Whether the queue requeues every message of this job in its original place."""

    def __init__(self, state: CursorState, reason: str = "") -> None:
        self.state = state
        self.reason = reason
        """Why the cursor is STOPPED."""
        self.doubt = ""
        """Why it is unknown whether the job is finished, if the queue has more messages than expected."""
        self._events = self.TABLE[state]

    @property
    def count(self) -> int:
        """The number of messages to take from the queue."""
        raise NotImplementedError

    @property
    def first_prefetch(self) -> int:
        """The number of messages that the first consumer takes."""
        return FIRST_PREFETCH

    @property
    def sends_last_alone(self) -> bool:
        """Whether the last message of the selection is sent after the acks of all others."""
        return False

    @property
    def must_pause(self) -> bool:
        """Whether the queue must not deliver messages while the job sends."""
        return False

    @property
    def gone(self) -> int:
        """Number of selected messages that left the queue without this job."""
        return 0

    @property
    def moved_before(self) -> int:
        """Number of missing messages that an earlier run of this job took."""
        return 0

    @property
    def left(self) -> int | None:
        """The number of selected messages that a resumed job has to take. None if it is unknown."""
        return None

    def belongs(self, delivery: Delivery) -> bool:
        """Whether a delivered message belongs to the selection. Call this once per message."""
        raise NotImplementedError

    def checkpoint(self) -> Checkpoint:
        """Return the values that a new cursor needs if the job ends now."""
        raise NotImplementedError

    def more(self) -> int:
        """Return the number of further messages to search after all `count` messages have been delivered."""
        return 0

    def why_incomplete(self, *, has_others: bool) -> str:
        """Return why selected messages may be left at the end of the selection. Empty if none are.

        `has_others` is whether the queue has messages that the job did not decide on.
        """
        return ""

    def handle(self, event: CursorEvent, value: object = None) -> None:
        """Advance by one event. ValueError if the state does not accept it."""
        if event not in self._events:
            raise ValueError(f"{event.name} is not accepted in {self.state.name}")
        handler, following = self._events[event]
        before = self.state
        handler(self, value)
        if self.state is not before:
            if self.state not in following:
                raise ValueError(
                    f"{event.name} must not lead from {before.name} to {self.state.name}"
                )
            self._events = self.TABLE[self.state]

    def accepts(self, event: CursorEvent) -> bool:
        return event in self._events

    def _stop(self, reason: str) -> None:
        self.state, self.reason = CursorState.STOPPED, reason


class CountingCursor(SelectionCursor):
    """The first messages of a queue: counts them as they are delivered.

    If the length of the head is known, the selection is the first `head + rest` messages, whatever their
    marks are.
    """

    is_counting = True
    gone = 0

    def __init__(
        self, state: CursorState, checkpoint: Checkpoint, remembered: int, reason: str = ""
    ) -> None:
        super().__init__(state, reason)
        self._began = checkpoint
        self._budget = 0
        self._taken = 0
        self._kept = 0
        self._open: dict[int, str] = {}
        self._acked: deque[tuple[int, str]] = deque(maxlen=remembered)
        self._behind: set[int] = set()
        self._anchor: Delivery | None = None
        self._anchor_is_done = False
        self._is_shared = checkpoint.is_shared

    @property
    def count(self) -> int:
        """The length of the head that was found, and the rest."""
        return self._budget

    @property
    def left(self) -> int | None:
        return self._budget

    def belongs(self, delivery: Delivery) -> bool:
        return delivery.tag not in self._behind

    def _take(self, delivery: Delivery) -> None:
        if self._taken >= self._budget:
            self._receive_behind(delivery)
            return
        self._taken += 1
        self._open[delivery.tag] = mark_of(delivery)
        self._anchor, self._anchor_is_done = delivery, False

    def _receive_behind(self, delivery: Delivery) -> None:
        self._behind.add(delivery.tag)

    def _end(self, _value: object) -> None:
        """The queue is empty: the messages that are still missing have left it by another way."""
        self.gone += self._budget - self._taken
        self._budget = self._taken

    def _keep(self, tag: int) -> None:
        if tag in self._behind:
            self._behind.remove(tag)
            return
        self._kept += 1
        self._open.pop(tag, None)

    def _ack(self, tag: int) -> None:
        mark = self._open.pop(tag, None)
        if self._anchor is not None and tag == self._anchor.tag:
            self._anchor_is_done = True
        if mark is not None:
            self._acked.append((tag, mark))

    def _share(self, _value: object) -> None:
        self._is_shared = True

    @property
    def _anchor_stays(self) -> bool:
        """Whether the anchor is in the queue until the next checkpoint. A kept one always is."""
        is_sent = (
            self.state is CursorState.SENT
            and self._anchor is not None
            and self._anchor.tag in self._open
        )
        return not (self._anchor_is_done or is_sent)

    @property
    def _anchor_marks(self) -> tuple[str, str]:
        """Mark and digest of the anchor. The digest also contains headers, such as times of deaths."""
        if self._anchor is None:
            return self._began.last, self._began.last_digest
        return mark_of(self._anchor), content_digest(self._anchor)

    @property
    def _window(self) -> tuple[str, ...]:
        """Marks of all messages that may still be in the queue, except kept ones."""
        return (*(mark for _, mark in self._acked), *self._open.values())

    EVENTS: ClassVar[Events] = {
        CursorEvent.DELIVERED: (_take, STAYS),
        CursorEvent.EMPTY: (_end, STAYS),
        CursorEvent.KEPT: (_keep, STAYS),
        CursorEvent.ACKED: (_ack, STAYS),
        CursorEvent.LAST_ALONE: enters(CursorState.LAST),
        CursorEvent.LAST_SENT: enters(CursorState.SENT),
        # The last message was not sent, and none is in flight: it is still in the queue.
        CursorEvent.DRAINED: enters(CursorState.TAKING),
        CursorEvent.SHARED: (_share, STAYS),
    }
    """The events that both counting cursors handle in the same way."""
