"""A publisher that outlives its connections: every message confirmed, or its sender told.

It has a connection of its own: when the broker blocks publishers it stops reading that connection, and
acks of consumers must not wait behind it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from hopback.broker.supervise import Supervised
from hopback.errors import ChannelClosed, ConnectionFailed, ConnectionLost, DeliveryLost, Nacked
from hopback.waiting import first_of

if TYPE_CHECKING:
    from hopback.broker.port import Broker, Channel, Connection
    from hopback.broker.supervise import Backoff, OnFailure, OnState, SupervisedState
    from hopback.message import Message

__all__ = ["Publisher"]

_NACKS_IN_A_ROW = 10
"""A channel that first met a quorum queue without a leader is nacked forever on RabbitMQ ≤ 3.12.0,
though the queue has a new leader: only a new channel helps."""
_SECONDS_BETWEEN_REOPENINGS = 1.0  # a queue that goes on refusing must not cost a channel each time

_LOST = (
    "nothing was sent: the channel of the delivery that is being handled has ended, and the broker"
    " delivers it again"
)


@dataclass(slots=True, eq=False)
class _OpenChannel:
    """A channel in use, and how it fares."""

    channel: Channel
    in_flight: int = 0
    nacks: int = 0
    retired: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def enter(self) -> None:
        """A publish was handed over."""
        self.in_flight += 1
        self.idle.clear()

    def leave(self) -> None:
        """A publish has its fate."""
        self.in_flight -= 1
        if not self.in_flight:
            self.idle.set()


class Publisher:
    """Publishes on a supervised connection; an async context manager.

    Entering it waits for the first connection and raises what kept it from being made; a connection
    that is lost later is made again. `start` does not wait: for a program that has to come up before
    its broker does.
    `publish` waits at most `timeout` seconds for a usable channel. A channel error (a missing
    exchange) fails only what was in flight on that channel; the next publish finds a new one.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        name: str = "hopback publisher",
        timeout: float = 30.0,
        backoff: Backoff | None = None,
        on_state: OnState | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        self._timeout = timeout
        self._line = Supervised(
            broker,
            name,
            self._session,
            backoff=backoff,
            on_state=on_state,
            on_failure=on_failure,
        )
        self._task: asyncio.Task[None] | None = None
        self._current: asyncio.Future[_OpenChannel] = asyncio.get_running_loop().create_future()
        self._winding_down: set[asyncio.Task[None]] = set()
        self._reopened_at = float("-inf")

    @property
    def state(self) -> SupervisedState:
        """The state of its connection."""
        return self._line.state

    async def __aenter__(self) -> Self:
        self.start()
        try:
            # Return when there is a channel; raises what stood in the way at the first try.
            assert self._task is not None  # noqa: S101 - started just before
            await first_of(self._current, self._line.tried.wait(), self._task, within=self._timeout)
            if self._task.done():
                await self._task
            if not self._current.done():
                raise self._line.trouble or ConnectionFailed(self._nothing_sent())
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> None:
        """Begin to connect."""
        if self._task is None:
            self._task = asyncio.create_task(self._line.run(), name="hopback-publisher")
            self._task.add_done_callback(self._on_end)

    async def close(self) -> None:
        """End the connection; what is in flight is reported as interrupted. Safe to repeat."""
        self._line.stop()
        if self._task is None:
            self._refuse("the publisher is closed")
        else:
            await asyncio.wait({self._task})

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """There will be no other channel: callers that wait for one, now or later, are told why."""
        error = None if task.cancelled() else task.exception()
        self._refuse(str(error or "the publisher is closed"))

    def _refuse(self, why: str) -> None:
        if not self._current.done():
            self._current.set_exception(ConnectionFailed(f"nothing was sent: {why}"))
            self._current.exception()  # nobody may be waiting; that is no news

    async def publish(
        self, message: Message, *, mandatory: bool = True, ended: asyncio.Event | None = None
    ) -> None:
        """Publish and wait for the confirm.

        `ended` is set when the delivery that causes this publish is lost: DeliveryLost if that happens
        before the message is handed over.

        Returned, Nacked, ConfirmTimeout and PublishInterrupted tell this message's fate;
        ConnectionFailed says that nothing was sent within the time. Unless both `mandatory` and
        the message say so, a message that no queue wants is dropped without a word. A delay is the
        business of an application that has declared its queues: here it is a ValueError.
        """
        if message.delay is not None:
            raise ValueError("expected a message without delay: publish it by an App with delays()")
        wanted = mandatory and message.mandatory
        if ended is not None and ended.is_set():
            raise DeliveryLost(_LOST)
        at_once = self._hand_over_at_once(message, wanted)
        current, fate = at_once or await self._hand_over(message, wanted, ended)
        try:
            await fate
            current.nacks = 0
        except Nacked:
            # Give up a channel that is nacked again and again; not too often, a queue may be full.
            current.nacks += 1
            now = asyncio.get_running_loop().time()
            if (
                current.nacks >= _NACKS_IN_A_ROW
                and now - self._reopened_at >= _SECONDS_BETWEEN_REOPENINGS
            ):
                self._reopened_at = now
                self._retire(current)
            raise
        finally:
            current.leave()

    def _hand_over_at_once(
        self, message: Message, mandatory: bool
    ) -> tuple[_OpenChannel, asyncio.Future[None]] | None:
        """Send where nothing has to be waited for, which is nearly always; None if something has."""
        if not self._current.done() or self._current.exception() is not None:
            return None
        current = self._current.result()
        if current.retired.is_set() or not current.channel.has_room:
            return None
        try:
            fate = current.channel.publish(message, mandatory=mandatory)
        except (ChannelClosed, ConnectionLost):
            return None
        current.enter()
        return current, fate

    async def _hand_over(
        self, message: Message, mandatory: bool, ended: asyncio.Event | None
    ) -> tuple[_OpenChannel, asyncio.Future[None]]:
        """Send on a channel that has room. One that proves closed has sent nothing: take the next."""
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    current = await asyncio.shield(self._current)
                    try:
                        await current.channel.room()
                        if ended is not None and ended.is_set():
                            raise DeliveryLost(_LOST)
                        if not current.retired.is_set():
                            fate = current.channel.publish(message, mandatory=mandatory)
                            current.enter()
                            return current, fate
                    except (ChannelClosed, ConnectionLost):
                        self._retire(current)
        except TimeoutError:
            raise ConnectionFailed(self._nothing_sent()) from None

    def _nothing_sent(self) -> str:
        why = f"{self._line.state}: {self._line.reason}" if self._line.reason else self._line.state
        return f"nothing was sent: no usable channel within {self._timeout:g} s ({why})"

    def _retire(self, current: _OpenChannel) -> None:
        """No new publishes on this channel."""
        current.retired.set()
        if (
            self._current.done()
            and not self._current.exception()
            and self._current.result() is current
        ):
            self._current = asyncio.get_running_loop().create_future()

    async def _session(self, connection: Connection) -> None:
        """Keep one channel open for as long as the connection lasts."""
        try:
            while True:
                current = _OpenChannel(await connection.open_channel())
                self._current.set_result(current)
                await first_of(current.channel.wait_closed(), current.retired.wait())
                self._retire(current)
                # The channel is closed once everything on it has its fate.
                closing = asyncio.create_task(_close_when_idle(current))
                self._winding_down.add(closing)
                closing.add_done_callback(self._winding_down.discard)
        finally:
            if self._current.done():
                self._retire(self._current.result())
            for task in self._winding_down:
                task.cancel()


async def _close_when_idle(current: _OpenChannel) -> None:
    if current.in_flight:
        await current.idle.wait()
    await current.channel.close()
