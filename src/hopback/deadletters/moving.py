"""The engine of a job: take, decide, act, and ack only what has ended well.

One message after the other is taken, in order; up to the window are in flight. A failure stops the
flow: what is in flight comes to its end, then what failed is tried again, one at a time with growing
pauses, and when that does not help the job stops. Nothing is ever given back one by one: whoever
started the job closes the channel, once, and everything unsettled returns to its place in the queue.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hopback.deadletters.acts import LeftOut
from hopback.deadletters.jobs import FailedMessage, JobState
from hopback.deadletters.letters import letter_of
from hopback.deadletters.pacing import Pacer
from hopback.errors import (
    BrokerError,
    ChannelClosed,
    HopbackError,
    PreconditionFailed,
    PublishFailed,
)

if TYPE_CHECKING:
    from hopback.clock import Clock
    from hopback.deadletters.acts import Act
    from hopback.deadletters.discovery import DeadLetterQueue
    from hopback.deadletters.filters import Filter
    from hopback.deadletters.jobs import Job
    from hopback.deadletters.journal import Journal
    from hopback.deadletters.letters import Letter
    from hopback.deadletters.pacing import Control, Pace
    from hopback.deadletters.taking import Source
    from hopback.deadletters.watching import Watch
    from hopback.message import Delivery

__all__ = ["Engine", "Work"]

_PROGRESS_S = 1.0


class _Stopped(Exception):
    """The job cannot go on, for the reason given."""


class _Cancelled(Exception):
    """Somebody wants it to end."""


@dataclass(frozen=True, slots=True)
class _Item:
    """A message on its way."""

    delivery: Delivery
    letter: Letter
    prepared: object


@dataclass(frozen=True, slots=True)
class Work:
    """Everything that a job works with."""

    queue: DeadLetterQueue
    source: Source
    act: Act
    wanted: Filter
    journal: Journal
    clock: Clock
    pace: Pace
    control: Control
    watch: Watch | None = None


class Engine:
    """One run of a job; `job` is always its present state."""

    def __init__(self, job: Job, work: Work) -> None:
        self.job = job
        self._work = work
        self._counts = job.counts
        self._pacer = Pacer(work.control)
        self._in_flight: set[int] = set()
        self._ids: set[str] = set()
        self._troubled: list[_Item] = []
        self._lost: BrokerError | None = None
        self._landed = asyncio.Event()
        self._sent = 0
        self._stage_began = 0
        self._place = 0
        self._told = 0.0

    async def run(self) -> Job:
        """Work until the selection is through, or something ends it; never raises a broker's fault."""
        try:
            state, reason = await self._ended()
        except BaseException:
            # A cancelled task or a fault of ours: the channel is closed by whoever started it.
            await self._record(JobState.INTERRUPTED, "the process ended it")
            raise
        await self._record(state, reason)
        return self.job

    async def _ended(self) -> tuple[JobState, str]:
        try:
            await self._all()
        except _Cancelled:
            await self._drain()
            await self._finish_quietly()
            return JobState.CANCELLED, "cancelled"
        except _Stopped as stopped:
            await self._drain()
            await self._finish_quietly()
            return JobState.FAILED, str(stopped)
        except BrokerError as lost:
            await self._drain()
            return JobState.INTERRUPTED, str(lost)
        return JobState.COMPLETED, ""

    async def _finish_quietly(self) -> None:
        """See every ack read; a line that ends now gives back what it held, as it would anyway."""
        try:
            await self._work.source.finish()
        except BrokerError as lost:
            self._lost = lost

    async def _all(self) -> None:
        while True:
            await self._may_go_on()
            delivery = await self._next()
            if delivery is not None:
                await self._one(delivery)
                continue
            await self._drain()
            if not self._troubled:
                break
        self._check()
        await self._work.source.finish()
        await self._look()

    async def _next(self) -> Delivery | None:
        """The next message; before waiting for it, what waits to be written is written."""
        self._check()
        return await self._work.source.next()

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost

    async def _may_go_on(self) -> None:
        """Mend what failed, then see whether somebody wants us to wait or to end."""
        if self._troubled:
            await self._mend()
        control = self._work.control
        if control.is_cancelled:
            raise _Cancelled
        if control.is_paused:
            await self._drain()
            await self._record(JobState.PAUSED, "paused")
            await control.wait()
            if control.is_cancelled:
                raise _Cancelled
            await self._record(JobState.RUNNING, "")
        await self._tell()

    # --- one message

    async def _one(self, delivery: Delivery) -> None:
        self._place += 1
        letter = letter_of(delivery, self._place, self._work.queue)
        if not self._work.wanted.matches(letter, delivery, self._work.clock.now()):
            self._keep(delivery, skipped=1)
            return
        prepared = await self._work.act.prepare(delivery, letter)
        if isinstance(prepared, LeftOut):
            await self._left_out(delivery, letter, prepared)
            return
        await self._ready_for(delivery)
        self._start(_Item(delivery, letter, prepared))

    async def _left_out(self, delivery: Delivery, letter: Letter, why: LeftOut) -> None:
        if why.stops:
            raise _Stopped(why.reason)
        self._keep(delivery, skipped=int(why.guard), failed=int(not why.guard))
        await self._note(letter, why.reason)

    def _keep(self, delivery: Delivery, *, skipped: int = 0, failed: int = 0) -> None:
        self._work.source.keep(delivery.tag)
        self._count(skipped=skipped, failed=failed)

    async def _ready_for(self, delivery: Delivery) -> None:
        """Return when the window has room, no message of this id is in flight, and it is our turn."""
        if self._sent in self._work.pace.stage_ends() and self._sent != self._stage_began:
            await self._stage_over()
        await self._pacer.turn()
        ident = delivery.properties.message_id or ""
        while len(self._in_flight) >= self._work.pace.in_flight or (ident and ident in self._ids):
            await self._landing()
        await self._work.act.room()

    def _start(self, item: _Item) -> None:
        """Send it; from here on it is in flight."""
        tag, ident = item.delivery.tag, item.delivery.properties.message_id or ""
        try:
            fate = self._work.act.send(item.prepared)
        except HopbackError:
            self._troubled.append(item)
            return
        self._sent += 1
        self._in_flight.add(tag)
        if ident:
            self._ids.add(ident)
        fate.add_done_callback(lambda done: self._landing_of(item, done))

    def _landing_of(self, item: _Item, fate: asyncio.Future[None]) -> None:
        """Its fate is known: ack it, or keep it for another try."""
        self._in_flight.discard(item.delivery.tag)
        self._ids.discard(item.delivery.properties.message_id or "")
        self._landed.set()
        if fate.cancelled() or fate.exception() is not None:
            self._troubled.append(item)
        else:
            self._ack(item)

    def _ack(self, item: _Item) -> None:
        try:
            self._work.source.ack(item.delivery.tag)
        except BrokerError as lost:
            self._lost = self._lost or lost
        else:
            self._count(done=1)

    async def _landing(self) -> None:
        """Until something in flight has come to its end."""
        self._landed.clear()
        await self._work.act.flush()
        if self._in_flight:
            await self._landed.wait()

    async def _drain(self) -> None:
        """Until nothing is in flight."""
        while self._in_flight:
            await self._landing()

    # --- trouble

    async def _mend(self) -> None:
        """Try again what failed, one at a time, in order."""
        await self._drain()
        self._check()
        await self._work.act.mend()
        self._troubled.sort(key=lambda item: item.delivery.tag)
        while self._troubled:
            await self._again(self._troubled[0])
            del self._troubled[0]

    async def _again(self, item: _Item) -> None:
        """Send one message that failed; a fault of its own counts for it alone."""
        last: HopbackError | None = None
        for attempt in range(1, self._work.pace.tries + 1):
            if self._work.control.is_cancelled:
                raise _Cancelled
            fault: HopbackError | None = None
            try:
                fate = self._work.act.send(item.prepared)
                await self._work.act.flush()
                await fate
            except PublishFailed as failed:
                last, fault = failed, await self._work.act.mend()
            except HopbackError as refused:
                last = fault = refused
            else:
                self._ack(item)
                self._check()
                return
            if _is_its_own(fault):
                await self._give_up(item, str(fault))
                return
            if isinstance(fault, ChannelClosed):
                raise _Stopped(str(fault))
            await asyncio.sleep(self._work.pace.pause(attempt))
            self._check()
        raise _Stopped(f"given up after {self._work.pace.tries} tries: {last}")

    async def _give_up(self, item: _Item, reason: str) -> None:
        self._keep(item.delivery, failed=1)
        await self._note(item.letter, reason)

    async def _note(self, letter: Letter, reason: str) -> None:
        now = self._work.clock.now()
        failed = FailedMessage(letter.id, letter.digest, letter.message_id, reason, now)
        await self._work.journal.add_failures(self.job.id, (failed,))

    # --- the ramp

    async def _stage_over(self) -> None:
        """Wait and see whether what was sent comes back."""
        sent, self._stage_began = self._sent - self._stage_began, self._sent
        await self._drain()
        if self._troubled:
            await self._mend()
        before = self._counts.arrived_meanwhile
        await asyncio.sleep(self._work.pace.watch_s)
        seen = await self._look()
        arrived = self._counts.arrived_meanwhile - before
        if self._counts.came_back:
            raise _Stopped(
                f"{self._counts.came_back} of {self._sent} messages came back; the cause is not mended"
            )
        if not seen and arrived >= sent:
            raise _Stopped(
                f"{arrived} messages arrived while {sent} were sent: probably the same; the cause is"
                " not mended"
            )

    async def _look(self) -> bool:
        """Count what arrived meanwhile; whether it could be looked at."""
        if self._work.watch is None:
            return False
        found = await self._work.watch.look(self._work.source.taken)
        came_back = self._counts.came_back if found.came_back is None else found.came_back
        self._counts = replace(self._counts, arrived_meanwhile=found.count, came_back=came_back)
        return found.came_back is not None

    # --- telling

    def _count(self, *, done: int = 0, skipped: int = 0, failed: int = 0) -> None:
        now = self._counts
        self._counts = replace(
            now, done=now.done + done, skipped=now.skipped + skipped, failed=now.failed + failed
        )

    async def _tell(self) -> None:
        """Write the progress down now and then."""
        now = self._work.clock.now()
        if now - self._told >= _PROGRESS_S:
            self._told = now
            self.job = self.job.counted(self._counts, self.job.checkpoint, now)
            await self._work.journal.save(self.job, "")

    async def _record(self, state: JobState, reason: str) -> None:
        now = self._work.clock.now()
        self.job = self.job.counted(self._counts, self.job.checkpoint, now).to(state, now, reason)
        await self._work.journal.save(self.job, "")


def _is_its_own(fault: HopbackError | None) -> bool:
    """Whether the message itself is what the broker, or the wire, would not have."""
    if fault is None or isinstance(fault, PublishFailed):
        return False
    return isinstance(fault, PreconditionFailed) or not isinstance(fault, BrokerError)
