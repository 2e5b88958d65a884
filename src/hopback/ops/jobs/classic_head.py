"""Find the head of a classic queue, which is described in `classic_cursor`, when a job is resumed.

`find_head` reads the queue, and `decide_head` is pure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
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
"""Number of lost acks to look for. This is twice the number that RabbitMQ keeps in memory
(`queue_index_max_journal_entries`). A longer head is not found, so the job stops.
"""


async def find_head(
    broker: ManagedBroker, leased: LeasedJob, snapshot: BrokerSnapshot
) -> int | None:
    """Return the number of messages before the rest of the selection that the job takes again.

    Returns None if it is unknown.
    """
    job, began = leased.job, leased.job.checkpoint
    ready, _ = await broker.count_ready(job.queue)
    longest = longest_head(job, ready)
    found: list[HeadMessage] = []
    if longest > began.kept:
        cost = snapshot.cost(job.queue)
        async with walk(broker.new_connection, job.queue, longest, cost) as messages:
            async for delivery in messages:
                if delivery.properties.headers.get(REDRIVE_JOB) == job.id:
                    break  # messages sent by this job are always behind those it still has to send
                mark = mark_of(delivery)
                is_anchor = mark == began.last and content_digest(delivery) == began.last_digest
                found.append(HeadMessage(mark, is_anchor))
    head = decide_head(began, longest, found)
    if head is not None:
        leased.sent_again += max(head - began.kept - len(began.window), 0)
    return head


@dataclass(frozen=True, slots=True)
class HeadMessage:
    """A message at the head of the queue. `is_anchor` is True if the mark and the digest are those of
    the anchor.
    """

    mark: str
    is_anchor: bool


def longest_head(job: JobRecord, ready: int) -> int:
    """Return the maximum length of the head if the queue has `ready` messages."""
    began, spec = job.checkpoint, job.spec
    longest = min(spec.span - began.rest, began.kept + len(began.window) + _LOST_ACKS)
    return longest if spec.behind is None else min(longest, ready - began.rest - spec.behind)


def decide_head(began: Checkpoint, longest: int, found: Sequence[HeadMessage] = ()) -> int | None:
    """Return the length of the head, or None if it is unknown.

    `found` contains the first messages of the queue, at most `longest` of them. It may be empty if no
    messages can have been requeued.
    """
    if longest <= began.kept:
        # There are fewer messages than expected, so others have taken or are holding some.
        is_short = bool(began.last_stays) and began.last in began.window
        return None if is_short else began.kept
    ends = list(_possible_ends(began, found))
    if began.last_stays:
        return ends[0] if len(ends) == 1 else None
    # The job has sent all messages. A single one in this place is the last one or a new equal one, so
    # it stays. More of them are either messages whose acks a killed broker has lost, or a batch of new
    # messages that equals them.
    return began.kept if not ends or ends == [began.kept + 1] else None


def _possible_ends(began: Checkpoint, head: Sequence[HeadMessage]) -> Iterator[int]:
    """Yield each possible length of a head that ends with the anchor.

    In addition to kept messages, the head contains either only messages of the window, or older
    messages followed by the whole window.
    """
    missing = Counter(began.window)
    unknown = 0
    for length, one in enumerate(head, 1):
        if missing[one.mark]:
            missing[one.mark] -= 1
        else:
            unknown += 1
        if not one.is_anchor or length < began.kept:
            continue
        if unknown <= began.kept or _has_window(began, head[:length]):
            yield length


def _has_window(began: Checkpoint, head: Sequence[HeadMessage]) -> bool:
    """Return whether the head ends with all messages of the window, mixed only with kept messages."""
    size = len(began.window)
    last = head[max(len(head) - size - began.kept, 0) :]
    return not Counter(began.window) - Counter(one.mark for one in last)
