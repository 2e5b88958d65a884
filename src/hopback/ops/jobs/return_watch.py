"""Watch whether re-driven messages fail again and return to the dead-letter queue.

A job with a ramp sends its first messages in stages. After each stage it waits for the time that
messages may need to return (`watch_time`), and counts arrivals. It stops if the cause of the
failures still exists.

To count arrivals, the number of messages in the queue is compared with the number that the job has
left there. New messages are behind old ones, so they can only be read if no old messages are ready.
They are not read if this could remove a message. A quorum queue delivers requeued messages first.
If new messages were read while the job is holding old ones, they would be requeued ahead of them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hopback.errors import BrokerError
from hopback.headers.names import REDRIVE_JOB
from hopback.ops.browse.walk import walk
from hopback.ops.contract.requests import JobKind, Pace
from hopback.ops.contract.values import JobState, Price
from hopback.ops.jobs.control import EndJob
from hopback.ops.jobs.job_progress import SAVE_EVERY_S, JobProgress
from hopback.ops.jobs.publish_failure import is_away
from hopback.ops.jobs.watch_time import WatchTime, WatchTimer
from hopback.text import count_of, span_text, whole_timestamp
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.brokers.snapshot import BrokerSnapshot
    from hopback.ops.jobs.cursor_driver import CursorDriver
    from hopback.ops.jobs.leased_job import LeasedJob

MEASURE_S = 10.0
"""Maximum number of seconds for which arrivals are counted before the first message is sent.

