"""Choose the cursor of a run and its messages, by queue type, selection and checkpoint."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hopback.ops.brokers.consumers import job_tag
from hopback.ops.browse.queue_messages import QueueMessages
from hopback.ops.jobs.chosen_cursor import ChosenCursor
from hopback.ops.jobs.classic_cursor import ClassicCursor
from hopback.ops.jobs.classic_head import find_head
from hopback.ops.jobs.quorum_cursor import QuorumCursor

if TYPE_CHECKING:
    from hopback.broker.port import Channel
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.jobs.cursor import SelectionCursor
    from hopback.ops.jobs.job_record import JobRecord, JobSpec
    from hopback.ops.jobs.leased_job import LeasedJob

_REQUEUE_S = 2.0
"""How long a restarted quorum queue may take to requeue the messages of a lost consumer, in seconds. Messages
that are missing after that were taken by another consumer, or it still holds them: the job stops."""
_ASK_REQUEUED_S = 0.05
"""Seconds between two counts of such a queue."""
_REMEMBERED = 6
"""Acks whose marks are remembered, per message in flight: far more than a broker leaves unread."""
_PACED = 3
"""Messages that a job with a rate holds, per message in flight: the last ones must not wait for too long."""
_QUORUM = 8
"""The multiple for a quorum queue. Each checkpoint costs a save and a passive declare, so it contains the
marks of seven times as many messages as are in flight. A killed job requeues all of them."""
_CLASSIC = 20
"""The multiple for a long classic queue: as many as RabbitMQ moves in a second (benchmarks/ADMIN.md)."""
_AHEAD_OF = 20
"""At most one message in 20 of a selection is held: messages that are not held yet distinguish equal ones."""

_DOUBT = (
    "when the job resumed, {queue!r} had more messages than expected: new ones, or finished ones that a"
    " killed broker delivered again. Without the management API the job cannot decide whether messages of"
    " its selection are left. Browse the queue, then start a new job"
)


async def choose_cursor(
    broker: ManagedBroker, leased: LeasedJob, snapshot: BrokerSnapshot, *, is_handed_over: bool
) -> SelectionCursor:
    """Return the cursor of a run: the first run of a job, or one that finds the rest of the selection.

    `is_handed_over` is whether a browse session has handed over the messages. The messages of a classic queue
    are counted while the job is connected: as long as the connection is open, the broker was not killed
    again.
    """
    job, began, spec = leased.job, leased.job.checkpoint, leased.job.spec
    is_classic, is_resumed = snapshot.is_classic(job.queue), job.run > 1
    remembered = _REMEMBERED * spec.pace.in_flight
    if spec.chosen is not None:
        return ChosenCursor(
            began,
            spec.chosen.digests,
            count=spec.chosen.span,
            is_resumed=is_resumed,
            is_sought=not is_classic and not is_handed_over,
            is_in_place=is_classic,
        )
    if is_classic:
        head = await find_head(broker, leased, snapshot) if is_resumed else 0
        return ClassicCursor(leased.job.checkpoint, remembered, head=head)
    by_count, doubt = None, ""
    if is_resumed:
        ready = await _count_ready(broker, job)
        is_known = snapshot.effective(job.queue) is not None
        doubt = "" if is_known else _doubt(job, ready)
        if spec.behind is not None:
            by_count = ready - began.rest - spec.behind
    cursor = QuorumCursor(
        began,
        remembered,
        is_resumed=is_resumed,
        is_whole=spec.behind == 0,
        by_count=by_count,
        prefetch=choose_prefetch(spec, is_classic=False, is_paced=bool(job.rate)),
    )
    cursor.doubt = doubt
    return cursor


async def _count_ready(broker: ManagedBroker, job: JobRecord) -> int:
    """Count the messages of a quorum queue when it has requeued those of an earlier run.

    After a restart RabbitMQ first reports an empty queue, then one with the lost consumer, and then the
    requeued messages (0.1 to 0.5 s later, 3.10).
    """
    began, behind = job.checkpoint, job.spec.behind or 0
    least = began.kept + began.rest + behind + began.last_stays
    until = asyncio.get_running_loop().time() + _REQUEUE_S
    while True:
        ready, consumers = await broker.count_ready(job.queue)
        is_complete = ready >= least and not consumers
        if is_complete or asyncio.get_running_loop().time() >= until:
            return ready
        await asyncio.sleep(_ASK_REQUEUED_S)


def _doubt(job: JobRecord, ready: int) -> str:
    """Return the doubt about a queue of unknown type: it may have forgotten acks."""
    checkpoint, behind = job.checkpoint, job.spec.behind or 0
    expected = checkpoint.kept + len(checkpoint.window) + checkpoint.rest + behind
    return _DOUBT.format(queue=job.queue) if ready > expected else ""


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


def queue_messages(
    job: JobRecord, snapshot: BrokerSnapshot, channel: Channel, cursor: SelectionCursor, store: str
) -> QueueMessages:
    """Return as many messages of the queue as the cursor can need."""
    is_classic = snapshot.is_classic(job.queue)
    return QueueMessages(
        channel,
        job.queue,
        cursor.count,
        choose_prefetch(job.spec, is_classic=is_classic, is_paced=bool(job.rate)),
        is_quorum=None if snapshot.effective(job.queue) is None else not is_classic,
        tag=job_tag(store, job.id),
        first=cursor.first_prefetch,
    )
