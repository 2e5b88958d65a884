"""The engine of a job: take, decide, write down, act, and ack only what has ended well.

Messages are taken in order and in batches; before a batch is sent, its marks are written down. Each is
made ready just before it goes, and up to the window are in flight. A failure stops the flow: what is in
flight comes to its end, then what failed is tried again, one at a time with growing pauses, and when that
does not help the job stops. Nothing is ever given back one by one: the caller that started the job closes the
channel, once, and everything unsettled returns to its place in the queue.

The last message of a batch is held back until the next checkpoint is saved: a killed job finds the rest
of its selection by it (`cursor`).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from hopback.broker.limits import spent
from hopback.errors import BrokerError, HopbackError, LeaseLost, StoreUnavailable
from hopback.headers import timestamp
from hopback.ops.browse.memory import estimate_memory
from hopback.ops.browse.turns import Turns
from hopback.ops.contract.requests import JobKind
from hopback.ops.contract.values import FailedMessage, JobState, Moment
from hopback.ops.jobs.actions import LeftOut
from hopback.ops.jobs.chosen_cursor import ChosenCursor
from hopback.ops.jobs.classic_cursor import ClassicCursor
from hopback.ops.jobs.cursor import CursorEvent, CursorState
from hopback.ops.jobs.cursor_driver import SelectedMessage
from hopback.ops.jobs.journal import PROCESS_ENDED
from hopback.ops.jobs.pace import Pacer
from hopback.ops.jobs.publish_failure import AfterFailure, after_failure, may_pass
from hopback.ops.jobs.quorum_cursor import QuorumCursor
from hopback.ops.jobs.return_watch import MEASURE_S, StopRule, counted_messages
from hopback.ops.messages.dead_letter import delivery_count, read_dead_letter
from hopback.ops.messages.filters import EVERYTHING, parse_filter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from hopback.clock import Clock
    from hopback.message import Delivery
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.browse.source import Source
    from hopback.ops.contract.values import Counts
    from hopback.ops.jobs.actions import Action
    from hopback.ops.jobs.cursor_driver import Taking
    from hopback.ops.jobs.job_run import JobRun
    from hopback.ops.jobs.journal import JobRecord
    from hopback.ops.jobs.return_watch import Arrivals, Watch


_log = logging.getLogger("hopback.ops")

_PROGRESS_S = 1.0
"""Progress is written down once a second: as often as anybody looks, and no load for a database."""
_BATCH = 10_000
"""So many marks are written down at once, if so many are at hand: each time costs some milliseconds."""
_SMALL_BATCH = 250
"""Below this more messages are waited for, since writing down the marks costs the same for a few."""
_TURN_BYTES = 1024 * 1024
"""After so much others run: twice as much as where messages are read, since these are mostly copied."""
_GATHER_S = 0.005
"""So long they are waited for: about what writing down the marks takes."""
_BUSY = 4
"""As long as one part in so many of the window is in flight, the broker has work: waiting costs nothing."""
_LOOKS = 10
"""How often a queue is looked at during one watch: what comes back at once ends it early."""
_ANEW_AFTER = 3
"""A channel that keeps refusing may be the cause itself (RabbitMQ ≤ 3.12.0): then another is opened."""


class _Stopped(Exception):
    """The job cannot go on, for the reason given."""


class _CameBack(Exception):
    """What the job had sent is dead again, so it stops before more of it is."""


class _CancelAsked(Exception):
    """Somebody wants it to end."""


class Engine:
    """One run of a job, from its messages taken to the last one settled."""

    def __init__(
        self,
        run: JobRun,
        snapshot: BrokerSnapshot,
        source: Source,
        taking: Taking,
        action: Action,
        watch: Watch,
        *,
        let_go: Callable[[], Awaitable[object]],
        clock: Clock,
        per_turn: int,
    ) -> None:
        """`let_go` gives back, in order, what is unsettled; `per_turn` messages are sent, then others run."""
        spec = run.job.spec
        self._run = run
        self._control = run.control
        self._pace = spec.pace
        self._queue = snapshot.one(spec.queue)
        self._limit = None if spec.forced else snapshot.cost(spec.queue).limit
        self._is_classic = snapshot.is_classic(spec.queue)
        self._wanted = EVERYTHING
        if spec.selection.digests is None:
            self._wanted = parse_filter(spec.selection.filter)
        self._source = source
        self._taking = taking
        self._cursor = taking.cursor
        self._action = action
        self._watch = watch
        self._let_go = let_go
        self._clock = clock
        self._per_turn = per_turn
        self._counts = run.job.certain or run.job.counts
        self._shown = run.job.counts
        """What people were told before: no count goes back behind it."""
        self._arrived_before = run.job.counts.arrived_meanwhile
        self._pacer = Pacer(run.control)
        self._stages = spec.pace.stage_ends()
        self._is_careful = bool(spec.pace.ramp) and spec.kind is JobKind.REDRIVE
        self._rule = StopRule(spec.pace.max_returned)
        self._sends_since = self._looked_at = 0.0
        self._arrived_first = 0
        """Arrivals of this run before it sent its first message."""
        self._in_flight: set[int] = set()
        self._troubled: list[SelectedMessage] = []
        self._holds_back = spec.selection.digests is None
        self._held_back: list[SelectedMessage] = []
        self._notes: list[FailedMessage] = []
        self._lost: BrokerError | None = None
        self.away: BrokerError | None = None
        """How the broker went away while the job ran; the job is still active then."""
        self._landed = asyncio.Event()
        self._exhausted = False
        # A next run does not begin with the first stage again.
        self._sent = self._stage_began = run.watched
        self._acked = 0
        self._taken_back: BrokerError | None = None
        """Why what was held went back during a watch."""
        self._place = 0
        self._has_others = False
        """Whether the queue has messages that this job did not decide on, at its end."""
        self._told = clock.now()

    async def run(self) -> None:
        """Work until the selection is through, or something ends it; never raises a broker's fault."""
        try:
            state, reason = await self._outcome()
            reason = "; ".join(filter(None, (reason, self._run.remark)))
            await self._let_go()
            if self.away is not None:
                await self._save()
            else:
                await self._record(state, reason)
        except LeaseLost as lost:
            self._run.tell(replace(self._run.job, state=JobState.INTERRUPTED, reason=str(lost)))
        except asyncio.CancelledError:
            await self._record(JobState.INTERRUPTED, PROCESS_ENDED)
            raise

    async def _outcome(self) -> tuple[JobState, str]:
        try:
            await self._work()
        except _CancelAsked:
            await self._wind_up(for_good=True)
            return JobState.CANCELLED, "cancelled"
        except _Stopped as stopped:
            await self._wind_up(for_good=False)
            return JobState.FAILED, str(stopped)
        except _CameBack as found:
            await self._wind_up(for_good=False)
            return JobState.STOPPED, str(found)
        except BrokerError as lost:
            await self._drain()
            self.away = lost if may_pass(lost) or lost is self._taken_back else None
            return JobState.INTERRUPTED, str(lost)
        except StoreUnavailable as away:
            # Nothing is wrong with the messages: it can be resumed once the database is back.
            await self._drain()
            return JobState.INTERRUPTED, str(away)
        except LeaseLost:
            raise
        except Exception as fault:
            _log.exception("job %s met a fault of ours", self._run.job.id)
            await self._drain()  # sent messages are acked, or a resumed job would send them again
            return JobState.FAILED, f"an unexpected fault: {type(fault).__name__}: {fault}"
        if isinstance(self._cursor, ChosenCursor):
            if self._cursor.unsought:
                return JobState.FAILED, (
                    f"{counted_messages(self._cursor.unsought)} that were requeued when the job was"
                    f" interrupted may be too far behind in {self._queue.name!r} to be found; start a new job"
                )
            self._count(done=self._cursor.moved_before)
        elif isinstance(self._cursor, QuorumCursor) and self._cursor.unsure and self._has_others:
            return JobState.FAILED, (
                f"the job was interrupted, and up to {counted_messages(self._cursor.unsure)} of its"
                f" selection may be left in {self._queue.name!r} among newer ones; start a new job"
            )
        if self._run.doubt and self._counts.arrived_meanwhile:
            return JobState.FAILED, self._run.doubt
        gone = self._cursor.gone
        self._counts = structs.replace(self._counts, gone=gone)
        failed, came_back = self._counts.failed, self._counts.came_back
        least = "at least " if self._counts.came_back_at_least else ""
        left = [
            f"{counted_messages(gone)} had left {self._queue.name!r} by another way"
            if gone
            else "",
            f"{failed:,} could not be moved and are still in {self._queue.name!r}"
            if failed
            else "",
            f"{least}{counted_messages(came_back)} came back"
            if self._is_careful and came_back
            else "",
        ]
        return JobState.COMPLETED, "; ".join(filter(None, left))

    async def _wind_up(self, *, for_good: bool) -> None:
        """See every ack read; a connection that ends now gives back what it held, as it would anyway."""
        await self._drain()
        if self._cursor.accepts(CursorEvent.DRAINED):
            self._cursor.handle(CursorEvent.DRAINED)
        try:
            await self._finish(for_good=for_good)
        except BrokerError as lost:
            self._lost = lost

    async def _work(self) -> None:
        if self._is_careful:
            await self._measure_arrivals()
        await self._find_selection()
        while not (self._exhausted and not self._troubled):
            await self._may_go_on()
            batch = await self._take_batch()
            if batch:
                await self._write_marks()
                await self._send_all(batch)
            await self._action.flush()
            if self._exhausted:
                await self._drain()
        self._check()
        if self._is_careful and self._sent > self._stage_began:
            await self._watch_end()
        await self._finish(for_good=True)

    async def _find_selection(self) -> None:
        """Find the beginning of the rest of the selection before any message is sent."""
        job, cursor = self._run.job, self._cursor
        if cursor.state is CursorState.FINDING:
            if job.run > 1:
                await self._save()  # not in place until the cursor has found the selection
            await self._stop_if_shared()
            await self._taking.begin(job.checkpoint)
        if cursor.state is CursorState.STOPPED:
            raise _Stopped(self._run.doubt or cursor.reason.format(queue=self._queue.name))
        if job.run > 1 and isinstance(cursor, QuorumCursor):
            done = max(self._counts.selected - cursor.head - job.checkpoint.rest - cursor.unsure, 0)
            self._counts = structs.replace(self._counts, done=done, skipped=0, failed=0)
            await self._save()
        elif isinstance(cursor, ClassicCursor) and cursor.has_twins:
            await self._save()

    async def _stop_if_shared(self) -> None:
        """Stop if another consumer takes messages: the first messages of the queue could not be counted."""
        if self._run.job.spec.selection.digests is not None:
            return
        others = await self._taking.other_consumers()
        if others:
            self._cursor.handle(CursorEvent.SHARED)
            raise _Stopped(
                f"{self._queue.name!r} has {others} other consumer{'s' if others > 1 else ''}, so it is"
                " unknown which messages are the first ones; end it, then start a new job"
            )

    async def _write_marks(self) -> None:
        """Save the marks of all messages that the job holds, before any of them is sent."""
        cursor = self._cursor
        if self._exhausted and self._holds_back and cursor.sends_last_alone:
            # The last message goes alone, after the acks of all others: if it is gone, all are.
            await self._drain()
            await self._may_go_on()
            await self._taking.settle()
            cursor.handle(CursorEvent.LAST_ALONE)
        cursor.handle(CursorEvent.SENDING)
        await self._stop_if_shared()
        if not (isinstance(cursor, ClassicCursor) and cursor.has_twins):
            await self._save()
        if isinstance(cursor, ClassicCursor) and cursor.has_twins:
            # Perhaps only now. None of these messages was sent.
            await self._source.pause()
            cursor.handle(CursorEvent.PAUSE)
            await self._save()

    async def _finish(self, *, for_good: bool) -> None:
        """Wait for every ack, count new messages, and hold messages that must be requeued together to
        keep the order."""
        await self._taking.settle()
        # What comes back needs time: unless that was waited for, finding none says nothing.
        ready = (await self._look(counts=False)).ready
        unsettled = self._source.given - self._acked - self._counts.skipped - self._counts.failed
        self._has_others = ready + unsettled > 0
        is_in_place = isinstance(self._cursor, QuorumCursor) and self._cursor.is_in_place
        if (
            for_good
            and self._source.given > self._acked
            and not self._is_classic
            and not is_in_place
        ):
            await self._source.round_out()

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost

    async def _may_go_on(self) -> None:
        """Try again what failed, then see whether somebody wants us to wait or to end."""
        self._check()
        if self._troubled:
            # Try again what failed, one at a time, in order.
            await self._drain()
            self._check()
            self._troubled.sort(key=lambda item: item.delivery.tag)
            await self._action.reopen()
            while self._troubled:
                await self._send_again(self._troubled[0])
                del self._troubled[0]
        await self._obey()
        # Write the progress down now and then.
        if self._clock.now() - self._told >= _PROGRESS_S:
            await self._save()
        if self._is_careful:
            await self._watch_rest()

    async def _obey(self) -> None:
        """Wait or end if somebody wants us to."""
        control = self._control
        if control.is_paused and not control.is_cancelled:
            await self._drain()
            await self._record(JobState.PAUSED, "paused")
            while not await control.stays_at(self._run.job.rate):
                await self._save()  # whoever has set another one sees that it holds
            if not control.is_cancelled:
                await self._record(JobState.RUNNING, "")
        if control.is_cancelled:
            raise _CancelAsked

    async def _take_batch(self) -> list[SelectedMessage]:
        """What is at hand and wanted; waits for the first one, and for more if there are but a few.

        A client that is faster than the broker finds few messages at hand each time, and would spend more on
        writing down their marks than on the messages. It gathers while the broker still works on others.
        """
        wanted, self._held_back = self._held_back, []
        first = None if self._exhausted else await self._take_next()
        if first is not None:
            self._take(first, estimate_memory(first), wanted)
            taken = 1 + await self._take_at_hand(wanted, _BATCH - 1)
            more = taken
            while more and taken < _SMALL_BATCH:
                await asyncio.sleep(_GATHER_S)
                more = await self._take_at_hand(wanted, _BATCH - taken)
                taken += more
                if len(self._in_flight) * _BUSY < self._pace.in_flight:
                    break
            if self._holds_back and wanted:
                self._held_back.append(wanted.pop())
        return wanted

    async def _take_at_hand(self, wanted: list[SelectedMessage], most: int) -> int:
        taken, turns = 0, Turns(_TURN_BYTES)
        while taken < most and (delivery := self._taking.at_hand()) is not None:
            size = estimate_memory(delivery)
            self._take(delivery, size, wanted)
            taken += 1
            if turns.is_over(size):
                await asyncio.sleep(0)
        return taken

    def _take(self, delivery: Delivery, size: int, wanted: list[SelectedMessage]) -> None:
        self._place += 1
        belongs = matches = self._cursor.belongs(delivery)
        if belongs and self._wanted.terms:
            dead_letter = read_dead_letter(delivery, self._place, self._queue)
            matches = self._wanted.matches(dead_letter, delivery, self._run.job.created)
        if matches:
            wanted.append(SelectedMessage(delivery, self._place, size, self._on_fate))
        else:
            self._keep(delivery)
            self._count(skipped=int(belongs))

    async def _take_next(self) -> Delivery | None:
        """The next message, or None at the end of the selection; nothing waits unsent meanwhile."""
        delivery = self._taking.at_hand()
        if delivery is None and self._cursor.state is CursorState.PAUSED:
            await self._drain()
            await self._may_go_on()
            await self._taking.settle()
            self._cursor.handle(CursorEvent.CONTINUE)
            await self._save()
        while delivery is None and (delivery := await self._taking.next()) is None:
            if not self._taking.seek():
                break
            await self._save()
        self._exhausted = delivery is None
        return delivery

    def _keep(self, delivery: Delivery) -> None:
        self._taking.keep(delivery.tag)
        if self._limit is not None and spent(delivery_count(delivery), self._limit):
            raise _Stopped(
                f"a message that stays has come back {delivery_count(delivery)} times, and"
                f" {self._queue.name!r} removes it after {self._limit}: lift the limit first"
            )

    async def _send_all(self, batch: list[SelectedMessage]) -> None:
        """Send one after the other as the window has room, so that the broker never waits for us."""
        await self._room()
        turns = Turns(_TURN_BYTES)
        for item in batch:
            if turns.is_over(item.size):
                await asyncio.sleep(0)
            if (
                len(self._in_flight) >= self._pace.in_flight
                or self._troubled
                or self._lost is not None
                or self._control.rate
                or self._control.is_calling
                or self._stages
            ):
                # There may be something to wait for; room on the channel is seen to now and then.
                await self._ready()
            if not self._start(item):
                await self._action.explore(item.delivery)
                self._start(item)
            if self._sent % self._per_turn == 0:
                await asyncio.sleep(0)  # what was queued is written, and others may run
                await self._room()

    async def _ready(self) -> None:
        """Return when the window has room and it is our turn."""
        if self._troubled or self._lost is not None or self._control.is_calling:
            await self._may_go_on()
        if self._sent in self._stages and self._sent != self._stage_began:
            await self._watch_stage()
        if self._control.rate:
            await self._pacer.turn()
            await self._may_go_on()
        while len(self._in_flight) >= self._pace.in_flight:
            await self._wait_for_fate()
        await self._room()

    async def _room(self) -> None:
        # If the channel has ended, sending fails now, and `reopen` finds out why.
        with suppress(BrokerError):
            await self._action.room()

    def _start(self, item: SelectedMessage) -> bool:
        """Send it, and it is in flight, or leave it out; False if its way must be explored first."""
        try:
            prepared = self._action.prepare(item.delivery)
        except Exception as fault:  # of ours: this message stays, the others go on
            _log.exception("job %s cannot rewrite a message", self._run.job.id)
            prepared = LeftOut(f"it cannot be rewritten: {type(fault).__name__}: {fault}")
        if prepared is None:
            return False
        if isinstance(prepared, LeftOut):
            if prepared.stops:
                raise _Stopped(prepared.reason)
            self._keep(item.delivery)
            self._count(skipped=int(prepared.guard), failed=int(not prepared.guard))
            self._note(item, prepared.reason)
            return True
        self._sent += 1
        if self._is_careful:
            self._watch.timer.see(item.delivery)
        try:
            fate = self._action.send(prepared)
        except HopbackError:
            self._troubled.append(item)
        else:
            self._in_flight.add(item.delivery.tag)
            fate.add_done_callback(item)
        return True

    def _on_fate(self, item: SelectedMessage, fate: asyncio.Future[None]) -> None:
        """Its fate is known: ack it, or keep it for another try."""
        self._in_flight.discard(item.delivery.tag)
        self._landed.set()
        if fate.cancelled() or fate.exception() is not None:
            self._troubled.append(item)
        else:
            self._ack(item)

    def _ack(self, item: SelectedMessage) -> None:
        try:
            self._taking.ack(item.delivery.tag)
        except BrokerError as lost:
            self._lost = self._lost or lost
        else:
            self._acked += 1

    async def _wait_for_fate(self) -> None:
        """Until something in flight has come to its end."""
        self._landed.clear()
        await self._action.flush()
        if self._in_flight and not self._landed.is_set():
            await self._landed.wait()

    async def _drain(self) -> None:
        """Until nothing is in flight."""
        while self._in_flight:
            await self._wait_for_fate()

    async def _send_again(self, item: SelectedMessage) -> None:
        """Send one message that failed; a fault of its own counts for it alone."""
        tries = self._pace.tries
        last: HopbackError | None = None
        for attempt in range(1, tries + 1):
            if self._control.is_cancelled:
                raise _CancelAsked
            try:
                await self._action.room()
                fate = self._action.send(self._action.prepare(item.delivery))
                await self._action.flush()
                await fate
            except HopbackError as failed:
                last = failed
            else:
                self._ack(item)
                self._check()
                return
            ended = await self._action.reopen(anew=attempt >= _ANEW_AFTER)
            match after_failure(last, ended):
                case AfterFailure.ITS_OWN:
                    self._keep(item.delivery)
                    self._count(failed=1)
                    self._note(item, str(ended or last))
                    return
                case AfterFailure.STOP:
                    raise _Stopped(str(ended or last))
            if attempt < tries:
                await self._control.sleep(self._pace.pause(attempt))
            self._check()
        raise _Stopped(f"given up after {tries} tries: {last}")

    def _note(self, item: SelectedMessage, reason: str) -> None:
        dead_letter = read_dead_letter(item.delivery, item.place, self._queue)
        now = self._clock.now()
        self._notes.append(
            FailedMessage(
                dead_letter.id, dead_letter.digest, dead_letter.message_id, reason, Moment(now)
            )
        )

    async def _measure_arrivals(self) -> None:
        """Count the messages that arrive before the first message is sent."""
        seconds = min(self._watch.timer.time.seconds, MEASURE_S)
        before = (await self._look(counts=False)).count
        words = "counting arrivals until {}, before the first message is sent"
        async for _ in self._moments(seconds, seconds, words):
            self._arrived_first = (await self._look(counts=False)).count
        arrived = max(self._arrived_first - before, 0)
        self._rule = StopRule(self._pace.max_returned, arrived, seconds)
        self._sends_since = asyncio.get_running_loop().time()

    async def _watch_stage(self) -> None:
        """Wait as long as a return may take; stop if messages return."""
        self._stage_began = self._sent
        await self._drain()
        await self._may_go_on()
        async for _ in self._moments_of_watching():
            self._check_returns(await self._look(counts=True))
        self._looked_at = asyncio.get_running_loop().time()

    async def _watch_rest(self) -> None:
        """Look now and then while the messages after the last stage are sent."""
        now, seconds = asyncio.get_running_loop().time(), self._watch.timer.time.seconds
        due = now - self._looked_at >= max(seconds / _LOOKS, _PROGRESS_S)
        if self._sent > max(self._stages) and due:
            self._looked_at = now
            self._check_returns(await self._look(counts=False))

    async def _watch_end(self) -> None:
        """Wait once more when all messages are sent, and count the returned ones."""
        await self._drain()
        async for _ in self._moments_of_watching():
            self._check_returns(await self._look(counts=True))

    def _check_returns(self, found: Arrivals) -> None:
        elapsed = asyncio.get_running_loop().time() - self._sends_since
        since = replace(found, count=max(found.count - self._arrived_first, 0))
        if reason := self._rule.reason_to_stop(since, self._sent, elapsed):
            raise _CameBack(reason)

    async def _moments_of_watching(self) -> AsyncIterator[None]:
        """Some moments until the watch is over, and its end. Nothing is sent meanwhile."""
        time = self._watch.timer.time
        self._run.tell(replace(self._run.job, watch_s=time.seconds, watch_text=time.text))
        words = "watching until {} whether messages come back"
        every = max(time.seconds / _LOOKS, _PROGRESS_S)
        async for _ in self._moments(time.seconds, every, words):
            yield
        self._run.watched = self._sent
        if self._taken_back is not None:
            raise self._taken_back  # the next run takes what is left anew

    async def _moments(self, seconds: float, every: float, words: str) -> AsyncIterator[None]:
        """A moment every so many seconds, and the end. `words` with the time of the end are the job's reason.

        The job can be paused and cancelled meanwhile.
        """
        end = timestamp(round(self._clock.now() + seconds)).replace(".000", "")
        waits = words.format(end)
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        is_over = False
        while not is_over:
            due = min(loop.time() + every, until)
            while (wait := due - loop.time()) > 0:
                if self._run.job.reason != waits:  # at first, and again after a pause
                    self._run.tell(replace(self._run.job, reason=waits))
                    await self._save()
                await self._control.sleep(min(wait, _PROGRESS_S))
                self._check()
                await self._obey()
            is_over = due >= until
            yield
        self._run.tell(replace(self._run.job, reason=""))

    async def _look(self, *, counts: bool) -> Arrivals:
        """Count what arrived meanwhile, and what of it came back.

        That none came back `counts` only when there was time for it; else it is not known.
        """
        holding = self._source.given > self._acked and self._taken_back is None
        if holding:
            try:
                await self._source.check()
            except BrokerError as lost:
                # A broker takes back what is held for too long, and a watch may be longer than that.
                if not counts or may_pass(lost):
                    raise
                self._taken_back, holding = lost, False
        taken = self._source.taken if self._taken_back is None else self._acked
        found = await self._watch.look(taken, holding=holding)
        arrived = self._arrived_before + found.count
        frozen = self._run.job.spec.selection
        if self._run.job.run != 1 and self._exhausted and frozen.behind is not None:
            # A job that was interrupted did not count what arrived before: its last run does, at its
            # end, by what is there beyond what the job has left.
            left = frozen.count + frozen.behind - self._counted().done - self._cursor.gone
            arrived = max(arrived, found.ready + self._source.given - self._acked - left)
        self._counts = structs.replace(self._counts, arrived_meanwhile=arrived)
        if found.came_back or counts:
            known, before = found.came_back, self._shown.came_back
            self._counts = structs.replace(
                self._counts,
                came_back=before or None if known is None else max(known, before or 0),
                came_back_at_least=found.looked_at < found.count,
            )
        return found

    def _count(self, *, done: int = 0, skipped: int = 0, failed: int = 0) -> None:
        now = self._counts
        self._counts = structs.replace(
            now, done=now.done + done, skipped=now.skipped + skipped, failed=now.failed + failed
        )

    def _counted(self) -> Counts:
        """The counts, with what was acked in this run: that is only added up when it is asked for."""
        return structs.replace(self._counts, done=self._counts.done + self._acked)

    def _shown_counts(self) -> Counts:
        """The counts as people see them: a run that sees messages again does not take any back."""
        now, before = self._counted(), self._shown
        return structs.replace(
            now,
            done=max(now.done, before.done),
            skipped=max(now.skipped, before.skipped),
            failed=max(now.failed, before.failed),
        )

    async def _save(self) -> None:
        self._told = self._clock.now()
        job = self._run.job.counted(self._shown_counts(), self._taking.checkpoint(), self._told)
        await self._write(replace(job, rate=self._control.rate))

    async def _record(self, state: JobState, reason: str) -> None:
        if state is not self._run.job.state:
            now = self._clock.now()
            returned = max(self._source.given - self._acked, 0)
            ended = state not in (JobState.RUNNING, JobState.PAUSED)
            # At the end everything has been seen again: what is counted now is exact.
            counts = self._counted() if state is JobState.COMPLETED else self._shown_counts()
            if ended:
                counts = structs.replace(counts, returned=returned)
            job = self._run.job.counted(counts, self._taking.checkpoint(), now)
            await self._write(job.to(state, now, reason))

    async def _write(self, job: JobRecord) -> None:
        notes, self._notes = self._notes, []
        await self._run.write(job, notes)
