"""Choose the cursor and the messages of a run, depending on queue type, selection and checkpoint."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hopback.ops.browse.queue_messages import QueueMessages
from hopback.ops.jobs.chosen_cursor import ChosenCursor
from hopback.ops.jobs.classic_cursor import ClassicCursor
from hopback.ops.jobs.classic_head import find_head
from hopback.ops.jobs.cursor_driver import CursorDriver
from hopback.ops.jobs.quorum_cursor import QuorumCursor

if TYPE_CHECKING:
    from hopback.broker.port import Connection
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.jobs.cursor import SelectionCursor
    from hopback.ops.jobs.job_record import JobRecord, JobSpec
    from hopback.ops.jobs.leased_job import LeasedJob

_REQUEUE_S = 2.0
"""Seconds. After a restart, a quorum queue needs up to this time to requeue the messages of a lost
consumer. If messages are still missing, another consumer has taken or is holding them, and the job
stops.
"""
_ASK_REQUEUED_S = 0.05
"""Seconds between two counts of such a queue."""
_REMEMBERED = 6
"""Number of acks whose marks are remembered, as a multiple of `in_flight`. A broker has far fewer
unprocessed acks.
"""
_PACED = 3
"""Number of messages held by a job with a rate, as a multiple of `in_flight`. It is low, because
the last ones must not be held for too long.
"""
_QUORUM = 8
"""The same for quorum queues. A checkpoint requires a write and a passive declare, so it covers
seven times as many messages as are in flight. If the job is killed, all of them are requeued.
"""
_CLASSIC = 20
"""The same for long classic queues. RabbitMQ moves this many messages per second (benchmarks/ADMIN.md)."""
_AHEAD_OF = 20
"""A job holds at most one of 20 selected messages. The fewer it holds, the fewer of them are equal."""

_DOUBT = (
    "when the job resumed, {queue!r} had more messages than expected: new ones, or finished ones that a"
    " killed broker delivered again. Without the management API the job cannot decide whether messages of"
    " its selection are left. Browse the queue, then start a new job"
)


async def open_driver(
    broker: ManagedBroker,
    leased: LeasedJob,
    snapshot: BrokerSnapshot,
    connection: Connection,
    handed: QueueMessages | None,
) -> CursorDriver:
    """Create the driver of a run. It takes as many messages as its cursor may need.

    `handed` are messages that a browse session has handed over on this connection. The messages of
    a classic queue are counted after the connection was opened. As long as the connection is open,
    the broker cannot have been killed again.
    """
    job, is_classic = leased.job, snapshot.is_classic(leased.job.queue)
    is_type_known = snapshot.effective(job.queue) is not None
    prefetch = choose_prefetch(job.spec, is_classic=is_classic, is_paced=bool(job.rate))
    cursor: SelectionCursor
    if job.spec.chosen is not None:
        is_sought = not is_classic and handed is None
        cursor = ChosenCursor(
            job.checkpoint,
            job.spec.chosen.digests,
            count=job.spec.chosen.span,
            is_resumed=job.run > 1,
            is_sought=is_sought,
            is_in_place=is_classic,
        )
    elif is_classic:
        head = await find_head(broker, leased, snapshot) if job.run > 1 else 0
        cursor = ClassicCursor(leased.job.checkpoint, _marks_to_remember(job.spec), head=head)
    else:
        cursor = await _quorum_cursor(broker, job, prefetch, is_type_known=is_type_known)
    messages = handed
    if messages is None:
        messages = QueueMessages(
            await connection.open_channel(),
            job.queue,
            cursor.count,
            prefetch,
            is_quorum=not is_classic if is_type_known else None,
            tag=await leased.consumer_tag(),
            first=cursor.first_prefetch,
        )
    return CursorDriver(messages, cursor)


def _marks_to_remember(spec: JobSpec) -> int:
    return _REMEMBERED * spec.pace.in_flight


async def _quorum_cursor(
    broker: ManagedBroker, job: JobRecord, prefetch: int, *, is_type_known: bool
) -> QuorumCursor:
    by_count, doubt, spec = None, "", job.spec
    if job.run > 1:
        ready = await _count_ready(broker, job)
        doubt = "" if is_type_known else _doubt(job, ready)
        if spec.behind is not None:
            by_count = ready - job.checkpoint.rest - spec.behind
    cursor = QuorumCursor(
        job.checkpoint,
        _marks_to_remember(spec),
        is_resumed=job.run > 1,
        is_whole=spec.behind == 0,
        by_count=by_count,
        prefetch=prefetch,
    )
    cursor.doubt = doubt
    return cursor


async def _count_ready(broker: ManagedBroker, job: JobRecord) -> int:
    """Count the messages of a quorum queue after it has requeued those of an earlier run.

    After a restart, RabbitMQ first reports an empty queue, then the lost consumer, and after 0.1 to
    0.5 s the requeued messages (version 3.10).
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
    """If the type of the queue is unknown, return why it may have forgotten acks."""
    checkpoint, behind = job.checkpoint, job.spec.behind or 0
    expected = checkpoint.kept + len(checkpoint.window) + checkpoint.rest + behind
    return _DOUBT.format(queue=job.queue) if ready > expected else ""


def choose_prefetch(spec: JobSpec, *, is_classic: bool, is_paced: bool) -> int:
    """Return how many messages a job holds at a time.

    While RabbitMQ collects the garbage of a classic queue, the queue does not deliver messages.
    This takes 0.2 s for 150,000 messages, and longer for more. During this time, the job continues
    with the messages it holds. Requeueing the others is cheap in a classic queue. If a job has a
    rate, it only holds a few messages, because the broker's timeout would requeue the last ones
    before they are sent.
    """
    in_flight = spec.pace.in_flight
    if is_paced:
        return _PACED * in_flight
    if not is_classic:
        return _QUORUM * in_flight
    ahead = min(spec.span // _AHEAD_OF, _CLASSIC * in_flight)
    return max(ahead, _PACED * in_flight)
