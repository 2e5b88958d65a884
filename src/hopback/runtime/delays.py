"""Delay messages with the delay queues of the broker."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from hopback.broker.port import Connection, count_now
from hopback.durations import format_duration
from hopback.errors import (
    BrokerError,
    DeliveryLost,
    InvalidDeclaration,
    InvalidMessage,
    NotFound,
    PreconditionFailed,
    Problem,
    PublishRefused,
    Returned,
)
from hopback.policy.delays import (
    Delayed,
    delay,
    is_shortened,
    pause,
    read_delayed,
    remaining_wait_ms,
    wait_again,
    without_user,
)
from hopback.policy.outcome import Park
from hopback.runtime.context import Context  # noqa: TC001 - a handler's annotations are read
from hopback.topology.delays import (
    DUE,
    delay_level_names,
    is_from_level,
    longest_delay_ms,
    way_in,
)
from hopback.topology.model import Exchange, Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hopback.clock import Clock
    from hopback.durations import Duration
    from hopback.message import Delivery, Message
    from hopback.runtime.service import Service

_SHORTEST_LEVEL_MS = 1000
"""The shortest delay queue in milliseconds. Shorter delays are caused by clock differences and are
waited for in the process.
"""

_PAUSE_MS = 1000
"""Milliseconds to wait before a message that is repeatedly early is delayed again."""

_DISTRUST_S = 600.0
"""Seconds for which the clock is used for all messages after a delay was shortened."""

_SHORTENED = (
    "The broker lets delayed messages go before their time: a policy sets `message-ttl` on the queues"
    " `hopback.delay.level-NN`, or the clocks of its nodes differ or were set. Until the waits are right"
    " again the clock of this process decides when messages are due. `hopback doctor` names the policy."
)

_TRUSTED_S = 60.0
"""Seconds for which a destination is assumed to exist after it was checked. If it is deleted later,
this is noticed when the message is due.
"""

_MOST_TRUSTED = 10_000
"""Maximum number of cached destinations."""


class Cancellations(Protocol):
    """The interface for stores of cancelled messages, such as `hopback.store.DelayedMessages`."""

    async def begin(self, message_id: str, /) -> bool:
        """Called when a message is due.

        Returns False if the message was cancelled. Once this has returned True, it cannot be
        cancelled any more.
        """


class DelayQueues:
    """Publishes messages to the delay queues."""

    def __init__(
        self, topology: Callable[[], Topology], clock: Clock, *, longest: Duration | None = None
    ) -> None:
        self._topology = topology
        self._longest = longest
        self._clock = clock
        self._read: Topology | None = None
        self._own_exchanges: set[str] = set()
        self._own_queues: set[str] = set()
        self._longest_ms = 0
        self._seen: dict[tuple[str, str], float] = {}
        self.connection: Connection | None = None
        """The connection for checking destinations. If None, they are not checked."""

    def _read_topology(self) -> None:
        """Read the topology again if an application was added or removed."""
        topology = self._topology()
        if topology is self._read:
            return
        self._read = topology
        self._own_exchanges = {exchange.name for exchange in topology.exchanges}
        self._own_queues = {queue.name for queue in topology.queues}
        self._longest_ms = longest_delay_ms(topology)

    async def wrap(self, message: Message) -> Message:
        """Wrap a message so that it can be published to a delay queue.

        Raises:
            InvalidDeclaration: If the delay is longer than the delay queues allow.
            Returned: If the destination does not exist.
        """
        self._read_topology()
        now_ms = math.floor(self._clock.now() * 1000)
        if isinstance(message.delay, datetime):
            delay_ms = max(0, math.ceil(message.delay.timestamp() * 1000) - now_ms)
        else:
            delay_ms = message.delay or 0
        if delay_ms > self._longest_ms:
            raise self._error_for(message.delay)
        await self._check(message.exchange, message.routing_key)
        by_clock = isinstance(message.delay, datetime)
        plain = replace(message, delay=None)
        return delay(plain, delay_ms, now_ms + delay_ms, by_clock=by_clock)

    def _error_for(self, wanted: int | datetime | None) -> InvalidDeclaration:
        is_time = isinstance(wanted, datetime)
        got = wanted.isoformat() if isinstance(wanted, datetime) else format_duration(wanted or 0)
        if not self._longest_ms:
            expected = "none, because the application has no queues for delays"
            remedy = "Declare them with `app.delays()`"
        else:
            longest = self._longest
            if not isinstance(longest, str):
                longest = format_duration(self._longest_ms)
            expected = f"at most {longest}, the longest of `app.delays()`"
            remedy = "Raise it with `app.delays(longest=…)`"
        problem = Problem("at" if is_time else "delay", expected, f"{got}. {remedy}")
        return InvalidDeclaration((problem,), where="publish")

    async def _check(self, exchange: str, routing_key: str) -> None:
        """Raise Returned if the destination does not exist."""
        if exchange in self._own_exchanges or (not exchange and routing_key in self._own_queues):
            return
        destination = (exchange, "" if exchange else routing_key)
        now = self._clock.now()
        if self.connection is None or self._seen.get(destination, -math.inf) > now - _TRUSTED_S:
            return
        try:
            there = await _is_there(self.connection, *destination)
        except BrokerError:
            # Not connected. A missing destination is reported when the message is due.
            return
        if not there:
            raise Returned(exchange, routing_key, 404, "missing, so the message was not delayed")
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
    """The handler that forwards due messages to their destination.

    Messages that arrive early are delayed again. This is checked before cancellations, because a
    message that is about to be sent can no longer be cancelled.
    """

    def __init__(
        self,
        send: Callable[[Message], Coroutine[Any, Any, None]],
        service: Callable[[], Service],
    ) -> None:
        self._send = send
        self._service = service
        self._distrusted_until = -math.inf
        """Time until which the delay queues are not trusted."""
        self.cancellations: Cancellations | None = None

    async def send_on(self, context: Context) -> Park | None:
        """Forward a message to its destination, unless it arrived early or was cancelled."""
        delayed = read_delayed(context.delivery)
        if delayed is None:
            return Park("this message was not delayed by Hopback: no `hopback-delay` header")
        message, environment = delayed.message, self._service().environment
        told: dict[str, Any] = {
            "queue": context.queue,
            "exchange": message.exchange,
            "routing_key": message.routing_key,
            "message_id": message.properties.message_id,
        }
        delayed = self._check(context.delivery, delayed)
        now_ms = math.floor(environment.clock.now() * 1000)
        left_ms = remaining_wait_ms(context.delivery, delayed, now_ms)
        if left_ms >= _SHORTEST_LEVEL_MS:
            try:
                await self._send_back(context, without_user(delayed), left_ms, told)
            except InvalidMessage as error:
                return Park(f"early, and it cannot wait again: {error}")
            return None
        if left_ms:
            await asyncio.sleep(left_ms / 1000)
        known, message_id = self.cancellations, message.properties.message_id
        if known is not None and message_id is not None and not await known.begin(message_id):
            environment.bus.emit("delay.cancelled", told)
            return None
        try:
            await self._send(message)
        except PublishRefused as error:
            # The broker rejects a message if its user is not the user of the connection.
            if message.properties.user_id is None or not isinstance(
                error.__cause__, PreconditionFailed
            ):
                raise
            await self._send(without_user(delayed).message)
        late = max(0.0, environment.clock.now() - delayed.due_ms / 1000)
        environment.bus.emit("delay.sent", told | {"late": late})
        return None

    def _check(self, delivery: Delivery, delayed: Delayed) -> Delayed:
        """Check the delay against the clock if the broker may shorten it."""
        now = asyncio.get_running_loop().time()
        if delayed.by_clock or not is_from_level(delivery.exchange):
            return delayed
        if is_shortened(delivery):
            if now >= self._distrusted_until:
                warning = {"rule": "delay-shortened", "place": f"queue:{DUE}", "text": _SHORTENED}
                self._service().environment.bus.emit("topology.warning", warning)
            self._distrusted_until = now + _DISTRUST_S
        return replace(delayed, by_clock=True) if now < self._distrusted_until else delayed

    async def _send_back(
        self, context: Context, delayed: Delayed, left_ms: int, told: dict[str, Any]
    ) -> None:
        """Send an early message back for the rest of its delay.

        Missing delay queues are restored first. If the message has already arrived early once, it
        waits in a retry queue for a second instead. Otherwise it would loop if the delay queues
        cannot be restored.

        Raises InvalidMessage if there is no room for another delay in its headers.
        """
        service = self._service()
        now_ms = math.floor(service.environment.clock.now() * 1000)
        is_early = is_from_level(context.delivery.exchange)
        if is_early:
            delayed = replace(delayed, laps=delayed.laps + 1)
            service.environment.bus.emit(
                "delay.early", told | {"left": left_ms / 1000, "laps": delayed.laps}
            )
        elif 0 <= now_ms - delayed.paused_at_ms < _PAUSE_MS:
            # The message did not wait in the retry queue either.
            await asyncio.sleep((_PAUSE_MS - now_ms + delayed.paused_at_ms) / 1000)
        troubles = await service.upkeep.look()
        highest, _ = way_in(left_ms)
        is_usable = not troubles.keys() & {DUE, *delay_level_names(highest)}
        if is_usable and (delayed.laps <= 1 or not is_early):
            try:
                return await self._send(wait_again(delayed, left_ms))
            except (DeliveryLost, InvalidMessage):
                raise
            except BrokerError:
                is_usable = False
        tiers = context.plan.tiers
        fitting = [tier for tier in tiers if tier.delay_ms <= left_ms and not is_usable]
        tier = max(fitting, key=lambda one: one.delay_ms, default=tiers[0])
        paused = replace(delayed, paused_ms=max(0, left_ms - tier.delay_ms), paused_at_ms=now_ms)
        route = tier.routes[0]
        failures = 0
        while True:
            try:
                return await self._send(pause(paused, route.exchange, route.routing_key))
            except (DeliveryLost, InvalidMessage):
                raise
            except BrokerError:
                # Hold the message. A retry would lose the information that it is not due yet.
                failures += 1
                backoff = service.environment.backoff
                await asyncio.sleep(backoff.delay(failures, service.environment.chance()))
