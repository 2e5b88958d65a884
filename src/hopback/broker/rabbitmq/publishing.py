"""The publishing half of a channel: frames out, confirms in, each sender its own fate."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from hopback.errors import ConfirmTimeout, Nacked, PublishInterrupted, Returned
from hopback.wire.confirms import Confirms, InFlight
from hopback.wire.frames import METHOD, frame
from hopback.wire.methods import METHODS, encode_arguments
from hopback.wire.properties import encode_properties

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.errors import BrokerError
    from hopback.message import Message, Properties
    from hopback.wire.events import ReturnedMessage, SettlementReceived
    from hopback.wire.transport import Wire

__all__ = ["Publishing"]

_PUBLISH = METHODS["basic.publish"]
_PERSISTENT = 2  # the delivery mode of messages that survive a restart of the broker
# Few applications publish to more; producers with endless keys must not fill the memory.
_CACHED_ROUTES = 512
_ABANDONED_WINDOWS = 4
"""A channel on which more than so many windows were never answered is closed: they are kept in
memory until it ends."""


class Publishing:
    """What one channel publishes.

    `window` publishes may be in flight; `room` waits for a place. After `timeout` seconds without
    an answer the sender gets ConfirmTimeout; `give_up` ends a channel that has become useless.
    """

    def __init__(
        self,
        number: int,
        wire: Wire,
        window: int,
        timeout: float,
        give_up: Callable[[], object],
    ) -> None:
        self._number = number
        self._wire = wire
        self._window = window
        self._timeout = timeout
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._confirms: Confirms[asyncio.Future[None]] = Confirms()
        self._routes: dict[tuple[str, str, bool], bytes] = {}
        self._plain: tuple[Properties | None, bytes] = (None, b"")
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.blocked: bool = False

    @property
    def in_flight(self) -> int:
        """How many publishes wait for their confirm."""
        return self._confirms.live

    # --- out

    def publish(self, message: Message, mandatory: bool) -> asyncio.Future[None]:
        """Queue a message; its fate."""
        properties = message.properties
        if properties is self._plain[0] and not properties.headers:
            raw = self._plain[1]
        else:
            raw = encode_properties(properties, default_mode=_PERSISTENT)
            if not properties.headers:
                self._plain = (properties, raw)
        return self.publish_raw(message.exchange, message.routing_key, raw, message.body, mandatory)

    def publish_raw(
        self,
        exchange: str,
        routing_key: str,
        properties: bytes,
        body: bytes,
        mandatory: bool = True,
    ) -> asyncio.Future[None]:
        """Queue a message whose properties are encoded already; its fate."""
        route = self._routes.get((exchange, routing_key, mandatory))
        if route is None:
            # The basic.publish frame, made once for each route.
            arguments = {"exchange": exchange, "routing_key": routing_key, "mandatory": mandatory}
            route = frame(METHOD, self._number, encode_arguments(_PUBLISH, arguments))
            if len(self._routes) >= _CACHED_ROUTES:
                self._routes.clear()
            self._routes[exchange, routing_key, mandatory] = route
        wire = self._wire
        wire.connection.content(self._number, route, properties, body)
        fate: asyncio.Future[None] = self._loop.create_future()
        deadline = self._loop.time() + self._timeout
        self._confirms.add(
            InFlight(fate, exchange, routing_key, properties, body, mandatory, deadline)
        )
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)
        wire.wake()
        return fate

    # --- back

    def on_confirm(self, event: SettlementReceived) -> None:
        """The broker confirmed or refused one or several."""
        positive = event.name == "basic.ack"
        for publish in self._confirms.settle(event.tag, multiple=event.multiple):
            fate = publish.ticket
            if fate.done():
                continue
            if positive and publish.returned is None:
                fate.set_result(None)
            else:
                fate.set_exception(_refusal(publish))
        if self._waiters:
            self._admit()

    def on_return(self, message: ReturnedMessage) -> bool:
        """The broker gave one back; False if it is none of ours."""
        return self._confirms.take_back(message) is not None

    def end(self, error: BrokerError | None) -> None:
        """The channel is gone: nobody will be answered any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for publish in self._confirms.end():
            if not publish.ticket.done():
                why = error or "the channel was closed"
                interrupted = PublishInterrupted(
                    f"not answered: exchange {publish.exchange!r}, routing key {publish.routing_key!r}: {why}"
                )
                interrupted.__cause__ = error
                publish.ticket.set_exception(interrupted)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def block(self, blocked: bool) -> None:
        """The broker reads nothing more from this connection, or does again.

        What it has not read it will read when its alarm is over: sent again meanwhile it would be
        stored twice. So no time runs while it is blocked, and from its end all of it again.
        """
        self.blocked = blocked
        if not blocked:
            deadline = self._loop.time() + self._timeout
            self._confirms.postpone(deadline)
            if self._timer is None and self._confirms.live:
                self._timer = self._loop.call_at(deadline, self._expire)
            self._admit()

    def _expire(self) -> None:
        self._timer = None
        if self.blocked:
            return
        for publish in self._confirms.expire(self._loop.time()):
            if not publish.ticket.done():
                publish.ticket.set_exception(
                    ConfirmTimeout(
                        f"no confirm within {self._timeout:g} s for exchange {publish.exchange!r}, "
                        f"routing key {publish.routing_key!r}"
                    )
                )
        if self._confirms.abandoned > _ABANDONED_WINDOWS * self._window:
            self._give_up()
        oldest = next((p for p in self._confirms.in_flight.values() if not p.expired), None)
        if oldest is not None:
            self._timer = self._loop.call_at(oldest.deadline, self._expire)
        self._admit()

    # --- room

    @property
    def has_room(self) -> bool:
        """Whether a publish may be started now."""
        return self._confirms.live < self._window and not self.blocked and self._wire.writable

    async def room(self, closed: Callable[[], bool]) -> None:
        """Wait for a place in the window; `closed` tells when there is nothing to wait for."""
        while not self.has_room and not closed():
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except BaseException:
                with contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)
                raise

    def admit(self) -> None:
        """Something changed: let those who wait look again."""
        self._admit()

    def _admit(self) -> None:
        """Wake as many as there are places; look again once they have had their turn to use them."""
        if not self._waiters or not self.has_room:
            return
        for _ in range(min(len(self._waiters), self._window - self._confirms.live)):
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
        if self._waiters:
            self._loop.call_soon(self._admit)


def _refusal(publish: InFlight[asyncio.Future[None]]) -> Returned | Nacked:
    back = publish.returned
    if back is not None:
        return Returned(publish.exchange, publish.routing_key, back.code, back.text)
    where = f"exchange {publish.exchange!r}, routing key {publish.routing_key!r}"
    return Nacked(f"refused (nack) by the broker: {where}")
