"""Send periodic messages from exactly one of several processes.

The progress is stored as a single message in a queue with a single active consumer. It means that
all messages due after `since` and up to `last` were sent. The process that receives this message
sends the due messages with confirms, publishes the new progress, and acks the old one. If it
crashes in between, messages may be sent twice with the same message id, but none are skipped.

Each process publishes an initial progress when it starts, which begins at its start time. For a
short time there may be several. Their ranges are merged. If there is a gap between them, the
earlier one is used, so nothing in the range of the later one is sent twice. If the queue is
deleted, the active process publishes its progress again. Waiting processes don't know the progress.
They publish one that begins at the current time, which avoids sending old messages again.

The system clock is compared with the event loop's clock to detect when it has been changed. The
sender then waits for a few seconds. If the clock is corrected in that time, it continues from the
progress before the change.
"""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hopback.durations import Duration, parse_wait_ms
from hopback.errors import BrokerError, InvalidDeclaration, Problem
from hopback.message import Delivery, Message, Properties
from hopback.policy.periodic import Every, Missed, Schedule, due_id, due_now, parse_cron, parse_zone
from hopback.runtime.context import compose
from hopback.topology.delays import schedule_queue_name
from hopback.waiting import first_of, loop_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from hopback.broker.port import Channel, Connection
    from hopback.runtime.settling import Environment

_CRON_FIELDS = 5
"""Number of fields of a cron expression, from minute to day of the week."""

_RENEW_S = 300.0
"""Longest time that the message is held. This is far less than the 30 minutes after which RabbitMQ assumes
that the consumer of an unacknowledged delivery is dead.
"""

_LONGEST_SLEEP_S = 60.0
"""Seconds between two checks of the clock, because it may be set at any time."""

_SLEEP_AFTER_JUMP_S = 1.0
"""Seconds between two looks at a clock that has jumped: the shortest period that can be declared."""

_JUMP_S = 5.0
"""Seconds that the clock gains or loses between two looks before it counts as a jump. Time servers slew
smaller differences."""

_SETTLE_S = 5.0
"""Seconds that a sender waits after a jump. If the clock returns within this time, the jump has no effect."""

_CLOSE_S = 2.0
"""Seconds to wait for the broker to confirm that a channel is closed."""

_AHEAD_MS = 60_000
"""Milliseconds that the progress may be ahead of the clock. Up to here it is the difference between two
machines, and the sender waits. Beyond, the process that wrote it had a wrong clock, and its progress is moved
back to the present.
"""


@dataclass(frozen=True, slots=True)
class PeriodicMessage:
    """The argument of a periodic handler. Contains its name and the time when the call was due."""

    name: str
    due: datetime


@dataclass(frozen=True, slots=True)
class Periodic:
    """A periodic message with its queue, its schedule and the policy for missed calls."""

    queue: str
    schedule: Schedule
    missed: Missed


def read_schedule(
    period: Duration | None, cron: str | None, timezone: str, *, where: str
) -> Schedule:
    """Return the schedule. Raises InvalidDeclaration if it is invalid."""
    if (period is None) == (cron is None):
        got = "neither" if period is None else f"both: {period!r} and {cron!r}"
        found = Problem("period", 'a period like "5m", or a line like cron="0 3 * * *"', got)
        raise InvalidDeclaration((found,), where=where)
    option = "period"
    try:
        if period is not None:
            period_ms = parse_wait_ms(period)
            if period_ms < 1000:
                raise ValueError(f"expected a period of 1s or more, got {period!r}")
            return Every(period_ms)
        option = "timezone"
        parse_zone(timezone)
        option = "cron"
        return parse_cron(cron or "", timezone)
    except ValueError as error:
        expected, _, got = str(error).removeprefix("expected ").rpartition(", got ")
        if option == "period" and isinstance(period, str) and len(period.split()) == _CRON_FIELDS:
            got += f" (did you mean cron={period!r}?)"
        raise InvalidDeclaration((Problem(option, expected, got),), where=where) from None


