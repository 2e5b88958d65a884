"""Run a job: take batches, save checkpoints, process messages and settle them.

The engine guarantees that no message is lost. A message only leaves its queue after its action has
succeeded, which for a re-drive means that the broker has confirmed the publish. If the process or
the broker is killed, only the messages in flight can be duplicated, because they were published but
not acked. In a classic queue, a broker that is killed can also lose acks of finished messages. The
job reports how many of these it has sent again.

Only one process runs a job at a time. It owns the *lease* of the job in the journal and renews it
(`runner`). If another process has taken the lease, LeaseLost is raised when the job is saved, and
the run ends.

A run of the engine consists of these steps (`Engine._work`):

1. Find the beginning of the selection (`cursor_driver`).
2. Take a batch of selected messages (`batch_reader`), which `browse.queue_messages` consumes.
3. Save a checkpoint with the marks of all held messages. None of them is sent before this.
4. Send the batch at the pace of the job, with up to `in_flight` messages in flight (`sender`). About
   once per second, counts and checkpoint are saved (`JobProgress.save_if_due`).
5. Ack each message after its action has succeeded. Settling is always the last step. `Sender._land`
   uses `CursorDriver.ack`, `QueueMessages.ack` and `ConsumerSeries.ack`. If an ack would fetch a
   message behind the selection, `ConsumerSeries` ends the consumer before it sends the ack.

If a re-drive has a *ramp*, its first messages are sent in stages. After each stage, the engine stops
sending and watches whether messages return to the dead-letter queue (`return_watch`). If too many
return, the job stops.

When a message fails, the engine waits for the messages in flight. It then retries the failed
messages one at a time with increasing pauses. If they still fail, the job ends. Messages are not
requeued individually. Instead, the connection is closed at the end, and the queue requeues all
unsettled messages in order.

The last message of a batch is not sent until the next checkpoint is saved. If the job is
interrupted, this message is used to find the rest of the selection (`cursor`). The reasons are in
docs/decisions/0011.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.errors import BrokerError, LeaseLost, StoreUnavailable
from hopback.ops.browse.turns import Turns
from hopback.ops.contract.values import JobState
from hopback.ops.jobs.actions import Action, LeftOut, Prepared
from hopback.ops.jobs.batch_reader import TURN_BYTES, BatchReader, SelectedMessage
from hopback.ops.jobs.control import EndJob, Pacer
from hopback.ops.jobs.cursor import CursorEvent, CursorState
from hopback.ops.jobs.job_progress import JobProgress
from hopback.ops.jobs.job_record import PROCESS_ENDED
from hopback.ops.jobs.publish_failure import is_away
from hopback.ops.jobs.return_watch import ReturnWatch
from hopback.ops.jobs.sender import Sender
from hopback.text import count_of

if TYPE_CHECKING:
    from hopback.broker.port import Connection
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.contract.requests import Settings
    from hopback.ops.jobs.cursor_driver import CursorDriver
    from hopback.ops.jobs.leased_job import LeasedJob

_log = logging.getLogger("hopback.ops")


class Engine:
    """A run of a job on one connection, from the first message to the last settlement."""

    def __init__(
        self,
        leased: LeasedJob,
        broker: ManagedBroker,
        snapshot: BrokerSnapshot,
        connection: Connection,
        driver: CursorDriver,
        action: Action,
        settings: Settings,
    ) -> None:
        """When the connection is closed, the queue requeues all unsettled messages in order."""
        self._leased = leased
        self._connection = connection
        self._driver = driver
        self._action = action
        self._per_turn = settings.per_turn
        self._progress = JobProgress(leased, driver)
        self._reader = BatchReader(leased.job, snapshot, driver, self._progress)
        self._sender = Sender(action, driver, leased.job.spec.pace, leased.watched)
        self._returns = ReturnWatch(leased, broker, snapshot, driver, self._progress)
        self._pacer = Pacer(leased.control)
        self._requeued: BrokerError | None = None
        """Why the broker has requeued the held messages during a pause. Another run takes them again."""
        self._has_others = False
        """Whether the queue contains messages at the end that this job has not seen."""

    async def run(self) -> BrokerError | None:
        """Run until the selection is finished or the job ends.

        If the broker becomes unavailable, the error is returned and the job is still active.
        """
        try:
            state, reason, away = await self._outcome()
            await self._connection.close()
            if away is not None:
                await self._progress.save()
            else:
                remarks = filter(None, (reason, self._leased.remark))
                await self._progress.enter(state, "; ".join(remarks))
            return away
        except LeaseLost as lost:
            self._leased.show(
                replace(self._leased.job, state=JobState.INTERRUPTED, state_reason=str(lost))
            )
            return None
        except asyncio.CancelledError:
            await self._progress.enter(JobState.INTERRUPTED, PROCESS_ENDED)
            raise

    async def _outcome(self) -> tuple[JobState, str, BrokerError | None]:
        """Do the work. Returns the next state, the reason, and the error if the broker became
        unavailable.
        """
        try:
            await self._work()
            return *self._completed(), None
        except EndJob as end:
            await self._end(is_final=end.state is JobState.CANCELLED)
            return end.state, str(end), None
        except BrokerError as lost:
            await self._sender.drain()
            is_passing = is_away(lost) or lost in (self._requeued, self._returns.requeued)
            return JobState.INTERRUPTED, str(lost), lost if is_passing else None
        except StoreUnavailable as failed:
            # The job can be resumed when the database is available again, because no message has
            # failed.
            await self._sender.drain()
            return JobState.INTERRUPTED, str(failed), None
        except LeaseLost:
            raise
        except Exception as fault:
            _log.exception("job %s failed with an internal error", self._leased.job.id)
            # ack the messages that were sent, because a resumed job would send them again
            await self._sender.drain()
            return JobState.FAILED, f"an unexpected error: {type(fault).__name__}: {fault}", None

    async def _work(self) -> None:
        if self._returns.stages:
            await self._returns.measure_arrivals()
        await self._find_selection()
        while not (self._driver.is_exhausted and not self._sender.failed):
            await self._may_continue()
            batch = await self._reader.take(self._sender)
            if batch:
                await self._save_checkpoint()
                await self._send(batch)
            await self._action.flush()
            if self._driver.is_exhausted:
                await self._sender.drain()
        self._sender.check()
        await self._ack_last()
        if self._returns.stages and self._sender.sent > self._leased.watched:
            await self._returns.watch(self._sender.sent)
        await self._finish(is_final=True)

    async def _find_selection(self) -> None:
        """Find the rest of the selection before messages are sent."""
        job, cursor, progress = self._leased.job, self._driver.cursor, self._progress
        if cursor.state is CursorState.FINDING:
            if job.run > 1:
                await progress.save()  # not in place until the cursor has found the selection
            await self._check_not_shared()
            await self._driver.begin(job.checkpoint, job.rate)
        if cursor.state is CursorState.STOPPED:
            reason = cursor.doubt or cursor.reason.format(queue=job.queue)
            raise EndJob(JobState.FAILED, reason)
        if job.run > 1:
            progress.restart(cursor.left)
            await progress.save()

    async def _save_checkpoint(self) -> None:
        """Save a checkpoint with the marks of all held messages. None of them is sent before this."""
        cursor = self._driver.cursor
        if self._driver.is_exhausted and cursor.sends_last_alone:
            # The last message is sent alone, after the acks of all others were applied. If this
            # message has left the queue, all others have too.
            await self._await_all_acks()
            cursor.handle(CursorEvent.LAST_ALONE)
            self._sender.holds_acks = True
        cursor.handle(CursorEvent.SENDING)
        await self._check_not_shared()
        self._driver.receive_delivered()
        await self._progress.save()

    async def _ack_last(self) -> None:
        """Save a checkpoint that records that the last message was sent, then ack it."""
        if self._sender.has_held_acks:
            self._driver.cursor.handle(CursorEvent.LAST_SENT)
            await self._progress.save()
            self._sender.ack_held()

    async def _await_all_acks(self) -> None:
        """Wait until no messages are in flight and all acks were applied."""
        await self._sender.drain()
        await self._may_continue()
        await self._driver.await_acks()

    async def _check_not_shared(self) -> None:
        """End the job if there is another consumer, because the first messages could not be counted."""
        if not self._driver.cursor.is_counting:
            return
        others = await self._driver.other_consumers()
        if others:
            self._driver.cursor.handle(CursorEvent.SHARED)
            raise EndJob(
                JobState.FAILED,
                f"{self._leased.job.queue!r} has {count_of(others, 'other consumer')}, so it is"
                " unknown which messages are the first ones; end it, then start a new job",
            )

    async def _send(self, batch: list[SelectedMessage]) -> None:
        """Send messages while others are still being confirmed, so that the broker does not have to
        wait.
        """
        sender, control = self._sender, self._leased.control
        await sender.wait_for_room()
        turns = Turns(TURN_BYTES)
        for message in batch:
            if turns.is_over(message.size):
                await asyncio.sleep(0)
            if (
                sender.is_full
                or sender.is_troubled
                or control.rate
                or control.is_interrupting
                or self._returns.stages
            ):
                await self._wait_for_turn()
            await self._start(message)
            if sender.sent % self._per_turn == 0:
                await asyncio.sleep(0)  # write queued messages and let other tasks run
                await sender.wait_for_room()

    async def _wait_for_turn(self) -> None:
        """Wait until the pace of the job allows another message."""
        sender, control = self._sender, self._leased.control
        if sender.is_troubled or control.is_interrupting:
            await self._may_continue()
        if self._returns.ends_stage(sender.sent):
            await sender.drain()
            await self._may_continue()
            await self._returns.watch(sender.sent)
        if control.rate:
            await self._pacer.turn()
            await self._may_continue()
        await sender.wait_for_room()

    async def _start(self, message: SelectedMessage) -> None:
        """Send a message, or leave it in the queue."""
        prepared: Prepared | LeftOut
        try:
            prepared = await self._action.prepare(message.delivery)
        except BrokerError:
            raise
        except Exception as fault:  # leave this message in the queue and continue the job
            _log.exception("job %s cannot rewrite a message", self._leased.job.id)
            prepared = LeftOut(f"it cannot be rewritten: {type(fault).__name__}: {fault}")
        if isinstance(prepared, LeftOut):
            if prepared.stops:
                raise EndJob(JobState.FAILED, prepared.reason)
            self._reader.leave(message, prepared.reason, is_skipped=prepared.is_skipped)
            return
        if self._returns.stages:
            self._returns.timer.see(message.delivery)
        self._sender.send(message, prepared)

    async def _check_held(self) -> None:
        """End this run if the broker has requeued the held messages during a long pause."""
        try:
            await self._driver.messages.check()
        except BrokerError as lost:
            self._requeued = lost
            raise

    async def _may_continue(self) -> None:
        """Retry failed messages. Then wait or end if an operator has requested it."""
        sender, control = self._sender, self._leased.control
        sender.check()
        if sender.failed:
            await self._send_failed()
        was_paused = control.is_paused
        if was_paused:
            await sender.drain()
        await self._progress.obey()
        if was_paused:
            await self._check_held()
        await self._progress.save_if_due()
        if self._returns.stages:
            await self._returns.look_if_due(sender.sent)

    async def _send_failed(self) -> None:
        """Retry the failed messages one at a time in order."""
        sender = self._sender
        await sender.drain()
        sender.check()
        sender.failed.sort(key=lambda message: message.delivery.tag)
        await self._action.reopen()
        while sender.failed:
            if reason := await sender.retry(sender.failed[0], self._leased.control):
                self._reader.leave(sender.failed[0], reason)
            del sender.failed[0]

    async def _end(self, *, is_final: bool) -> None:
        """Settle the messages in flight before the job ends."""
        await self._sender.drain()
        await self._ack_last()
        if self._driver.cursor.accepts(CursorEvent.DRAINED):
            self._driver.cursor.handle(CursorEvent.DRAINED)
        with suppress(BrokerError):  # a lost connection also requeues the unsettled messages
            await self._finish(is_final=is_final)

    async def _finish(self, *, is_final: bool) -> None:
        """Wait for all acks, and count new messages.

        If messages have to be requeued together with others to keep the order, these are also
        taken.
        """
        driver, counts = self._driver, self._progress.counts
        await driver.await_acks()
        # Sent messages need time to return. Unless the job has watched for them, their number is
        # unknown.
        ready = (await self._returns.look(had_time=False)).ready
        self._has_others = ready + driver.held - counts.skipped - counts.failed > 0
        if is_final and driver.held and not driver.cursor.is_in_place:
            await driver.messages.round_out()

    def _completed(self) -> tuple[JobState, str]:
        """Return the final state of a job that has processed its selection, and the reason."""
        queue, cursor, progress = self._leased.job.queue, self._driver.cursor, self._progress
        if why := cursor.why_incomplete(has_others=self._has_others):
            return JobState.FAILED, why.format(queue=queue)
        progress.add(done=cursor.moved_before)
        if cursor.doubt and progress.counts.arrived_meanwhile:
            return JobState.FAILED, cursor.doubt
        progress.set_counts(gone=cursor.gone)
        reasons, counts = [], progress.counts
        if cursor.was_sent and counts.arrived_meanwhile:
            reasons.append(
                f"the last message was sent, but {queue!r} may still have it: its ack may be lost"
            )
        if cursor.gone:
            reasons.append(f"{count_of(cursor.gone)} had left {queue!r} in another way")
        if counts.failed:
            reasons.append(f"{counts.failed:,} could not be moved and are still in {queue!r}")
        return JobState.COMPLETED, "; ".join(reasons)
