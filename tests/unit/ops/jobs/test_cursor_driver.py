"""Jobs on queues with equal messages: they move selected messages only, or stop with the reason."""

from __future__ import annotations

from collections import Counter

import pytest

from hopback.ops.contract.values import JobState
from tests.unit.ops.jobs.lives import play

_ONCE_WRONG = {
    "classic": (9, 66, 500443, 2006644, 2029913),
    "quorum": (4, 7, 14, 16, 22, 29, 48, 66, 83, 91, 106, 628, 730, 1126, 500015, 700313),
}
"""Seeds of lives in which an earlier version moved unselected messages or counted wrong."""


@pytest.mark.parametrize(
    ("kind", "seed"), [(kind, seed) for kind, seeds in _ONCE_WRONG.items() for seed in seeds]
)
def test_regression_seed_moves_only_selected_messages(kind: str, seed: int) -> None:
    play(seed, kind)


def test_new_messages_that_equal_the_sent_ones_stay() -> None:
    """Exactly one more round of a queue that repeats 40 messages arrives after the last was sent."""
    assert play(2210967, "classic", longest=400) is JobState.FAILED


def test_second_kill_after_last_message_was_sent_does_not_hide_that_it_may_be_left() -> None:
    assert play(21000238, "quorum", longest=400) is JobState.COMPLETED


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_random_lives_move_selected_messages_only(kind: str) -> None:
    ends = Counter(play(seed, kind) for seed in range(3000, 3040))
    assert ends[JobState.COMPLETED] > ends[JobState.FAILED]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_random_lives_of_long_queues_move_selected_messages_only(kind: str) -> None:
    """A job holds more messages of a long queue at a time."""
    ends = Counter(play(seed, kind, longest=400) for seed in range(12))
    assert ends[JobState.COMPLETED] > ends[JobState.FAILED]
