"""Periodic messages, sent by one of any number of processes.

The progress is one message in a queue with a single active consumer: "all messages due after `since` and up
to `last` were sent". The process that holds this message sends the due messages with confirms, then
publishes the next progress, and then acks the old one. A crash at any moment therefore duplicates messages
at worst, with the same message id, and never omits one.

Every process first publishes a progress that begins with its own start. Several may exist for a short time.
Their ranges are merged. If they leave a gap, the earlier one counts, and the due times of the later one are
not sent again. If the queue is deleted, the sender publishes its progress again. A waiting process does not
know the progress and publishes one that begins at that moment, so that old due times are not sent again.

A clock that is set forward or back is noticed by comparing it with the event loop's clock. The sender then
waits a few seconds. If the clock returns later, the sender resumes from its progress before the jump.
"""

from __future__ import annotations

import asyncio
import json
import math
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

_AHEAD_MS = 60_000
"""Milliseconds that the progress may be ahead of the clock. Up to here it is the difference between two
machines, and the sender waits. Beyond, the process that wrote it had a wrong clock, and its progress is moved
back to the present.
"""


@dataclass(frozen=True, slots=True)
class PeriodicMessage:
    """The argument of a periodic handler: the name and the due time."""

    name: str
    due: datetime


@dataclass(frozen=True, slots=True)
class Periodic:
    """The declaration of a periodic message: queue, schedule, and handling of missed times."""

    queue: str
    schedule: Schedule
    missed: Missed


def read_schedule(
    period: Duration | None, cron: str | None, timezone: str, *, where: str
) -> Schedule:
    """Return the schedule. InvalidDeclaration describes an invalid one."""
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
    """All that was due after `since_ms` and up to `last_ms` has been sent."""

    since_ms: int
    last_ms: int

    def write(self) -> bytes:
        """As it is written in the queue."""
        return json.dumps({"since": self.since_ms, "last": self.last_ms}).encode()

    @classmethod
    def read(cls, body: bytes) -> SentSoFar | None:
        """Parse the output of `write`. Returns None if it is invalid."""
        try:
            found = json.loads(body)
            since_ms, last_ms = found["since"], found["last"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        whole = type(since_ms) is int and type(last_ms) is int and 0 <= since_ms <= last_ms
        return cls(since_ms, last_ms) if whole else None

    @classmethod
    def together(cls, several: Iterable[SentSoFar]) -> SentSoFar | None:
        """Return the range covered without a gap from the earliest start, or None if there is none."""
        first, *others = sorted(several, key=lambda one: one.since_ms) or (None,)
        if first is None:
            return None
        last_ms = first.last_ms
        for one in others:
            if one.since_ms <= last_ms:
                last_ms = max(last_ms, one.last_ms)
        return cls(first.since_ms, last_ms)


class JumpWatch:
    """Compares the machine's clock with the event loop's, and remembers the progress before a jump."""

    def __init__(self) -> None:
        self._offset: float | None = None
        """The machine's clock minus the loop's at the last comparison."""
        self._settled_at = -math.inf
        self._before: tuple[float, SentSoFar, float] | None = None
        """The offset and the progress before a jump forward, and until when the clock may return."""
        self.gained: float = 0.0
        """Seconds of the jump found by the last comparison. 0 if there was none."""

    def look(self, now: float, time: float, reached: SentSoFar) -> SentSoFar | None:
        """Compare the clocks. Returns the progress before the jump if the clock has returned from
        it.
        """
        offset = now - time
        gained = 0.0 if self._offset is None else offset - self._offset
        self._offset = offset
        self.gained = gained if abs(gained) >= _JUMP_S else 0.0
        if self.gained:
            self._settled_at = time + _SETTLE_S
        if self._before is None:
            if self.gained > 0:
                self._before = offset - gained, reached, time + gained
            return None
        before, progress, until = self._before
        if abs(offset - before) < _JUMP_S:
            self._before, self._settled_at = None, time
            return progress
        if time >= until:
            self._before = None
        return None

    def is_settling(self, time: float) -> bool:
        """Whether the clock has jumped so recently that it may soon return."""
        return time < self._settled_at

    def next_look(self, time: float) -> float:
        """Seconds until the clocks have to be compared again."""
        has_jumped = self._before is not None or self.is_settling(time)
        return _SLEEP_AFTER_JUMP_S if has_jumped else _LONGEST_SLEEP_S


class PeriodicSender:
    """Sends the periodic messages of one queue, while it is this process's turn."""

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
        """Serve on this connection until it ends. A closed channel is replaced."""
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
        """Wait to become the active consumer, and send due messages until that ends."""
        self._held = {}
        arrived, over = asyncio.Event(), asyncio.Event()

        def take(delivery: Delivery) -> None:
            self._held[delivery.tag] = SentSoFar.read(delivery.body)
            arrived.set()

        # Progress that is older than a renewal may have been continued by another process.
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
        """Wait until a message is due or the progress must be renewed. Send, record, acknowledge."""
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
                continue  # sent after the gap that the earlier progress leaves
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
        """Return the progress, and whether it differs from the progress that the held messages give.

        A clock that has returned after a jump brings the progress before the jump back. Progress that is
        further ahead of the clock than machines differ is moved to the present.
        """
        reached = SentSoFar.together(found) or self._known or self._from_now()
        before = self._clock.look(now, self._time(), reached)
        if self._clock.gained:
            self._tell_clock(self._clock.gained, "the clock of this process was set")
        is_moved = False
        if not self._clock.is_settling(self._time()):
            ahead_ms = reached.last_ms - math.floor(now * 1000)
            if before is not None and before.last_ms < reached.last_ms:
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
