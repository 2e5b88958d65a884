"""Choose how many messages a job holds at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.ops.jobs.job_spec import JobSpec

_PACED = 3
"""Messages that a job with a rate holds, as a multiple of those in flight: the last ones must not wait for
too long."""
_QUORUM = 8
"""The multiple for a quorum queue. Each checkpoint costs a save and a passive declare, so it contains the
marks of seven times as many messages as are in flight. A killed job requeues all of them."""
_CLASSIC = 20
"""The multiple for a long classic queue: 10,000 messages by default, which is the number that RabbitMQ moves
in a second (benchmarks/ADMIN.md)."""
_AHEAD_OF = 20
"""At most one message in 20 of a selection is held: messages that are not held yet distinguish equal ones."""


def choose_prefetch(spec: JobSpec, *, is_classic: bool, is_paced: bool) -> int:
    """Return the number of messages that a job holds at a time.

    A classic queue delivers no message while RabbitMQ collects the garbage of its process: 0.2 s at a time
    with 150,000 messages, longer with more. The job continues with the messages it holds. Requeueing the
    rest costs a classic queue little. A job with a rate holds few messages, because the broker would
    requeue the last ones before their turn.
    """
    in_flight = spec.pace.in_flight
    if is_paced:
        return _PACED * in_flight
    if not is_classic:
        return _QUORUM * in_flight
    ahead = min(spec.span // _AHEAD_OF, _CLASSIC * in_flight)
    return max(ahead, _PACED * in_flight)