@dataclass(frozen=True, slots=True)
class SentSoFar:
    """The range of due times that were sent: after `since_ms` and up to `last_ms`."""

    since_ms: int
    last_ms: int

    def write(self) -> bytes:
        """Format the progress for storing it in the queue."""
        return json.dumps({"since": self.since_ms, "last": self.last_ms}).encode()

    @classmethod
    def read(cls, body: bytes) -> SentSoFar | None:
        """Parse the format written by `write`. Returns None if it is invalid."""
        try:
            found = json.loads(body)
            since_ms, last_ms = found["since"], found["last"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        whole = type(since_ms) is int and type(last_ms) is int and 0 <= since_ms <= last_ms
        return cls(since_ms, last_ms) if whole else None

    @classmethod
    def together(cls, several: Iterable[SentSoFar]) -> SentSoFar | None:
        """Merge the ranges that follow the earliest start without a gap. Returns None if there are
        none.
        """
        first, *others = sorted(several, key=lambda one: one.since_ms) or (None,)
        if first is None:
            return None
        last_ms = first.last_ms
        for one in others:
            if one.since_ms <= last_ms:
                last_ms = max(last_ms, one.last_ms)
        return cls(first.since_ms, last_ms)


class JumpWatch:
    """Detects changes of the system clock and remembers the progress before the change."""

    def __init__(self) -> None:
        self._offset: float | None = None
        """The machine's clock minus the loop's at the last comparison."""
        self._settled_at = -math.inf
        self._before: tuple[float, SentSoFar, float] | None = None
        """The offset and the progress before a jump, and until when the clock may return."""
        self.gained: float = 0.0
        """Seconds of the jump found by the last comparison. 0 if there was none."""

    def look(self, now: float, time: float, reached: SentSoFar) -> SentSoFar | None:
        """Compare the clocks. If the clock was set back to normal, return the progress before the
        change.
        """
        offset = now - time
        gained = 0.0 if self._offset is None else offset - self._offset
        self._offset = offset
        self.gained = gained if abs(gained) >= _JUMP_S else 0.0
        if self.gained:
            self._settled_at = time + _SETTLE_S
        if self._before is None:
            if self.gained:
                self._before = offset - gained, reached, time + abs(gained)
            return None
        before, progress, until = self._before
        if abs(offset - before) < _JUMP_S:
            self._before, self._settled_at = None, time
            return progress
        if time >= until:
            self._before = None
        return None

    def is_settling(self, time: float) -> bool:
        """Whether the clock was changed so recently that it may still be corrected."""
        return time < self._settled_at

    def next_look(self, time: float) -> float:
        """Number of seconds until the next comparison of the clocks."""
        has_jumped = self._before is not None or self.is_settling(time)
        return _SLEEP_AFTER_JUMP_S if has_jumped else _LONGEST_SLEEP_S


class PeriodicSender:
    """Sends the periodic messages of a queue while this process is the active consumer."""

    def __init__(
        self,
        periodic: Periodic,
        publish: Callable[[Message], Coroutine[Any, Any, None]],
        environment: Environment,
    ) -> None:
        self.queue: str = schedule_queue_name(periodic.queue)
        self._periodic = periodic
        self._publish = publish
        self._environment = environment
        self._time = loop_time
        self._known: SentSoFar | None = self._from_now()
        self._known_at = math.inf
        """The time when this process last held the schedule, by the loop's clock. The first one does not
        age.
        """
        self._held: dict[int, SentSoFar | None] = {}
        self._clock = JumpWatch()

    def _from_now(self) -> SentSoFar:
        now_ms = math.floor(self._environment.clock.now() * 1000)
        return SentSoFar(now_ms, now_ms)

    async def serve(
        self, connection: Connection, usable: Callable[[str, Connection, float], Awaitable[str]]
    ) -> None:
        """Run on a connection until it is closed. If the channel is closed, open another one."""
        failures, lost_at, said = 0, float("-inf"), None
        while True:
            began = self._time()
            trouble = await usable(self.queue, connection, lost_at)
            if not trouble:
                try:
                    channel = await connection.open_channel()
                    try:
                        await self._attend(channel)
                    finally:
                        with suppress(TimeoutError):
                            async with asyncio.timeout(_CLOSE_S):
                                await channel.close()
                except BrokerError as error:
                    trouble = str(error)
            if trouble != said:
                lost = {"queue": self.queue, "reason": trouble or "the broker ended the consumer"}
                self._environment.bus.emit("consumer.lost", lost)
            said = trouble
            lost_at = self._time()
            failures = 1 if lost_at - began >= self._environment.backoff.stable else failures + 1
            await asyncio.sleep(
                self._environment.backoff.delay(failures, self._environment.chance())
            )

    async def _attend(self, channel: Channel) -> None:
        """Wait to become the active consumer, then send due messages until this process loses that
        role.
        """
        self._held = {}
        arrived, over = asyncio.Event(), asyncio.Event()

        def take(delivery: Delivery) -> None:
            self._held[delivery.tag] = SentSoFar.read(delivery.body)
            arrived.set()

        # Another process may have continued from a progress that was not renewed in time.
        is_fresh = self._time() - self._known_at < _RENEW_S
        await self._write(self._known if self._known and is_fresh else self._from_now())
        self._known = None
        await channel.qos(0)
        await channel.consume(self.queue, take, on_cancel=lambda _tag: over.set())
        closed = asyncio.ensure_future(channel.wait_closed())
        closed.add_done_callback(lambda _: over.set())
        try:
            while not over.is_set():
                if self._held:
                    await self._send_due(channel, arrived, over)
                else:
                    arrived.clear()
                    await first_of(arrived.wait(), over.wait())
        finally:
            closed.cancel()

    async def _send_due(
        self, channel: Channel, arrived: asyncio.Event, over: asyncio.Event
    ) -> None:
        """Wait until a message is due or the progress has to be renewed. Then send, publish the
        progress and ack.
        """
        clock, periodic = self._environment.clock, self._periodic
        renew_at = self._time() + _RENEW_S
        while True:
            found = [one for one in self._held.values() if one is not None]
            now = clock.now()
            reached, is_moved = self._progress(found, now)
            wait = self._clock.next_look(self._time())
            if not self._clock.is_settling(self._time()):
                due, last_ms = due_now(
                    periodic.schedule, reached.last_ms, math.floor(now * 1000), periodic.missed
                )
                is_clear = len(self._held) == len(found) == 1 and not is_moved
                renew_in = renew_at - self._time()
                if due or last_ms > reached.last_ms or not is_clear or renew_in <= 0:
                    break
                wait = min(wait, renew_in, periodic.schedule.after(reached.last_ms) / 1000 - now)
            arrived.clear()
            await first_of(arrived.wait(), over.wait(), within=max(wait, 0.0))
            if over.is_set():
                return
        tags = tuple(self._held)
        covered = [] if is_moved else found
        for due_ms in due:
            if any(one.since_ms < due_ms <= one.last_ms for one in covered):
                continue  # sent after the gap that follows the earlier progress
            message_id = due_id(periodic.queue, due_ms)
            payload = PeriodicMessage(periodic.queue, datetime.fromtimestamp(due_ms / 1000, UTC))
            await self._publish(compose(periodic.queue, payload, message_id=message_id))
            late = max(0.0, clock.now() - due_ms / 1000)
            self._environment.bus.emit(
                "periodic.sent", {"queue": periodic.queue, "message_id": message_id, "late": late}
            )
        sent = SentSoFar(reached.since_ms, max(last_ms, reached.last_ms))
        self._known, self._known_at = sent, self._time()
        await self._write(sent)
        for tag in tags:
            channel.ack(tag)
            self._held.pop(tag, None)

    def _progress(self, found: Iterable[SentSoFar], now: float) -> tuple[SentSoFar, bool]:
        """Return the progress, and whether it differs from the one stored in the queue.

        If a changed clock has been corrected, this is the progress before the change. If the
        progress is too far in the future to be explained by clock differences between machines, it
        is set to the current time.
        """
        reached = SentSoFar.together(found) or self._known or self._from_now()
        before = self._clock.look(now, self._time(), reached)
        if self._clock.gained:
            self._tell_clock(self._clock.gained, "the clock of this process was set")
        is_moved = False
        if not self._clock.is_settling(self._time()):
            ahead_ms = reached.last_ms - math.floor(now * 1000)
            if before is not None and before.last_ms != reached.last_ms:
                reached, is_moved = before, True
                self._tell_clock(
                    ahead_ms / 1000, "the clock returned: the progress before the jump counts"
                )
            elif ahead_ms > _AHEAD_MS:
                last_ms = reached.last_ms - ahead_ms
                reached, is_moved = SentSoFar(min(reached.since_ms, last_ms), last_ms), True
                self._tell_clock(
                    ahead_ms / 1000, "the progress was ahead of the clock of this process"
                )
        self._known, self._known_at = reached, self._time()
        return reached, is_moved

    def _tell_clock(self, seconds: float, reason: str) -> None:
        fields = {"queue": self._periodic.queue, "seconds": seconds, "reason": reason}
        self._environment.bus.emit("periodic.clock", fields)

    async def _write(self, reached: SentSoFar) -> None:
        properties = Properties(content_type="application/json", delivery_mode=2)
        await self._publish(Message("", self.queue, reached.write(), properties))
