"""Jobs on a classic queue with equal messages: whatever befalls them, nothing moves that was not selected."""

from __future__ import annotations

from collections import Counter

import pytest

from hopback.deadletters.contract import JobState
from tests.unit.operations.lives import play

_ONCE_WRONG = (4, 18, 48, 116, 326, 344, 429, 593, 735, 831, 859, 1708, 2570, 8603)
"""Lives in which an earlier version moved messages that were not selected, or counted wrong."""


@pytest.mark.parametrize("seed", _ONCE_WRONG)
def test_a_life_that_once_went_wrong(seed: int) -> None:
    """A twin of a done message was taken for it, or somebody had looked at the queue meanwhile."""
    play(seed)


def test_random_lives() -> None:
    """Most jobs complete; the others say that nobody can tell."""
    ends = Counter(play(seed) for seed in range(3000, 3040))
    assert ends[JobState.COMPLETED] > 2 * ends[JobState.FAILED]


def test_random_lives_of_long_queues() -> None:
    """Of a long queue a job holds more at a time, and is as safe."""
    ends = Counter(play(seed, longest=400) for seed in range(12))
    assert ends[JobState.COMPLETED] > 2 * ends[JobState.FAILED]
