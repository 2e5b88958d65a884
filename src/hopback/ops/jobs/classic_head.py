"""Find the head of a classic queue when a job is resumed. `classic_cursor` explains it.

`find_head` reads the queue, `decide_head` is pure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

from hopback.headers.names import REDRIVE_JOB
from hopback.ops.browse.walk import walk
from hopback.ops.jobs.cursor import mark_of
from hopback.ops.messages.digest import content_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.jobs.job_record import Checkpoint, JobRecord
    from hopback.ops.jobs.leased_job import LeasedJob

_LOST_ACKS = 65_536
"""Number of lost acks to look for: twice as many as RabbitMQ keeps in memory
(`queue_index_max_journal_entries`). A longer head is not found, and the job stops."""


async def find_head(
    broker: ManagedBroker, leased: LeasedJob, snapshot: BrokerSnapshot
) -> int | None:
    """Return the number of messages that the job takes again, before the rest of its selection, or None if
    unknown.

    Reading delivers messages, so the flags prove nothing afterwards. The checkpoint records this beforehand.
    """
    job, began = leased.job, leased.job.checkpoint
    ready, _ = await broker.count_ready(job.queue)
    limits = head_limits(job, ready)
    found: list[HeadMessage] = []
    if limits.most > began.kept:
        if began.has_twins:
            await leased.write(replace(job, checkpoint=replace(began, rest_is_untouched=False)))
        cost = snapshot.cost(job.queue)
        async with walk(broker.new_connection, job.queue, limits.most + 1, cost) as messages:
            async for delivery in messages:
                if delivery.properties.headers.get(REDRIVE_JOB) == job.id:
                    break  # messages that this job has sent are behind all that it has to send
                mark = mark_of(delivery)
                is_anchor = mark == began.last and content_digest(delivery) == began.last_digest
                found.append(HeadMessage(mark, delivery.redelivered, is_anchor))
    head = decide_head(began, limits, found)
    if head is not None:
        leased.sent_again += max(head - began.kept - len(began.window), 0)
    return head


@dataclass(frozen=True, slots=True)
class HeadMessage:
    """A message at the head of the queue: its mark, and whether it was previously delivered.

    `is_anchor` is whether it also has the digest of the anchor.
    """

    mark: str
    was_out: bool
    is_anchor: bool = True


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """The greatest possible length of the head, and its length if no message has arrived since the start.

    `by_count` is None if the messages behind the selection were not counted.
    """

    most: int
    by_count: int | None


def head_limits(job: JobRecord, ready: int) -> HeadLimits:
    """Return the limits of the head's length, for this number of ready messages."""
    began, spec = job.checkpoint, job.spec
    most = min(spec.span - began.rest, began.kept + len(began.window) + _LOST_ACKS)
    if spec.behind is None:
        return HeadLimits(most, None)
    by_count = ready - began.rest - spec.behind
    return HeadLimits(min(most, by_count), by_count)


def decide_head(
    began: Checkpoint, limits: HeadLimits, found: Sequence[HeadMessage] = ()
) -> int | None:
    """Return the length of the head at the beginning of the `found` messages, or None if it is unknown.

    `found` contains one more message than the head can have, if the queue has that many. It may be empty if
    no message can be back.
    """
    if limits.most <= began.kept:
        # Fewer messages than there must be: others have taken or hold some.
        is_short = bool(began.last_stays) and began.last in began.window
        return None if is_short else began.kept
    out = sum(1 for _ in takewhile(lambda one: one.was_out, found))
    ends = list(_possible_ends(began, found[: limits.most]))
    if began.last_stays:
        if len(ends) == 1:
            return ends[0]
        # Others may have browsed more messages, and messages may have arrived: one count proves nothing.
        do_agree = out == limits.by_count and out < len(found)
        by_flags = began.has_twins and began.rest_is_untouched and do_agree and out in ends
        return out if by_flags else None
    if not ends or ends == [began.kept + 1]:
        return began.kept  # the last message was sent: it is back, or a new message is equal
    if len(ends) > 1 or began.has_twins:
        return None
    # Other messages are back as well, whose marks are all different, or a batch of new messages is equal.
    is_back = ends[0] == out or (ends[0] < out and ends[0] == limits.by_count)
    return ends[0] if is_back else None


def _possible_ends(began: Checkpoint, head: Sequence[HeadMessage]) -> Iterator[int]:
    """Yield each length of a head that ends with the anchor.

    Apart from kept messages, the head contains only messages of the window, or older messages followed by the
    whole window.
    """
    missing = Counter(began.window)
    unknown = 0
    for length, one in enumerate(head, 1):
        if missing[one.mark]:
            missing[one.mark] -= 1
        else:
            unknown += 1
        if one.mark != began.last or not one.is_anchor or length < began.kept:
            continue
        if unknown <= began.kept or _has_window(began, head[:length]):
            yield length


def _has_window(began: Checkpoint, head: Sequence[HeadMessage]) -> bool:
    """Whether the head ends with all messages of the window, and only kept messages are between them."""
    size = len(began.window)
    last = head[max(len(head) - size - began.kept, 0) :]
    return not Counter(began.window) - Counter(one.mark for one in last)
