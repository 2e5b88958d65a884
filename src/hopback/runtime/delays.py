"""Messages that are to come later: into the broker's queues of delays, and out of them when due."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from hopback.broker.port import count_now
from hopback.errors import BrokerError, InvalidTopology, NotFound, Problem, Returned
from hopback.policy.delays import delay, read_delayed
from hopback.policy.outcome import Park
from hopback.runtime.context import Context  # noqa: TC001 - a handler's annotations are read
from hopback.topology.delays import longest_delay_ms
from hopback.topology.durations import format_duration
from hopback.topology.model import Exchange

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hopback.broker.port import Connection
    from hopback.clock import Clock
    from hopback.message import Message
    from hopback.runtime.settling import Environment
    from hopback.topology.model import Topology

__all__ = ["Cancellations", "DelayQueues", "DueMessages"]

_TRUSTED_S = 60.0
"""How long an exchange or queue of others that was found is not looked for again: a look is a round trip,
and what vanishes later is seen when the message is due."""

_MOST_TRUSTED = 10_000
"""Destinations that are remembered: routing keys may be endless, memory is not."""


class Cancellations(Protocol):
    """Which delayed messages were cancelled: `hopback.store.DelayedMessages` in SQL, or one of your own."""

    async def begin(self, message_id: str, /) -> bool:
        """The message is due: from now on it cannot be cancelled. False if it was."""


class DelayQueues:
    """Puts the messages of one application into the queues of delays, if it has declared them."""

    def __init__(self, topology: Topology, clock: Clock) -> None:
        self._clock = clock
        self._own_exchanges = {exchange.name for exchange in topology.exchanges}
        self._own_queues = {queue.name for queue in topology.queues}
        self._longest_ms = longest_delay_ms(topology)
        self._seen: dict[tuple[str, str], float] = {}
        self.connection: Connection | None = None
        """Where destinations of others are looked for; without one they are not."""

    async def wrap(self, message: Message) -> Message:
        """The message as it has to be published in order to wait.

        InvalidTopology if the application has no queues for so long a delay. Returned if the queue
        or exchange that it is meant for is not there.
        """
        now_ms = math.floor(self._clock.now() * 1000)
        if isinstance(message.delay, datetime):
            delay_ms = max(0, math.ceil(message.delay.timestamp() * 1000) - now_ms)
        else:
            delay_ms = message.delay or 0
        if delay_ms > self._longest_ms:
            if not self._longest_ms:
                expected, got = "the queues of delays: declare them with `app.delays()`", "none"
            else:
                longest = format_duration(self._longest_ms)
                expected = f"at most {longest}: ask for more with `app.delays(longest=…)`"
                got = f"{delay_ms} ms"
            raise InvalidTopology((Problem("delay", expected, got),), where="publish")
        await self._check(message.exchange, message.routing_key)
        return delay(replace(message, delay=None), delay_ms, now_ms + delay_ms)

    async def _check(self, exchange: str, routing_key: str) -> None:
        """Returned if nothing of that name is there."""
        if exchange in self._own_exchanges or (not exchange and routing_key in self._own_queues):
            return
        destination = (exchange, "" if exchange else routing_key)
        now = self._clock.now()
        if self.connection is None or self._seen.get(destination, -math.inf) > now - _TRUSTED_S:
            return
        try:
            there = await _is_there(self.connection, *destination)
        except BrokerError:
            return  # no connection to ask by: what is wrong is seen when it is due
        if not there:
            raise Returned(exchange, routing_key, 404, "not there, so nothing was delayed")
        if len(self._seen) >= _MOST_TRUSTED:
            self._seen.clear()
        self._seen[destination] = now


async def _is_there(connection: Connection, exchange: str, queue: str) -> bool:
    if not exchange:
        return await count_now(connection, queue) is not None
    channel = await connection.open_channel()
    try:
        await channel.declare_exchange(Exchange(exchange), passive=True)
    except NotFound:
        return False
    await channel.close()
    return True


class DueMessages:
    """The handler of what is due: each message goes where it was meant to go, as it was."""

    def __init__(
        self,
        send: Callable[[Message], Coroutine[Any, Any, None]],
        world: Callable[[], Environment],
    ) -> None:
        self._send = send
        self._world = world
        self.cancellations: Cancellations | None = None

    async def send_on(self, context: Context) -> Park | None:
        """Send it on, unless somebody has cancelled it."""
        delayed = read_delayed(context.delivery)
        if delayed is None:
            return Park("this message was not delayed by Hopback: no `hopback-delay` header")
        message, world = delayed.message, self._world()
        told: dict[str, Any] = {
            "queue": context.queue,
            "exchange": message.exchange,
            "routing_key": message.routing_key,
            "message_id": message.properties.message_id,
        }
        known, message_id = self.cancellations, message.properties.message_id
        if known is not None and message_id is not None and not await known.begin(message_id):
            world.bus.emit("delay.cancelled", told)
            return None
        await self._send(message)
        late = max(0.0, world.clock.now() - delayed.due_ms / 1000)
        world.bus.emit("delay.sent", told | {"late": late})
        return None
