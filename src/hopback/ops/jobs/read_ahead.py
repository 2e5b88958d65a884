"""The number of messages that a job holds at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.ops.jobs.journal import JobSpec


_WINDOWS = 3
"""While one window is on its way, the marks of two are written down at once."""
_WINDOWS_AHEAD = 20
"""10,000 messages with the usual window: what RabbitMQ moves in a second (benchmarks/ADMIN.md)."""
_AHEAD_OF = 20
"""No more than one part in so many of a selection: equal messages are told apart by those not held yet."""


def held_ahead(spec: JobSpec, *, is_classic: bool, is_paced: bool) -> int:
    """How many messages a job holds at a time: some windows, so that many are written down at once.

    A classic queue hands out nothing while RabbitMQ collects the garbage of its process, 0.2 s at a time with
    150,000 messages, longer with more: what is at hand by then goes on meanwhile. To give it back costs such
    a queue nothing. At a given rate the last ones would wait until the broker takes them back.
    """
    window = spec.pace.in_flight
    if not is_classic or is_paced:
        return _WINDOWS * window
    ahead = min(spec.selection.count // _AHEAD_OF, _WINDOWS_AHEAD * window)
    return max(ahead, _WINDOWS * window)
