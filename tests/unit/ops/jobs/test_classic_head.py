"""The position at which an interrupted job on a classic queue resumes, by the marks of messages."""

from __future__ import annotations

import pytest

from hopback.ops.jobs.classic_head import HeadMessage, decide_head
from hopback.ops.jobs.job_record import Checkpoint


def _length(mark: Checkpoint, queue: str, *, longest: int = 0) -> int | None:
    """Each letter is a message with that mark."""
    longest = longest or len(queue)
    found = [HeadMessage(one, one == mark.last) for one in queue[:longest]]
    return decide_head(mark, longest, found)


@pytest.mark.parametrize(
    ("queue", "length"),
    [
        ("ABCDrst", 4),  # all were redelivered
        ("DArst", 1),  # all but the last are done, and one of the rest is the twin of a done one
        ("CDDrst", 2),  # one of the following messages equals the last one and has no mark
        ("xyABCDrst", 6),  # older acks were forgotten
        ("DABCDrs", None),  # an older one may be the twin of the last one, or all the others are
        ("ABC", None),  # another consumer has taken it
    ],
)
def test_last_held_message_ends_head(queue: str, length: int | None) -> None:
    mark = Checkpoint(window=tuple("ABCD"), rest=3, last="D", last_stays=True)
    assert _length(mark, queue) == length


def test_skipped_messages_belong_to_head() -> None:
    """A skipped message may be the last one."""
    mark = Checkpoint(2, tuple("ABC"), 3, last="k", last_stays=True)
    assert _length(mark, "jBCkrst") == 4
    assert _length(mark, "jkrst") == 2
    assert _length(Checkpoint(2, (), 3, last="k", last_stays=True), "jkrst", longest=2) == 2


def test_head_is_unknown_if_several_messages_equal_the_last_one() -> None:
    """Neither counts nor redelivered flags show which of them it is."""
    mark = Checkpoint(window=tuple("ABABA"), rest=9, last="A", last_stays=True)
    assert _length(mark, "ABABABABA") is None
    assert _length(mark, "ABABABABA", longest=1) == 1


@pytest.mark.parametrize(
    ("queue", "length"),
    [
        ("rst", 0),  # it is done, and so are all others
        ("Drst", 0),  # it is back, or an equal message follows
        ("ABCDrst", None),  # a killed broker has forgotten the last acks, or a new batch is equal
        ("ADrst", None),
        ("vwxyD", 0),  # an equal message is somewhere behind
    ],
)
def test_sent_last_message_is_left_and_head_is_unknown_if_others_are_back(
    queue: str, length: int | None
) -> None:
    mark = Checkpoint(window=tuple("ABCD"), last="D", last_stays=False)
    assert _length(mark, queue) == length


def test_head_is_unknown_if_last_message_is_missing() -> None:
    mark = Checkpoint(window=tuple("ABCD"), rest=3, last="D", last_stays=True)
    assert decide_head(mark, 0) is None
    assert decide_head(Checkpoint(rest=3), 0) == 0
