"""Bring an interrupted job back to its place: wait for the broker, then find the rest of the selection.

A job is resumed after a lost connection, a killed process or a failure. Its unsettled messages return to the
queue when the broker has closed the connection that held them.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from hopback.broker.supervise import Backoff
from hopback.errors import HopbackError, UnsafeOperation
from hopback.ops.brokers.consumers import (
    LOOK_TAG,
    browse_connection_name,
    job_connection_name,
    look_connection_name,
)
from hopback.ops.contract.values import JobState
from hopback.ops.jobs.chosen_cursor import ChosenCursor
from hopback.ops.jobs.classic_cursor import ClassicCursor, find_head, head_limits
from hopback.ops.jobs.cursor_driver import read_head
from hopback.ops.jobs.job_run import EndJob
from hopback.ops.jobs.publish_failure import is_away
from hopback.ops.jobs.quorum_cursor import QuorumCursor
from hopback.ops.jobs.read_ahead import choose_prefetch
from hopback.topology.durations import format_duration

if TYPE_CHECKING:
    from hopback.clock import Clock
    from hopback.errors import BrokerError
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.jobs.cursor_driver import Cursor
    from hopback.ops.jobs.job_run import JobRun
    from hopback.ops.jobs.journal import JobRecord
    from hopback.ops.jobs.plan import Planner

_RECONNECT = Backoff(first=0.5, most=15.0)
"""Seconds between two attempts to reach a broker that is away."""
_HOLDERS_S = 300.0
"""How long a resumed job waits for stale connections, in seconds. RabbitMQ closes them after 180 s."""
_ASK_HOLDERS_S = 1.0
"""Seconds between two questions for stale connections."""
_REQUEUE_S = 2.0
"""How long a restarted quorum queue may take to requeue the messages of a lost consumer, in seconds. Messages
that are missing after that were taken by another consumer, or it still holds them: the job stops."""
_ASK_REQUEUED_S = 0.05
"""Seconds between two counts of such a queue."""
_REMEMBERED_WINDOWS = 6
"""Windows of acks whose marks are remembered: far more than a broker leaves unread."""

_DOUBT = (
    "when the job went on, {queue!r} had more messages than expected: new ones, or done ones that a killed"
    " broker handed out again. Nobody can tell whether some of the selection are left, as the queue's type is"
    " not known without a management address: look at what is there, then start a new job"
)


def next_run(job: JobRecord) -> JobRecord:
    """Return the job as its next run begins: with the counts of the messages that are certainly finished."""
    checkpoint, counts = job.checkpoint, job.counts
    if job.spec.selection.digests is not None:
        counts = structs.replace(counts, done=0, skipped=0, failed=0, returned=0)
    elif checkpoint.kept or checkpoint.rest:
        certain = (
            counts.selected
            - checkpoint.kept
            - len(checkpoint.window)
            - checkpoint.rest
            - checkpoint.unsure
        )
        counts = structs.replace(counts, done=max(certain, 0), skipped=0, failed=0, returned=0)
    else:
        certain = (
            counts.selected
            - counts.skipped
            - counts.failed
            - len(checkpoint.window)
            - checkpoint.unsure
        )
        counts = structs.replace(counts, done=max(certain, 0), returned=0)
    return replace(job, run=job.run + 1, certain=counts)


class Recovery:
    """Prepares each run of a job, the first one as well."""

    def __init__(
        self, broker: ManagedBroker, planner: Planner, clock: Clock, patience_s: float
    ) -> None:
        """`patience_s` is how long a job waits for a broker that is away, in seconds."""
        self._broker = broker
        self._planner = planner
        self._clock = clock
        self._patience_s = patience_s

    async def wait_for_broker(self, run: JobRun, away: BrokerError) -> BrokerSnapshot:
        """Wait until the broker answers, and begin the next run of the job.

        The job keeps its lease: no other job begins on the queue. HopbackError if the broker stays away or
        refuses the connection. EndJob if the job is cancelled.
        """
        patience = format_duration(round(self._patience_s * 1000))
        reason = f"waiting for the broker, up to {patience}: {away}"
        await self._write_reason(run, reason)
        until = asyncio.get_running_loop().time() + self._patience_s
        for failures in itertools.count(1):
            await run.control.sleep(_RECONNECT.delay(failures, random.random()))
            if run.control.is_paused and not run.control.is_cancelled:
                await self._write_reason(run, reason, JobState.PAUSED)
                await run.control.wait()
                await self._write_reason(run, reason, JobState.RUNNING)
            if run.control.is_cancelled:
                raise EndJob(JobState.CANCELLED, "cancelled")
            try:
                snapshot = await self._planner.snapshot_for(run.job.spec)
            except HopbackError as failed:
                if not is_away(failed) or asyncio.get_running_loop().time() >= until:
                    raise
            else:
                break
        run.tell(next_run(run.job))
        await self._write_reason(run, "")
        return snapshot

    async def wait_for_holders(self, run: JobRun) -> None:
        """Wait until no connection of an earlier run holds messages: the job would take them for finished.

        The host of the earlier run may have died: the broker keeps its connection until heartbeats are
        missing. UnsafeOperation if that takes too long. EndJob if the job is cancelled.
        """
        if run.job.run == 1:
            return
        until = asyncio.get_running_loop().time() + _HOLDERS_S
        reason = ""
        while holder := await self._holder(run.job):
            reason = f"waiting until {holder} has ended: what it holds could be taken for done"
            if asyncio.get_running_loop().time() >= until:
                raise UnsafeOperation(
                    f"{holder} may hold messages of {run.job.queue!r}, which could be taken for done:"
                    " end it, then resume the job"
                )
            if run.job.reason != reason:
                await self._write_reason(run, reason)
            await run.control.sleep(_ASK_HOLDERS_S)
            if run.control.is_cancelled:
                raise EndJob(JobState.CANCELLED, "cancelled")
        if reason:
            await self._write_reason(run, "")

    async def _holder(self, job: JobRecord) -> str:
        """Name a connection that may hold messages of the job. Empty if there is none."""
        names = await self._broker.connection_names()
        if names is None:
            count = (await self._planner.snapshot_for(job.spec)).consumers
            return f"the consumer of {job.queue!r}" if count else ""
        ours = (
            job_connection_name(job.id, job.queue),
            browse_connection_name(job.queue),
            look_connection_name(job.queue),
        )
        found = next((f"the connection {name!r}" for name in ours if name in names), "")
        # A dry run of another process reads on a connection with another name.
        consumers = () if found else await self._broker.consumers_of(job.queue)
        looks = any(each.tag.startswith(LOOK_TAG) for each in consumers)
        return f"a look at {job.queue!r}" if looks else found

    async def _write_reason(self, run: JobRun, reason: str, state: JobState | None = None) -> None:
        """Record why an active job waits. Empty when it continues."""
        now = self._clock.now()
        job = run.job if state is None else run.job.to(state, now)
        await run.write(replace(job, reason=reason, updated=now, changes=job.changes + 1))

    async def find_cursor(self, run: JobRun, snapshot: BrokerSnapshot, *, is_held: bool) -> Cursor:
        """Return the cursor that finds the rest of the selection.

        `is_held` is whether a browse session hands over the messages. The messages of a classic queue are
        counted while the job is connected: as long as the connection is open, the broker was not killed
        again.
        """
        job, began, selection = run.job, run.job.checkpoint, run.job.spec.selection
        is_classic, is_resumed = snapshot.is_classic(job.queue), job.run > 1
        remembered = _REMEMBERED_WINDOWS * job.spec.pace.in_flight
        if selection.digests is not None:
            is_sought = not is_classic and not is_held
            return ChosenCursor(
                began, selection.digests, is_resumed=is_resumed, is_sought=is_sought
            )
        if is_classic:
            head = await self._find_head(run, snapshot) if is_resumed else 0
            return ClassicCursor(began, remembered, head=head)
        by_count = None
        if is_resumed:
            ready = await self._count_ready(job)
            is_known = snapshot.effective(job.queue) is not None
            run.doubt = "" if is_known else self._doubt(job, ready)
            if selection.behind is not None:
                by_count = ready - began.rest - selection.behind
        return QuorumCursor(
            began,
            remembered,
            is_resumed=is_resumed,
            is_whole=selection.behind == 0,
            by_count=by_count,
            prefetch=choose_prefetch(job.spec, is_classic=False, is_paced=bool(job.rate)),
        )

    async def _count_ready(self, job: JobRecord) -> int:
        """Count the messages of a quorum queue when it has requeued those of an earlier run.

        After a restart RabbitMQ first reports an empty queue, then one with the lost consumer, and then the
        requeued messages (0.1 to 0.5 s later, 3.10).
        """
        began, behind = job.checkpoint, job.spec.selection.behind or 0
        least = began.kept + began.rest + behind + began.last_stays
        until = asyncio.get_running_loop().time() + _REQUEUE_S
        while True:
            found = await self._planner.snapshot_for(job.spec)
            is_complete = found.ready >= least and not found.consumers
            if is_complete or asyncio.get_running_loop().time() >= until:
                return found.ready
            await asyncio.sleep(_ASK_REQUEUED_S)

    def _doubt(self, job: JobRecord, ready: int) -> str:
        """Return the doubt about a queue of unknown type: it may have forgotten acks."""
        checkpoint, behind = job.checkpoint, job.spec.selection.behind or 0
        expected = checkpoint.kept + len(checkpoint.window) + checkpoint.rest + behind
        return _DOUBT.format(queue=job.queue) if ready > expected else ""

    async def _find_head(self, run: JobRun, snapshot: BrokerSnapshot) -> int | None:
        """Return the number of messages before the rest of the job in a classic queue, None if it is unknown.

        The job takes these messages again.
        """
        job, began = run.job, run.job.checkpoint
        run.doubt = ""
        limits = head_limits(job, (await self._planner.snapshot_for(job.spec)).ready)
        if limits.most <= began.kept:
            head = find_head(began, limits)
        else:
            if began.has_twins:
                await run.write(replace(job, checkpoint=replace(began, rest_is_untouched=False)))
            head = await read_head(self._broker.broker, job, limits, snapshot.cost(job.queue))
        if head is not None:
            run.sent_again += max(head - began.kept - len(began.window), 0)
            if (again := run.sent_again) > 0:
                run.remark = (
                    f"{again:,} went again: the broker was killed and had forgotten their acks"
                )
            counts = job.certain or job.counts
            done = max(counts.selected - head - began.rest, 0)
            certain = structs.replace(counts, done=done, skipped=0, failed=0)
            run.tell(replace(run.job, certain=certain))
        return head
