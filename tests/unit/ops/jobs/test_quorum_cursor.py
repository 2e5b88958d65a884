"""Rules of the cursor for quorum queues. Each character is a message, equal characters are equal messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.message import Properties, Received
from hopback.ops.jobs.cursor import CursorEvent, CursorState
from hopback.ops.jobs.job_record import first_checkpoint
from hopback.ops.jobs.quorum_cursor import QuorumCursor

if TYPE_CHECKING:
    from hopback.ops.jobs.job_record import Checkpoint


def _delivery(tag: int, body: str, *, redelivered: bool) -> Received:
    return Received(
        queue="q",
        exchange="",
        routing_key="q",
        body=body.encode(),
        properties=Properties(),
        redelivered=redelivered,
        tag=tag,
    )


def _cursor(
    checkpoint: Checkpoint, *, is_resumed: bool = True, by_count: int | None = None
) -> QuorumCursor:
    return QuorumCursor(checkpoint, 10, is_resumed=is_resumed, is_whole=False, by_count=by_count)


def _deliver(cursor: QuorumCursor, queue_text: str, redelivered: int = 0, first: int = 1) -> None:
    for number, body in enumerate(queue_text):
        is_redelivered = number < redelivered
        cursor.handle(
            CursorEvent.DELIVERED, _delivery(first + number, body, redelivered=is_redelivered)
        )


def _killed(queue_text: str, selected: int, acked: int, kept: int = 0) -> Checkpoint:
    """The checkpoint of a job that took these messages, kept some and acked the next ones."""
    cursor = _cursor(first_checkpoint(selected), is_resumed=False)
    _deliver(cursor, queue_text)
    for tag in range(1, kept + 1):
        cursor.handle(CursorEvent.KEPT, tag)
    cursor.handle(CursorEvent.SENDING)
    for tag in range(kept + 1, kept + acked + 1):
        cursor.handle(CursorEvent.ACKED, tag)
    return cursor.checkpoint()


def _selected(
    checkpoint: Checkpoint, queue: str, redelivered: int, by_count: int | None = None
) -> int | None:
    """How many messages of the queue belong to the resumed job, None if it stops."""
    cursor = _cursor(checkpoint, by_count=by_count)
    for number, body in enumerate(queue, 1):
        if cursor.state is not CursorState.STOPPED:
            is_redelivered = number <= redelivered
            cursor.handle(
                CursorEvent.DELIVERED, _delivery(number, body, redelivered=is_redelivered)
            )
    if cursor.state is CursorState.FINDING:
        cursor.handle(CursorEvent.EMPTY)
    if cursor.state is CursorState.STOPPED:
        return None
    return sum(
        cursor.belongs(_delivery(number, body, redelivered=True))
        for number, body in enumerate(queue, 1)
    )


@pytest.mark.parametrize(
    ("queue", "redelivered", "selected"),
    [
        ("ABCDEFxy", 4, 6),  # no ack was applied
        ("CDEFxy", 2, 4),  # two acks were applied
        ("CDEFxy", 4, 4),  # two messages were delivered after the checkpoint
        ("CDEFxyz", 6, 4),  # a session has browsed all messages
        ("DAFxy", 3, 3),  # a message of the rest equals a finished one
        ("CDDFxy", 4, 4),  # a message of the rest equals the anchor
    ],
)
def test_rest_of_selection_begins_behind_anchor(
    queue: str, redelivered: int, selected: int
) -> None:
    assert _selected(_killed("ABCD", 6, 2), queue, redelivered) == selected


def test_message_delivered_after_save_that_equals_finished_one_is_counted() -> None:
    """A and B are finished. The first message of the rest equals A."""
    assert _selected(_killed("ABCD", 6, 2), "CDAFxy", 4) == 4


def test_kept_message_that_equals_moved_one_stops_the_job() -> None:
    """K is kept, an equal message was moved."""
    assert _selected(_killed("KKCD", 6, 1, kept=1), "KCDEFxy", 3) is None


@pytest.mark.parametrize(
    ("queue", "redelivered"),
    [
        ("CEFxy", 1),  # the anchor has left the queue
        ("BCDEA", 5),  # others have requeued A behind the messages of the job
        ("ABCDEF", 0),  # all messages were published again
    ],
)
def test_resume_stops_when_end_of_selection_is_unknown(queue: str, redelivered: int) -> None:
    assert _selected(_killed("ABCD", 6, 2), queue, redelivered) is None


def test_resume_stops_when_several_messages_could_be_the_anchor() -> None:
    assert _selected(_killed("DBCD", 6, 1), "CDDFxy", 3) is None


def test_resume_stops_when_fewer_messages_are_left_than_expected() -> None:
    assert _selected(_killed("ABCD", 6, 2), "CDEF", 2, by_count=1) is None


def test_resume_stops_after_another_consumer_was_seen() -> None:
    cursor = _cursor(first_checkpoint(4), is_resumed=False)
    _deliver(cursor, "AB")
    cursor.handle(CursorEvent.SHARED)
    assert _selected(cursor.checkpoint(), "ABCD", 2) is None


def test_marks_of_acked_messages_stay_until_acks_are_applied() -> None:
    cursor = _cursor(first_checkpoint(4), is_resumed=False)
    _deliver(cursor, "AB")
    cursor.handle(CursorEvent.ACKED, 1)
    assert len(cursor.checkpoint().window) == 2
    cursor.handle(CursorEvent.APPLIED)
    assert len(cursor.checkpoint().window) == 1
    assert cursor.checkpoint().acks_applied
    cursor.handle(CursorEvent.SENDING)
    assert not cursor.checkpoint().acks_applied


def test_messages_that_are_not_in_the_queue_are_gone_and_not_moved() -> None:
    cursor = _cursor(first_checkpoint(4), is_resumed=False)
    _deliver(cursor, "AB")
    cursor.handle(CursorEvent.EMPTY)
    assert cursor.gone == 2


def test_job_killed_while_finding_resumes_only_if_it_took_all_redelivered_messages() -> None:
    cursor = _cursor(first_checkpoint(30), is_resumed=False)
    _deliver(cursor, "A" * 20, redelivered=20)
    assert cursor.state is CursorState.FINDING
    assert _selected(cursor.checkpoint(), "A" * 40, 20) == 30
    assert _selected(cursor.checkpoint(), "A" * 40, 21) is None


def test_event_that_state_does_not_accept_is_rejected() -> None:
    cursor = _cursor(first_checkpoint(4), is_resumed=False)
    with pytest.raises(ValueError, match="ACKED is not accepted in FINDING"):
        cursor.handle(CursorEvent.ACKED, 1)
