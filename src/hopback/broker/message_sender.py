"""A publisher that survives lost connections. Each publish is confirmed or raises.

The publisher has a separate connection. A broker that blocks publishers stops reading from their
connection, and consumer acks must not wait behind it.

A refused publish (404, 403, 406) closes its channel. Publishes that cannot be refused, as far as
this connection knows (`proven_routes`), share a channel and are pipelined. All others use scratch
channels with one publish in flight each. The shared channel may still be closed, because an
exchange was deleted or a permission revoked. Then its publishes are sent again on scratch channels,
and only the refused one fails.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from hopback.broker.proven_routes import ProvenRoutes
from hopback.broker.reply_publisher import ReplyPublisher, is_direct_reply
from hopback.broker.sendable import check_message, is_plain, sole_failure
from hopback.broker.supervise import Backoff, OnFailure, OnState, Supervised, SupervisedState
from hopback.durations import Duration, format_duration, read_seconds
from hopback.errors import (
    ChannelClosed,
    ConnectionFailed,
    ConnectionLost,
    DeliveryLost,
    Nacked,
    PublishInterrupted,
    Returned,
)
from hopback.message import require_message
from hopback.waiting import first_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from hopback.broker.port import Broker, Channel, Connection
    from hopback.message import Message

_NACKS_IN_A_ROW = 10
"""Nacks in a row before the channel is replaced.

Up to RabbitMQ 3.12.0, a channel that published to a quorum queue without a leader is nacked
forever, even after the queue has a new leader. Only a new channel helps.
"""
# Seconds. Limits the channels spent on a queue that keeps rejecting publishes.
_SECONDS_BETWEEN_REOPENINGS = 1.0
_SCRATCH_CHANNELS = 64
"""Scratch channels in use at the same time. Further publishes wait for a free one. RabbitMQ allows
2,047 channels per connection.
"""
_IDLE_CHANNELS = 4
"""Idle scratch channels that stay open. Those beyond it close after `_IDLE_S`."""
_IDLE_S = 5.0
"""Seconds. A steady flow of new routes uses the same channels again, a burst leaves few of them behind."""

_LOST = (
    "message not sent: the channel of the delivery that is being handled has ended, and the broker"
    " delivers it again"
)


@dataclass(slots=True, eq=False)
class _PublishSession:
    """One publishing connection with its proven routes and idle scratch channels."""

    connection: Connection
    proven: ProvenRoutes
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_SCRATCH_CHANNELS))
    idle: list[tuple[float, Channel]] = field(default_factory=list)
    """Idle scratch channels and the time each became idle. The last one is used next."""

    async def scratch(self) -> Channel:
        return self.idle.pop()[1] if self.idle else await self.connection.open_channel()

    def take_back(self, channel: Channel) -> Channel | None:
        """Keep an idle scratch channel. Return a channel to close if one has been idle too long."""
        now = asyncio.get_running_loop().time()
        self.idle.append((now, channel))
        if len(self.idle) > _IDLE_CHANNELS and now - self.idle[0][0] > _IDLE_S:
            return self.idle.pop(0)[1]
        return None


@dataclass(slots=True, eq=False)
class _OpenChannel:
    """The shared channel of a session."""

    channel: Channel
    session: _PublishSession
    in_flight: int = 0
    nacks: int = 0
    retired: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a retired channel has no publish in flight any more."""

    def leave(self) -> None:
        """A publish has its fate."""
        self.in_flight -= 1
        if not self.in_flight and self.retired.is_set():
            self.idle.set()


