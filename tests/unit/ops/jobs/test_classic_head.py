"""The position at which an interrupted job on a classic queue resumes, by marks, counts and
redelivered flags.
"""

from __future__ import annotations

import pytest

from hopback.ops.jobs.classic_head import HeadLimits, HeadMessage, decide_head
from hopback.ops.jobs.job_record import Checkpoint


def _length(
    mark: Checkpoint, queue: str, *, out: int = 0, by_count: int | None = None, most: int = 0
) -> int | None:
    """Each letter is a message with that mark. The first `out` messages were delivered before."""
    limits = HeadLimits(most or len(queue), by_count)
    found = [HeadMessage(one, n < out) for n, one in enumerate(queue[: limits.most + 1])]
    return decide_head(mark, limits, found)


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
    assert _length(Checkpoint(2, (), 3, last="k", last_stays=True), "jkrst", most=2) == 2


@pytest.mark.parametrize(
    ("out", "by_count", "length"),
    [
        (3, 3, 3),  # both agree
        (3, 5, None),  # new messages arrived, or a session returned some
        (5, 3, None),  # a session returned it
        (4, 4, None),  # it does not end there
    ],
)
def test_equal_messages_require_count_and_redelivered_flags_to_agree(
    out: int, by_count: int, length: int | None
) -> None:
    mark = Checkpoint(
        window=tuple("ABABA"),
        rest=9,
        rest_is_untouched=True,
        has_twins=True,
        last="A",
        last_stays=True,
    )
    assert _length(mark, "ABABABABA", out=out, by_count=by_count, most=by_count) == length


@pytest.mark.parametrize(
    ("queue", "out", "length"),
    [
        ("rst", 0, 0),  # it is done, and so are all others
        ("Drst", 1, 0),  # it is back, or an equal message was browsed
        ("Drst", 0, 0),  # a killed broker has forgotten its ack, or an equal message follows
        ("ABCDrst", 4, None),  # a killed broker has forgotten the last acks, or a batch of new
        ("ABCDrst", 0, None),  # messages is equal, whether or not it was browsed
        ("ADrst", 2, None),
    ],
)
def test_sent_last_message_is_left_and_head_is_unknown_if_others_are_back(
    queue: str, out: int, length: int | None
) -> None:
    mark = Checkpoint(window=tuple("ABCD"), last="D", last_stays=False)
    assert _length(mark, queue, out=out) == length


@pytest.mark.parametrize("out", [0, 5])
def test_browsed_new_messages_before_an_equal_one_are_not_taken_for_lost_acks(out: int) -> None:
    """The window has only the mark of the last message, which proves too little."""
    mark = Checkpoint(window=("D",), last="D", last_stays=False)
    assert _length(mark, "vwxyD", out=out, by_count=5) is None


def test_head_is_unknown_if_last_message_is_missing() -> None:
    mark = Checkpoint(window=tuple("ABCD"), rest=3, last="D", last_stays=True)
    assert decide_head(mark, HeadLimits(0, 0)) is None
    assert decide_head(Checkpoint(rest=3), HeadLimits(0, 0)) == 0
