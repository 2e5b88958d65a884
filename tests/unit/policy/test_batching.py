"""Windows and halves of batches."""

from __future__ import annotations

from hopback.policy.batching import BatchWindow, halves


def test_a_window_is_full_at_its_size() -> None:
    """Not one message before, not one after."""
    window = BatchWindow(size=3, wait=1)
    assert [window.is_full(held) for held in (2, 3, 4)] == [False, True, True]


def test_a_window_is_due_after_its_wait() -> None:
    """The wait counts from the first message."""
    assert BatchWindow(size=3, wait=1.5).due_at(10) == 11.5


def test_halves_keep_every_message_and_their_order() -> None:
    """An odd batch gives the longer half last; nothing is lost or doubled."""
    assert halves([1, 2, 3, 4, 5]) == ([1, 2], [3, 4, 5])
    assert halves([1, 2]) == ([1], [2])
