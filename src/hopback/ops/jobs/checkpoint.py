"""The checkpoint of a job, from which an interrupted job continues."""

from __future__ import annotations

from dataclasses import dataclass

from hopback.ops.browse.prefetch import FIRST_PREFETCH


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The values from which a new cursor finds the rest of a selection after a crash.

    It is saved before messages are sent. `quorum_cursor`, `classic_cursor` and `chosen_cursor` explain
    how it is used.
    """

    kept: int = 0
    """Number of messages that the job has decided to leave in the queue."""
    window: tuple[str, ...] = ()
    """Marks of messages that the job holds, or has acked so recently that the queue may still have them."""
    rest: int = 0
    """Number of selected messages that the job has not taken."""
    last: str = ""
    """Mark of the anchor, the last message that was delivered to the job."""
    last_digest: str = ""
    """Digest of the anchor."""
    last_stays: bool = False
    """The anchor is in the queue: the job does not send it before the next checkpoint."""
    is_shared: bool = False
    """Another consumer has taken messages from the queue while the job ran."""
    last_is_behind: bool = False
    """Quorum queues: the anchor is the first message behind the selection."""
    finding: int = 0
    """Quorum queues: a job that was killed while it took redelivered messages had taken this number of
    messages at once, if there were as many. 0 if no job was killed then."""
    in_place: bool = False
    """Quorum queues: the queue requeues all messages of the job in their original order, before all
    others."""
    acks_applied: bool = False
    """Quorum queues: the queue still has every message of the window."""
    unsure: int = 0
    """Quorum queues: number of selected messages that may remain, besides `rest`."""
    has_twins: bool = False
    """Messages with equal marks or digests were seen."""
    rest_is_untouched: bool = False
    """Classic queues: no message of the rest was delivered before."""


def first_checkpoint(count: int) -> Checkpoint:
    """Return the checkpoint of a new job that selects the first `count` messages."""
    return Checkpoint(rest=count, in_place=True, finding=min(FIRST_PREFETCH, count))
