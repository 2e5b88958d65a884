"""Periodic messages, sent by one of any number of processes.

What was sent is written down in a queue with a single active consumer, as one message: "all that was due
after `since` and up to `last` has been sent". The process that holds that message sends what is due, each
confirmed, then publishes its successor, and then acknowledges it. So a crash at any moment sends
something twice at worst, with the same message id, and never leaves anything out.

Every process begins by publishing what it knows itself. There may be several such messages for a moment;
they are put together by what they cover, and where they leave a gap the earlier one counts.
"""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hopback.errors import BrokerError, InvalidTopology, Problem
from hopback.message import Message, Properties
from hopback.policy.periodic import Every, due_id, due_now, parse_cron
from hopback.runtime.context import compose
from hopback.topology.delays import schedule_queue_name
from hopback.topology.durations import parse_wait_ms
from hopback.waiting import first_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from typing import Any

    from hopback.broker.port import Channel, Connection
    from hopback.message import Delivery
    from hopback.policy.periodic import Missed, Schedule
    from hopback.runtime.settling import Environment
    from hopback.topology.durations import Duration

__all__ = ["Periodic", "PeriodicMessage", "PeriodicSender", "SentSoFar", "read_schedule"]

_RENEW_S = 300.0
"""How long the message is held at most: far less than the 30 minutes after which RabbitMQ takes a delivery
that is not acknowledged for that of a dead consumer."""

_LONGEST_SLEEP_S = 60.0
"""The machine's clock may be set meanwhile: so often it is looked at."""


@dataclass(frozen=True, slots=True)
class PeriodicMessage:
    """What the handler of a periodic message gets: its name, and when it was due."""

    name: str
    due: datetime


@dataclass(frozen=True, slots=True)
class Periodic:
    """What is declared of a periodic message: its queue, when it is due, and what was missed."""

    queue: str
    schedule: Schedule
    missed: Missed


def read_schedule(
    period: Duration | None, cron: str | None, timezone: str, *, where: str
) -> Schedule:
    """When it is due; InvalidTopology says what is wrong with how it was said."""
    if (period is None) == (cron is None):
        got = "neither" if period is None else f"both: {period!r} and {cron!r}"
        found = Problem("period", 'a period like "5m", or a line like cron="0 3 * * *"', got)
        raise InvalidTopology((found,), where=where)
    try:
        return (
            Every(parse_wait_ms(period)) if period is not None else parse_cron(cron or "", timezone)
        )
    except ValueError as error:
        expected, _, got = str(error).removeprefix("expected ").rpartition(", got ")
        option = "period" if cron is None else "cron"
        raise InvalidTopology((Problem(option, expected, got),), where=where) from None


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
        """What `write` wrote; None if it is none."""
        try:
            found = json.loads(body)
            since_ms, last_ms = found["since"], found["last"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        whole = type(since_ms) is int and type(last_ms) is int and 0 <= since_ms <= last_ms
        return cls(since_ms, last_ms) if whole else None

    @classmethod
    def together(cls, several: Iterable[SentSoFar]) -> SentSoFar | None:
        """What is covered from the earliest on without a gap; None of none."""
        first, *others = sorted(several, key=lambda one: one.since_ms) or (None,)
        if first is None:
            return None
        last_ms = first.last_ms
        for one in others:
            if one.since_ms <= last_ms:
                last_ms = max(last_ms, one.last_ms)
        return cls(first.since_ms, last_ms)


class PeriodicSender:
    """Sends the periodic messages of one queue, while it is this process's turn."""

    def __init__(
        self,
        periodic: Periodic,
        publish: Callable[[Message], Coroutine[Any, Any, None]],
        world: Environment,
    ) -> None:
        self.queue: str = schedule_queue_name(periodic.queue)
        self._periodic = periodic
        self._publish = publish
        self._world = world
        now_ms = math.floor(world.clock.now() * 1000)
        self._known = SentSoFar(now_ms, now_ms)
        self._held: dict[int, SentSoFar | None] = {}

    async def serve(
        self, connection: Connection, usable: Callable[[str, Connection, float], Awaitable[str]]
    ) -> None:
        """Be there on this connection until it ends; a channel that ends is replaced."""
        failures, lost_at, said = 0, float("-inf"), None
        time = asyncio.get_running_loop().time
        while True:
            began = time()
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
                self._world.bus.emit("consumer.lost", lost)
            said = trouble
            lost_at = time()
            failures = 1 if lost_at - began >= self._world.backoff.stable else failures + 1
            await asyncio.sleep(self._world.backoff.delay(failures, self._world.chance()))

    async def _attend(self, channel: Channel) -> None:
        """Wait for our turn, and do what is due for as long as it lasts; returns when it is over."""
        self._held = {}
        arrived, over = asyncio.Event(), asyncio.Event()

        def take(delivery: Delivery) -> None:
            self._held[delivery.tag] = SentSoFar.read(delivery.body)
            arrived.set()

        await self._write(self._known)
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
        """Wait until something is due or has to be renewed; send it, write it down, acknowledge."""
        clock, periodic = self._world.clock, self._periodic
        renew_at = clock.now() + _RENEW_S
        while True:
            found = [one for one in self._held.values() if one is not None]
            self._known = reached = SentSoFar.together(found) or self._known
            now = clock.now()
            due, last_ms = due_now(
                periodic.schedule, reached.last_ms, math.floor(now * 1000), periodic.missed
            )
            is_clear = len(self._held) == len(found) == 1
            if due or last_ms > reached.last_ms or not is_clear or now >= renew_at:
                break
            next_s = periodic.schedule.after(reached.last_ms) / 1000
            wait = min(min(next_s, renew_at) - now, _LONGEST_SLEEP_S)
            arrived.clear()
            await first_of(arrived.wait(), over.wait(), within=max(wait, 0.0))
            if over.is_set():
                return
        tags = tuple(self._held)
        for due_ms in due:
            message_id = due_id(periodic.queue, due_ms)
            payload = PeriodicMessage(periodic.queue, datetime.fromtimestamp(due_ms / 1000, UTC))
            await self._publish(compose("", periodic.queue, payload, message_id=message_id))
            late = max(0.0, clock.now() - due_ms / 1000)
            self._world.bus.emit(
                "periodic.sent", {"queue": periodic.queue, "message_id": message_id, "late": late}
            )
        self._known = SentSoFar(reached.since_ms, max(last_ms, reached.last_ms))
        await self._write(self._known)
        for tag in tags:
            channel.ack(tag)
            self._held.pop(tag, None)

    async def _write(self, reached: SentSoFar) -> None:
        properties = Properties(content_type="application/json", delivery_mode=2)
        await self._publish(Message("", self.queue, reached.write(), properties))
