"""Choose how many messages a job holds at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.ops.jobs.journal import JobSpec

_WINDOWS = 3
"""Number of windows of a job with a rate: its last messages must not wait for too long."""
_WINDOWS_QUORUM = 8
"""Number of windows of a quorum queue. Each checkpoint costs a save and a passive declare, so the marks of
seven windows are saved in one checkpoint while one window is in flight. A killed job requeues all of them."""
_WINDOWS_AHEAD = 20
"""Number of windows of a long classic queue: 10,000 messages with the default window, which is the number
RabbitMQ moves in a second (benchmarks/ADMIN.md)."""
_AHEAD_OF = 20
"""At most one message in 20 of a selection is held: messages that are not held yet distinguish equal ones."""


def choose_prefetch(spec: JobSpec, *, is_classic: bool, is_paced: bool) -> int:
    """Return the number of messages that a job holds at a time.

    A classic queue delivers no message while RabbitMQ collects the garbage of its process: 0.2 s at a time
    with 150,000 messages, longer with more. The job continues with the messages it holds. Requeueing the
    rest costs a classic queue little. A job with a rate holds few messages, because the broker would
    requeue the last ones before their turn.
    """
    window = spec.pace.in_flight
    if is_paced:
        return _WINDOWS * window
    if not is_classic:
        return _WINDOWS_QUORUM * window
    ahead = min(spec.selection.count // _AHEAD_OF, _WINDOWS_AHEAD * window)
    return max(ahead, _WINDOWS * window)
