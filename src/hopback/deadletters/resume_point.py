"""Where a job on a classic queue goes on: how many messages stand before the untouched rest of its selection.

A classic queue puts back what was held to where it was. So its head is what the job kept, those of its marks
that came back, and, if its broker was killed, done messages whose acks were not on its disk: the last acks,
which may be more than there are marks. All of them go through the job again. Behind the head stand the rest,
what was never selected, and what is new, each of which may be equal to something that is done.

Marks alone could take such an equal one for the one that is done, and the number of messages does not tell
what is new. But a job holds its last message back until the next marks are written down: that one is still
there, and the head ends with it. Only where several could be it nobody can tell, unless by what the queue has
marked as handed out. The last message of all is sent alone, when all other acks were read: if it is gone,
nothing else has come back. The decisions are pure; `read_head` looks at the queue.
"""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from hopback.deadletters.head import walk
from hopback.deadletters.selection import mark_of
from hopback.headers.names import REDRIVE_JOB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hopback.broker.port import Broker
    from hopback.deadletters.contract import Cost
    from hopback.deadletters.journal import Checkpoint, JobRecord

__all__ = ["HeadLimits", "HeadMessage", "head_length", "head_limits", "read_head"]

_HELD_BACK = 65_536
"""So many forgotten acks are looked for: twice as many as RabbitMQ keeps off the disk
(`queue_index_max_journal_entries`)."""


@dataclass(frozen=True, slots=True)
class HeadMessage:
    """A message as it stands in the queue: its mark, and whether it was handed out before."""

    mark: str
    was_out: bool


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """How many messages can stand before the rest at `most`; `by_count` are so many if nothing new came in.

    `by_count` is None where nobody has counted what stood behind the selection.
    """

    most: int
    by_count: int | None


def head_limits(job: JobRecord, ready: int) -> HeadLimits:
    """What so many messages that are ready tell of the head."""
    mark, selection = job.checkpoint, job.spec.selection
    most = min(selection.count - mark.rest, mark.kept + len(mark.window) + _HELD_BACK)
    if selection.behind is None:
        return HeadLimits(most, None)
    by_count = ready - mark.rest - selection.behind
    return HeadLimits(min(most, by_count), by_count)


async def read_head(broker: Broker, job: JobRecord, limits: HeadLimits, cost: Cost) -> int | None:
    """How many messages stand before the rest; None if nobody can tell.

    The look hands messages out: that no more can be told by this has to be written down before.
    """
    found: list[HeadMessage] = []
    async with aclosing(walk(broker, job.queue, limits.most + 1, cost)) as messages:
        async for delivery in messages:
            if delivery.properties.headers.get(REDRIVE_JOB) == job.id:
                break  # what this job has sent stands behind all that it has to send
            found.append(HeadMessage(mark_of(delivery), delivery.redelivered))
    return head_length(job.checkpoint, limits, found)


def head_length(
    mark: Checkpoint, limits: HeadLimits, found: Sequence[HeadMessage] = ()
) -> int | None:
    """How many of the messages that were `found` at the head stand before the rest; None: not known.

    `found` has one more than there can be at most, if the queue has, and may be empty if nothing can have
    come back.
    """
    if limits.most <= mark.kept:
        # Less than must be there: somebody has taken some, or holds them.
        is_short = bool(mark.last_stays) and mark.last in mark.window
        return None if is_short else mark.kept
    out = sum(1 for _ in takewhile(lambda one: one.was_out, found))
    if mark.last_stays is None:
        return _by_marks_alone(mark, found, limits.most, out)
    ends = list(_possible_ends(mark, found[: limits.most]))
    # Somebody may have looked at more, and new ones may have come in: one alone says nothing.
    agree = out == limits.by_count and out < len(found)
    if mark.last_stays:
        if len(ends) == 1:
            return ends[0]
        return out if mark.has_twins and mark.end_is_sure and agree and out in ends else None
    if not ends:
        return mark.kept
    if len(ends) > 1:
        return None
    # The last one came back, or one behind is its equal, which nobody had been given, nor what follows it.
    end = ends[0]
    if mark.has_twins:
        is_it = agree and end == out == mark.kept + 1
    elif end == mark.kept + 1:
        is_it = end == out
    else:  # others came back with it, whose marks are all different: the count may say so as well
        is_it = end == out or (end < out and end == limits.by_count)
    return end if is_it else None


def _possible_ends(mark: Checkpoint, head: Sequence[HeadMessage]) -> Iterator[int]:
    """The lengths that a head can have which ends with the last message that was in the job's hands.

    Besides what was kept it has only messages with marks; or else older ones, and then all that have marks.
    """
    missing = Counter(mark.window)
    strangers = 0
    for length, one in enumerate(head, 1):
        if missing[one.mark]:
            missing[one.mark] -= 1
        else:
            strangers += 1
        if one.mark != mark.last or length < mark.kept:
            continue
        if strangers <= mark.kept or _has_all(mark, head[:length]):
            yield length


def _has_all(mark: Checkpoint, head: Sequence[HeadMessage]) -> bool:
    """Whether all that have marks stand at the end of it, with nothing between them but what was kept."""
    size = len(mark.window)
    last = head[max(len(head) - size - mark.kept, 0) :]
    return not Counter(mark.window) - Counter(one.mark for one in last)


def _by_marks_alone(
    mark: Checkpoint, found: Sequence[HeadMessage], most: int, out: int
) -> int | None:
    """For a job of an earlier version, which did not hold its last message back."""
    if mark.has_twins:
        fits = mark.kept <= out <= min(most, mark.kept + len(mark.window))
        return out if mark.end_is_sure and fits else None
    missing = Counter(mark.window)
    strangers = came_back = 0
    for length, one in enumerate(found[:most], 1):
        if missing[one.mark]:
            missing[one.mark] -= 1
        else:
            strangers += 1
        if strangers <= mark.kept:
            came_back = length
        if not missing.total() and (one.mark == mark.last or not mark.last):
            return length  # all of them, and what stands before them
    return came_back