class MessageSender:
    """Publishes on a supervised connection. Use it as an async context manager.

    Entering the context waits for the first connection and raises the error if it fails. A
    connection lost later is opened again. `start` does not wait, for a program that must start
    before its broker. `send` waits at most `timeout` for a usable channel. A publish
    that the broker refuses (a missing exchange, a missing permission, a body that is too large)
    fails alone. `keyless` names exchanges that are not topic exchanges, so their routing keys need
    no separate proof. Direct replies use another connection, opened with the first reply. A
    publisher that `sends_replies` sends them on this one.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        name: str = "hopback publisher",
        timeout: Duration = 30.0,
        backoff: Backoff | None = None,
        on_state: OnState | None = None,
        on_failure: OnFailure | None = None,
        keyless: Collection[str] = (),
        sends_replies: bool = False,
    ) -> None:
        self._timeout = read_seconds(timeout, "timeout", where="Publisher", zero=False)
        self._keyless = keyless
        self._replies: ReplyPublisher | None = None
        if not sends_replies:
            self._replies = ReplyPublisher(
                MessageSender(
                    broker,
                    name=f"{name}, replies",
                    timeout=self._timeout,
                    backoff=backoff,
                    on_failure=on_failure,
                    sends_replies=True,
                )
            )
        self._line = Supervised(
            broker,
            name,
            self._session,
            backoff=backoff,
            on_state=on_state,
            on_failure=on_failure,
        )
        self._task: asyncio.Task[None] | None = None
        self._current: asyncio.Future[_OpenChannel] | None = None
        self._shared: _OpenChannel | None = None
        """The result of `_open_channel` while it is usable."""
        self._winding_down: set[asyncio.Task[None]] = set()
        self._reopened_at = float("-inf")

    @property
    def _open_channel(self) -> asyncio.Future[_OpenChannel]:
        """The shared channel, or the wait for it. It belongs to the event loop of its first use."""
        if self._current is None:
            self._current = asyncio.get_running_loop().create_future()
        return self._current

    @property
    def state(self) -> SupervisedState:
        """The state of its connection."""
        return self._line.state

    async def __aenter__(self) -> Self:
        self.start()
        try:
            # Wait for a channel, or raise the error of the first attempt.
            assert self._task is not None  # noqa: S101 - started just before
            await first_of(
                self._open_channel, self._line.tried.wait(), self._task, within=self._timeout
            )
            if self._task.done():
                await self._task
            if not self._open_channel.done():
                raise self._line.trouble or ConnectionFailed(self._explain_timeout())
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
        """Close the connection. Publishes in flight raise PublishInterrupted. Safe to repeat."""
        self._line.stop()
        if self._replies is not None:
            await self._replies.close()
        if self._task is None:
            self._refuse("the publisher is closed")
        else:
            await asyncio.wait({self._task})

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Raise the reason to all current and later callers that wait for a channel."""
        error = None if task.cancelled() else task.exception()
        self._refuse(str(error or "the publisher is closed"))

    def _refuse(self, why: str) -> None:
        if not self._open_channel.done():
            self._open_channel.set_exception(ConnectionFailed(f"message not sent: {why}"))
            self._open_channel.exception()  # mark as retrieved, because no caller may be waiting

    async def send(
        self, message: Message, *, mandatory: bool = True, ended: asyncio.Event | None = None
    ) -> None:
        """Publish and wait for the confirm.

        `ended` is set when the delivery that causes this publish is lost. If that happens before
        the message is sent, DeliveryLost is raised.

        Returned, Nacked, PublishRefused, ConfirmTimeout and PublishInterrupted report this message's outcome.
        ConnectionFailed means that the message was not sent within the time limit, InvalidMessage
        that no broker would accept it. An unroutable message is returned only if both `mandatory`
        and `message.mandatory` are set. Otherwise the broker drops it silently. A message with a
        delay raises ValueError, because delays need the queues declared by an App.
        """
        if require_message(message).delay is not None:
            delay = message.delay
            found = format_duration(delay) if isinstance(delay, int) else str(delay)
            expected = "delay: expected none, because delays need the queues of `app.delays()`"
            remedy = "Publish by that App while it runs, or by its outbox"
            raise ValueError(f"{expected}, got {found}. {remedy}")
        wanted = mandatory and message.mandatory
        may_share = is_plain(message.properties) or check_message(message)
        if ended is not None and ended.is_set():
            raise DeliveryLost(_LOST)
        if self._replies is not None and is_direct_reply(message):
            await self._replies.send(message, ended)
            return
        handed = self._hand_over_at_once(message, wanted) if may_share else None
        while True:
            if handed is None:
                handed = await self._hand_over(message, wanted, may_share, ended)
                if handed is None:
                    return  # published apart
            current, fate = handed
            try:
                await fate
                current.nacks = 0
                return
            except Nacked:
                self._count_nack(current)
                raise
            except PublishInterrupted as error:
                # The broker closed the shared channel although its routes were proven: an exchange
                # or a permission is gone. Every interrupted publish now uses a scratch channel.
                if not isinstance(error.__cause__, ChannelClosed):
                    raise
                current.session.proven.clear()
                handed = None
            finally:
                current.leave()

    def _count_nack(self, current: _OpenChannel) -> None:
        """Replace a channel after repeated nacks, but not too often, because the queue may be
        full.
        """
        current.nacks += 1
        now = asyncio.get_running_loop().time()
        if (
            current.nacks >= _NACKS_IN_A_ROW
            and now - self._reopened_at >= _SECONDS_BETWEEN_REOPENINGS
        ):
            self._reopened_at = now
            self._retire(current)

    def _hand_over_at_once(
        self, message: Message, mandatory: bool
    ) -> tuple[_OpenChannel, asyncio.Future[None]] | None:
        """Send on the shared channel if this is possible without waiting, which is the usual
        case.
        """
        current = self._shared
        if (
            current is None
            or not current.session.proven.cover(message)
            or not current.channel.has_room
        ):
            return None
        try:
            fate = current.channel.publish(message, mandatory=mandatory)
        except (ChannelClosed, ConnectionLost):
            return None
        current.in_flight += 1
        return current, fate

    async def _hand_over(
        self, message: Message, mandatory: bool, may_share: bool, ended: asyncio.Event | None
    ) -> tuple[_OpenChannel, asyncio.Future[None]] | None:
        """Send on a channel that has room. Return None if the message used a scratch channel.

        A channel that turns out to be closed has not sent the message, so the next one is used.
        """
        if await self._apart_at_once(message, mandatory, ended):
            return None
        try:
            async with asyncio.timeout(self._timeout) as limit:
                while True:
                    current = await asyncio.shield(self._open_channel)
                    session = current.session
                    try:
                        if not may_share:
                            await self._apart(session, message, mandatory, ended, limit)
                            return None
                        if not session.proven.cover(message):
                            async with session.proven.turn(message) as is_due:
                                if is_due:
                                    await self._apart(session, message, mandatory, ended, limit)
                                    return None
                            continue
                        await current.channel.room()
                        if ended is not None and ended.is_set():
                            raise DeliveryLost(_LOST)
                        if not current.retired.is_set() and session.proven.cover(message):
                            fate = current.channel.publish(message, mandatory=mandatory)
                            current.in_flight += 1
                            return current, fate
                    except (ChannelClosed, ConnectionLost):
                        self._retire(current)
        except TimeoutError:
            if not limit.expired():
                raise
            raise ConnectionFailed(self._explain_timeout()) from None

    async def _apart_at_once(
        self, message: Message, mandatory: bool, ended: asyncio.Event | None
    ) -> bool:
        """Publish on a scratch channel if this is possible without waiting. Return False if not
        sent.

        Most publishes with a routing key that is used only once take this path.
        """
        if self._shared is None:
            return False
        session = self._shared.session
        proven = session.proven
        if (
            not session.idle
            or not session.idle[-1][1].has_room
            or session.slots.locked()
            or proven.cover(message)
        ):
            return False
        route = proven.begin(message)
        if route is None:
            return False
        try:
            await self._apart(session, message, mandatory, ended)
        except (ChannelClosed, ConnectionLost):
            return False
        finally:
            proven.end(route)
        return True

    async def _apart(
        self,
        session: _PublishSession,
        message: Message,
        mandatory: bool,
        ended: asyncio.Event | None,
        limit: asyncio.Timeout | None = None,
    ) -> None:
        """Publish on a scratch channel. `limit` stops after sending, since the confirm has its own
        limit.
        """
        async with session.slots:
            channel = await session.scratch()
            used: Channel | None = channel
            try:
                await channel.room()
                if ended is not None and ended.is_set():
                    used = session.take_back(channel)
                    raise DeliveryLost(_LOST)
                fate = channel.publish(message, mandatory=mandatory)
                if limit is not None:
                    limit.reschedule(None)
                await fate
                session.proven.add(message)
                used = session.take_back(channel)
            except Returned:
                session.proven.add(message)
                used = session.take_back(channel)
                raise
            except Nacked:
                session.proven.add(message)
                raise
            except PublishInterrupted as error:
                raise sole_failure(message, error) from error.__cause__
            finally:
                if used is not None:
                    self._wind_down(asyncio.create_task(used.close()))

    def _explain_timeout(self) -> str:
        why = f"{self._line.state}: {self._line.reason}" if self._line.reason else self._line.state
        return f"message not sent: no usable channel within {self._timeout:g} s ({why})"

    def _retire(self, current: _OpenChannel) -> None:
        """No new publishes on this channel."""
        current.retired.set()
        if self._shared is current:
            self._shared = None
            self._current = None

    def _wind_down(self, closing: asyncio.Task[None]) -> None:
        self._winding_down.add(closing)
        closing.add_done_callback(self._winding_down.discard)

    async def _session(self, connection: Connection) -> None:
        """Keep one shared channel open for as long as the connection lasts."""
        session = _PublishSession(connection, ProvenRoutes(self._keyless))
        try:
            while True:
                current = _OpenChannel(await connection.open_channel(), session)
                self._shared = current
                self._open_channel.set_result(current)
                await first_of(current.channel.wait_closed(), current.retired.wait())
                self._retire(current)
                # Close the channel once all its publishes have an outcome.
                self._wind_down(asyncio.create_task(_close_when_idle(current)))
        finally:
            if self._shared is not None:
                self._retire(self._shared)
            for task in self._winding_down:
                task.cancel()


async def _close_when_idle(current: _OpenChannel) -> None:
    if current.in_flight:
        await current.idle.wait()
    await current.channel.close()
