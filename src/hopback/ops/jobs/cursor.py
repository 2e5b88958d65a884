"""The common part of cursors. A cursor decides which messages of a queue belong to a job.

A cursor is a pure state machine. It receives events and does not perform any I/O. The driver
(`cursor_driver`) takes messages from the queue and reports deliveries, an empty queue, kept
messages and acks. The engine (`engine`) reports other events, for example that the last message is
sent alone or that there is another consumer. It also saves the cursor's checkpoint before messages
are sent. After a crash or a lost connection, the job continues with a new cursor that starts with
the last saved checkpoint. The states, events and invariants of each cursor are described at the
beginning of its file. The table used by `SelectionCursor.handle` is at the end of its class. There
are cursors for different ways to find the selection again:

- `quorum_cursor`: the first messages of a quorum queue, by position and one mark.
- `classic_cursor`: the first messages of a classic queue, by position, marks and counts.
- `chosen_cursor`: chosen messages of any queue, by digest.

Marks
-----
A *mark* is a short checksum of a message. It does not change when the message is redelivered, and
can be computed quickly for all messages. Equal messages have equal marks, so marks alone cannot
show where a selection ends.

Terms
-----
*Kept* messages were delivered to the job, but stay in the queue. They do not match the filter or
could not be moved.

The *window* contains other messages that may still be in the queue. The job is holding them, or it
has acked them so recently that the queue may not have applied the ack. The checkpoint contains
their marks.

The *head* is the part of the queue before the untouched messages of the selection when a job is
resumed. It consists of kept messages and those messages of the window that are still in the queue.

The *rest* is the part of the selection that was not delivered to the job before the last
checkpoint. It follows the head.

The *anchor* is the message with which the head ends. It is usually the last delivered message of
the selection. `BatchReader` does not send it until the next checkpoint is saved, so that it is
still in the queue if the job is interrupted.
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
MAYBE_SENT = (
    "the job was interrupted at its end, and {queue!r} has messages that are equal to those it sent: either"
    " they are new, or a killed broker has lost their acks; browse them before you start a new job"
)
TAKEN_BY_OTHERS = (
    "the job was interrupted, and other consumers have taken messages from {queue!r} since it started, so it"
    " is unknown where the selection ends; start a new job"
)
_MARKED_BYTES = 64 * 1024
"""Bytes of a body that are used for its mark. The mark also depends on the length of the body."""


def mark_of(delivery: Delivery) -> str:
    """Return a short checksum that does not change when the message is redelivered."""
    body = delivery.body
    raw: bytes | None = getattr(delivery, "raw_properties", None)
    message_id = delivery.properties.message_id if raw is None else message_id_in(raw)
    about = f"{len(body)} {message_id} {delivery.routing_key}".encode("utf-8", "surrogateescape")
    return f"{crc32(body[:_MARKED_BYTES]):08x}{crc32(about):08x}"


class CursorState(Enum):
    """The states of all cursors. The file of each cursor describes those that it uses."""

    FINDING = "finding"
    TAKING = "taking"
    LAST = "last"
    SENT = "sent"
    SEEKING = "seeking"
    STOPPED = "stopped"


class CursorEvent(Enum):
    """The events of all cursors. The comments describe the value that is passed with an event."""

    DELIVERED = "delivered"  # the delivery
    EMPTY = "empty"  # the queue has no more ready messages
    # the driver cannot hold more messages while the cursor is finding the selection
    TOO_MANY = "too many"
    KEPT = "kept"  # the tag of a message that stays in the queue
    ACKED = "acked"  # the tag of a message that was acked after its publish was confirmed
    SENDING = "sending"  # the next checkpoint is saved before messages are sent
    LAST_ALONE = "last alone"  # all other messages were acked, and the last one is about to be sent
    # the last message was sent, and a checkpoint is saved before it is acked
    LAST_SENT = "last sent"
    DRAINED = "drained"  # no messages are in flight, and no more will be sent
    APPLIED = "applied"  # the queue has applied all acks
    SHARED = "shared"  # another consumer takes messages from the queue
    SEEK = "seek"  # all messages searched so far were delivered, so search after them


Events: TypeAlias = "Mapping[CursorEvent, tuple[Callable[..., None], frozenset[CursorState]]]"
"""The accepted events, with the method that handles each of them and the states that can follow."""

Table: TypeAlias = "Mapping[CursorState, Events]"
"""The events that are accepted in each state."""

STAYS: frozenset[CursorState] = frozenset()
"""The event does not change the state."""

IGNORED = (lambda _cursor, _value: None, STAYS)
"""The event is accepted but does nothing."""


def enters(state: CursorState) -> tuple[Callable[..., None], frozenset[CursorState]]:
    """Return an event that changes the state and does nothing else."""

    def handle(cursor: SelectionCursor, _value: object) -> None:
        cursor.state = state

    return handle, frozenset({state})


class SelectionCursor:
    """A state machine that is defined by its table. The driver and the engine only know this class."""

    TABLE: ClassVar[Table]
    is_counting: ClassVar[bool] = False
    """Whether messages are selected by position, which is impossible if there is another consumer."""
    needs_proof: ClassVar[bool] = False
    """Whether the consumer count of the queue must prove that all acks were applied."""
    is_in_place: bool = False
    """Whether the queue will requeue all messages of this job at their original position."""
    was_sent: bool = False
    """Whether an earlier run has sent all messages. The queue may still have the last one."""

    def __init__(self, state: CursorState, reason: str = "") -> None:
        self.state: CursorState = state
        self.reason: str = reason
        """Why the cursor is STOPPED."""
        self.doubt: str = ""
        """Why it is unknown whether the job is finished, if the queue has more messages than expected."""
        self._events = self.TABLE[state]

    @property
    def count(self) -> int:
        """The number of messages to take from the queue."""
        raise NotImplementedError

    @property
    def first_prefetch(self) -> int:
        """The prefetch of the first consumer."""
        return FIRST_PREFETCH

    @property
    def sends_last_alone(self) -> bool:
        """Whether the last message of the selection is sent after the acks of all others."""
        return False

    @property
    def gone(self) -> int:
        """The number of selected messages that have left the queue without this job."""
        return 0

    @property
    def moved_before(self) -> int:
        """The number of missing messages that an earlier run of this job has taken."""
        return 0

    @property
    def left(self) -> int | None:
        """The number of selected messages that a resumed job still has to take, or None if it is
        unknown.
        """
        return None

    def belongs(self, delivery: Delivery) -> bool:
        """Return whether a delivered message is selected. Must be called exactly once for each message."""
        raise NotImplementedError

    def checkpoint(self) -> Checkpoint:
        """Return the data that a new cursor needs if the job ends now."""
        raise NotImplementedError

    def more(self) -> int:
        """Return how many more messages to search after all `count` messages were delivered."""
        return 0

    def why_incomplete(self, *, has_others: bool) -> str:
        """Return why there may be selected messages left at the end. It is empty if there are none.

        `has_others` is True if the queue contains messages that the job has not seen.
        """
        return ""

    def handle(self, event: CursorEvent, value: object = None) -> None:
        """Process an event. Raises ValueError if it is not accepted in the current state."""
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
    """Select the first messages of a queue by counting them as they are delivered.

    If the length of the head is known, the first `head + rest` messages are selected, regardless of
    their marks.
    """

    is_counting = True
    gone: int = 0

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
        self.was_sent: bool = checkpoint.was_sent or checkpoint.is_sent

    @property
    def count(self) -> int:
        """The length of the head and of the rest."""
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
        """The queue is empty, so the messages that are still missing have left it in another way."""
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
        """Whether the anchor stays in the queue until the next checkpoint. This is always the case
        if it is kept.
        """
        is_sent = (
            self.state is CursorState.SENT
            and self._anchor is not None
            and self._anchor.tag in self._open
        )
        return not (self._anchor_is_done or is_sent)

    @property
    def _anchor_marks(self) -> tuple[str, str]:
        """The mark and the digest of the anchor. The digest also depends on headers such as times
        of deaths.
        """
        if self._anchor is None:
            return self._began.last, self._began.last_digest
        return mark_of(self._anchor), content_digest(self._anchor)

    @property
    def _window(self) -> tuple[str, ...]:
        """The marks of all messages that may still be in the queue, except for kept ones."""
        return (*(mark for _, mark in self._acked), *self._open.values())

    EVENTS: ClassVar[Events] = {
        CursorEvent.DELIVERED: (_take, STAYS),
        CursorEvent.EMPTY: (_end, STAYS),
        CursorEvent.KEPT: (_keep, STAYS),
        CursorEvent.ACKED: (_ack, STAYS),
        CursorEvent.LAST_ALONE: enters(CursorState.LAST),
        CursorEvent.LAST_SENT: enters(CursorState.SENT),
        # The last message was not sent and no messages are in flight, so it is still in the queue.
        CursorEvent.DRAINED: enters(CursorState.TAKING),
        CursorEvent.SHARED: (_share, STAYS),
    }
    """The events that both counting cursors handle in the same way."""
