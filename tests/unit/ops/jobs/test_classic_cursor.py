"""Where the rest of a selection begins in a classic queue, by marks, numbers and what was handed out."""

from __future__ import annotations

import pytest

from hopback.ops.jobs.classic_cursor import HeadLimits, HeadMessage, find_head
from hopback.ops.jobs.job_record import Checkpoint


def _length(
    mark: Checkpoint, queue: str, *, out: int = 0, by_count: int | None = None, most: int = 0
) -> int | None:
    """Each letter is a message with that mark; the first `out` had been handed out."""
    limits = HeadLimits(most or len(queue), by_count)
    found = [HeadMessage(one, n < out) for n, one in enumerate(queue[: limits.most + 1])]
    return find_head(mark, limits, found)


@pytest.mark.parametrize(
    ("queue", "length"),
    [
        ("ABCDrst", 4),  # all came back
        ("DArst", 1),  # all but the last are done, and one of the rest is the twin of a done one
        ("CDDrst", 2),  # one of the rest is the twin of the last one: what follows it has no mark
        ("xyABCDrst", 6),  # older acks were forgotten
        ("DABCDrs", None),  # an older one may be the twin of the last one, or all the others are
        ("ABC", None),  # somebody has taken it
    ],
)
def test_the_last_one_that_was_held_back_ends_the_head(queue: str, length: int | None) -> None:
    """Where only one can be it, neither marks of others nor numbers are needed."""
    mark = Checkpoint(window=tuple("ABCD"), rest=3, last="D", last_stays=True)
    assert _length(mark, queue) == length


def test_what_was_kept_stands_among_them() -> None:
    """A message that was skipped may itself be the last one."""
    mark = Checkpoint(2, tuple("ABC"), 3, last="k", last_stays=True)
    assert _length(mark, "jBCkrst") == 4
    assert _length(mark, "jkrst") == 2
    assert _length(Checkpoint(2, (), 3, last="k", last_stays=True), "jkrst", most=2) == 2


@pytest.mark.parametrize(
    ("out", "by_count", "length"),
    [
        (3, 3, 3),  # both say so
        (3, 5, None),  # new ones came in, or somebody has looked at some
        (5, 3, None),  # somebody has looked
        (4, 4, None),  # it does not end there
    ],
)
def test_twins_are_told_only_where_number_and_marks_of_the_queue_agree(
    out: int, by_count: int, length: int | None
) -> None:
    """One of them alone may have another cause."""
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
        ("Drst", 1, 1),  # it came back
        ("Drst", 0, None),  # it came back from a killed broker, or its twin stands behind
        ("Drst", 3, None),  # all had been looked at
        ("ABCDrst", 4, 4),  # a killed broker has forgotten the last acks
    ],
)
def test_the_very_last_one_may_be_done(queue: str, out: int, length: int | None) -> None:
    """It was sent alone: what the queue had handed out tells it from a twin behind it."""
    mark = Checkpoint(window=tuple("ABCD"), last="D", last_stays=False)
    assert _length(mark, queue, out=out) == length


@pytest.mark.parametrize(("out", "length"), [(0, None), (2, None), (7, 4)])
def test_the_count_tells_only_among_what_was_handed_out(out: int, length: int | None) -> None:
    """New messages may be equal to the last ones, and as many as would have come back."""
    mark = Checkpoint(window=tuple("ABCD"), last="D", last_stays=False)
    assert _length(mark, "ABCDrst", out=out, by_count=4, most=4) == length


def test_less_than_must_be_there() -> None:
    """Somebody holds the last one, or has taken it: then nobody can tell."""
    mark = Checkpoint(window=tuple("ABCD"), rest=3, last="D", last_stays=True)
    assert find_head(mark, HeadLimits(0, 0)) is None
    assert find_head(Checkpoint(rest=3), HeadLimits(0, 0)) == 0