A longer time could detect lower rates, but operators have to wait for it.
"""
_LOOKS = 10
"""How often arrivals are counted during a watch. It ends early if messages return quickly."""
_LOOKED_AT = 10_000
"""Arrived messages to read per count. If there are more, the number of returned messages is a minimum."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Messages that have arrived since the start of the run.

    `came_back` is how many of them the job had sent, or None if this could not be counted. It only
    refers to the `looked_at` messages that were read. `ready` is the number of messages in the
    queue.
    """

    count: int
    came_back: int | None
    ready: int
    looked_at: int = 0


@dataclass(frozen=True, slots=True)
class StopRule:
    """The rule for stopping a job with a ramp.

    The job stops if more than `max_returned` of its messages return, which are recognised by a
    header. If arrivals cannot be read, they are only counted. The job then stops if there are more
    than expected, by more than `max_returned`. The expected number is based on the rate before the
    start, when `arrived` messages arrived within `seconds`.
    """

    max_returned: int = 0
    arrived: int = 0
    seconds: float = 0.0

    def reason_to_stop(self, found: Arrivals, sent: int, elapsed_s: float) -> str:
        """Return why the job has to stop, or an empty string if it can continue.

        `found.count` and `elapsed_s` start with the first message that the job has sent.
        """
        if (found.came_back or 0) > self.max_returned:
            return f"{returned_text(found, sent)}; the cause is not repaired"
        if found.count <= self.max_returned + self._usual(elapsed_s):
            return ""
        before = f"{count_of(self.arrived)} within" if self.arrived else "none within"
        return (
            f"{count_of(found.count)} arrived after the job had sent {sent:,}, and {before}"
            f" {span_text(self.seconds)} before: sent messages probably return, and the cause is not"
            " repaired"
        )

    def _usual(self, elapsed_s: float) -> int:
        """Return how many arrivals the earlier rate explains, plus three standard deviations."""
        if not self.arrived:
            return 0
        expected = self.arrived / self.seconds * elapsed_s
        return int(expected + 3 * expected**0.5)


def returned_text(found: Arrivals, sent: int) -> str:
    """Describe how many of the sent messages have returned."""
    least = "at least " if found.looked_at < found.count else ""
    return f"{least}{found.came_back or 0:,} of {count_of(sent)} returned"


def stop_rule_text(pace: Pace, watch: WatchTime) -> str:
    """Describe the stop rule of a job for the review."""
    if not pace.ramp:
        return "Returned messages do not stop a job without a ramp."
    stages = ", ".join(f"{size:,}" for size in pace.ramp)
    returned = "a message returns"
    if pace.max_returned:
        returned = f"more than {count_of(pace.max_returned)} return"
    return (
        f"The job first counts arrivals for {span_text(min(watch.seconds, MEASURE_S))}. It sends {stages}"
        f" messages, then the rest, and watches {span_text(watch.seconds)} after each stage and at the"
        " end."
        f" It stops when {returned}. While older messages are ready, or if the consumer drops headers, it"
        " cannot recognise its own messages: then it stops when more messages arrive than before its start."
    )


class ReturnWatch:
    """Count the arrivals during a run, and stop its job if messages return."""

    def __init__(
        self,
        leased: LeasedJob,
        broker: ManagedBroker,
        snapshot: BrokerSnapshot,
        driver: CursorDriver,
        progress: JobProgress,
    ) -> None:
        job, pace = leased.job, leased.job.spec.pace
        self._leased = leased
        self._broker = broker
        self._driver = driver
        self._progress = progress
        self._ready = snapshot.ready
        self._is_classic = snapshot.is_classic(job.queue)
        self._cost = snapshot.cost(job.queue)
        self._may_look = job.spec.force or self._cost.price is not Price.REFUSED
        self.timer: WatchTimer = WatchTimer(snapshot.dead_letter_queue(job.queue), pace.watch_s)
        is_redrive = job.kind is JobKind.REDRIVE
        self.stages: frozenset[int] = pace.stage_ends() if is_redrive else frozenset()
        """The numbers of sent messages after which the job watches. It is empty without a ramp."""
        self.requeued: BrokerError | None = None
        """Why the broker has requeued the held messages during a watch."""
        self._before = job.counts
        """The counts of the job at the start of this run."""
        self._rule = StopRule(pace.max_returned)
        self._sends_since = self._looked_at = 0.0
        self._arrived_first = 0
        """The arrivals in this run before its first message was sent."""

    async def measure_arrivals(self) -> None:
        """Count messages that arrive before the first message is sent."""
        seconds = min(self.timer.time.seconds, MEASURE_S)
        before = (await self.look(had_time=False)).count
        words = "counting arrivals until {}, before the first message is sent"
        async for _ in self._moments(seconds, seconds, words):
            self._arrived_first = (await self.look(had_time=False)).count
        arrived = max(self._arrived_first - before, 0)
        self._rule = replace(self._rule, arrived=arrived, seconds=seconds)
        self._sends_since = asyncio.get_running_loop().time()

    def ends_stage(self, sent: int) -> bool:
        """Return whether a stage ends with this message and has not been watched yet."""
        return sent in self.stages and sent != self._leased.watched

    async def watch(self, sent: int) -> None:
        """Watch for returned messages. Raises EndJob if there are any. No messages may be in flight."""
        time = self.timer.time
        self._leased.show(replace(self._leased.job, watch_s=time.seconds, watch_text=time.text))
        words = "watching until {} for returned messages"
        every = max(time.seconds / _LOOKS, SAVE_EVERY_S)
        async for _ in self._moments(time.seconds, every, words):
            self._check(await self.look(had_time=True), sent)
        self._looked_at = asyncio.get_running_loop().time()
        self._leased.watched = sent
        if self.requeued is not None:
            raise self.requeued  # the next run takes the remaining messages again

    async def look_if_due(self, sent: int) -> None:
        """Count arrivals regularly while the messages after the last stage are sent."""
        now, seconds = asyncio.get_running_loop().time(), self.timer.time.seconds
        is_due = now - self._looked_at >= max(seconds / _LOOKS, SAVE_EVERY_S)
        if sent > max(self.stages) and is_due:
            self._looked_at = now
            self._check(await self.look(had_time=False), sent)

    def _check(self, found: Arrivals, sent: int) -> None:
        elapsed = asyncio.get_running_loop().time() - self._sends_since
        since = replace(found, count=max(found.count - self._arrived_first, 0))
        if reason := self._rule.reason_to_stop(since, sent, elapsed):
            raise EndJob(JobState.STOPPED, reason)

    async def _moments(self, seconds: float, every: float, words: str) -> AsyncIterator[None]:
        """Yield every `every` seconds and at the end. Meanwhile, the job can be paused or
        cancelled.

        `words` is formatted with the time of the end and is the reason of the job until then.
        """
        end = whole_timestamp(self._broker.clock.now() + seconds)
        waits = words.format(end)
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        is_over = False
        while not is_over:
            due = min(loop.time() + every, until)
            while (wait := due - loop.time()) > 0:
                if self._leased.job.state_reason != waits:  # at the beginning and after a pause
                    self._leased.show(replace(self._leased.job, state_reason=waits))
                    await self._progress.save()
                await self._leased.control.sleep(min(wait, SAVE_EVERY_S))
                await self._progress.obey()
            is_over = due >= until
            yield
        self._leased.show(replace(self._leased.job, state_reason=""))

    async def look(self, *, had_time: bool) -> Arrivals:
        """Count the arrived messages, and how many of them this job had sent.

        If `had_time` is False, messages may not have had enough time to return, and finding none
        does not mean anything.
        """
        driver, progress = self._driver, self._progress
        holding = driver.held > 0 and self.requeued is None
        if holding:
            try:
                await driver.messages.check()
            except BrokerError as lost:
                # The broker requeues messages that are held for too long, and a watch can take
                # longer than that.
                if not had_time or is_away(lost):
                    raise
                self.requeued, holding = lost, False
        taken = driver.messages.taken if self.requeued is None else driver.acked
        found = await self._count_arrivals(taken, holding=holding)
        arrived = self._before.arrived_meanwhile + found.count
        spec = self._leased.job.spec
        if self._leased.job.run != 1 and driver.is_exhausted and spec.behind is not None:
            # An interrupted job has not counted all earlier arrivals. When it has been resumed,
            # they are counted at the end as the messages in the queue that the job did not leave
            # there.
            gone = driver.cursor.gone
            left = spec.span + spec.behind - progress.counts.done - gone
            arrived = max(arrived, found.ready + driver.held - left)
        progress.set_counts(arrived_meanwhile=arrived)
        if found.came_back or had_time:
            known, known_before = found.came_back, self._before.came_back
            progress.set_counts(
                came_back=known_before or None if known is None else max(known, known_before or 0),
                came_back_at_least=found.looked_at < found.count,
            )
        return found

    async def _count_arrivals(self, taken: int, *, holding: bool) -> Arrivals:
        """Count arrivals. `taken` is the number of messages that the job has taken from the queue.

        `holding` is True if it still holds some of them.
        """
        job = self._leased.job
        async with self._broker.query() as connection:
            channel = await connection.open_channel()
            ready = (await channel.declare_queue(Queue(job.queue), passive=True)).messages
        expected = max(self._ready - taken, 0)
        arrived = max(ready - expected, 0)
        if not arrived:
            return Arrivals(0, 0, ready)
        if expected or not self._may_look or (holding and not self._is_classic):
            return Arrivals(arrived, None, ready)
        seen = found = 0
        most = min(arrived, _LOOKED_AT)
        async with walk(self._broker.query, job.queue, most, self._cost) as messages:
            async for delivery in messages:
                seen += 1
                found += delivery.properties.headers.get(REDRIVE_JOB) == job.id
        return Arrivals(arrived, found, ready, seen)
