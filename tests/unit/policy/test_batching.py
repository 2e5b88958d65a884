"""Windows and halves of batches."""

from __future__ import annotations

from hopback.policy.batching import BatchWindow, halves


def test_batch_window_is_full_at_its_size() -> None:
    window = BatchWindow(size=3, wait=1)
    assert [window.is_full(held) for held in (2, 3, 4)] == [False, True, True]


def test_batch_window_is_due_after_its_wait() -> None:
    """The wait starts with the first message."""
    assert BatchWindow(size=3, wait=1.5).due_at(10) == 11.5


def test_halves_keep_every_message_and_order() -> None:
    """The second half of an odd batch is longer."""
    assert halves([1, 2, 3, 4, 5]) == ([1, 2], [3, 4, 5])
    assert halves([1, 2]) == ([1], [2])
