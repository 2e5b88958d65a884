"""A publisher that reconnects automatically.

It has its own connection, because a broker that blocks publishers stops reading from their
connections, and acks of consumers would be blocked as well.

A publish that is refused (404, 403, 406) closes its channel. Routes that worked before share a
channel (see `proven_routes`). Other messages are published on scratch channels, one at a time. If
the shared channel is closed anyway, for example because an exchange was deleted, its messages are
published again on scratch channels and only the refused one fails.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from hopback.broker.proven_routes import ProvenRoutes
from hopback.broker.reply_publisher import (
    ReplyPublisher,
    is_direct_reply,
    is_forged_address,
)
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
"""Number of consecutive nacks after which the channel is replaced.

Up to RabbitMQ 3.12.0, a channel that published to a quorum queue without a leader is nacked
forever. Only a new channel helps.
"""
# Limits how often channels are replaced if a queue keeps rejecting messages.
_SECONDS_BETWEEN_REOPENINGS = 1.0
_SCRATCH_CHANNELS = 64
"""Maximum number of scratch channels. RabbitMQ allows 2,047 channels per connection by default."""
_IDLE_CHANNELS = 4
"""Number of idle scratch channels that are kept open. When another one becomes idle, one that has been
idle for `_IDLE_S` is closed.
"""
_IDLE_S = 5.0
"""Seconds for which an idle scratch channel is kept open in any case."""

_NOT_STARTED = (
    "message not sent: the Publisher is not connected. Use `async with Publisher(…)`, or call `start()`"
    " first"
)
_LOST = (
    "message not sent: the channel of the delivery that is being handled has ended, and the broker"
    " delivers it again"
)


@dataclass(slots=True, eq=False)
class _PublishSession:
    """A connection, its proven routes and its idle scratch channels."""

    connection: Connection
    proven: ProvenRoutes
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_SCRATCH_CHANNELS))
    idle: list[tuple[float, Channel]] = field(default_factory=list)
    """Idle scratch channels with the time since when they are idle."""

    async def scratch(self) -> Channel:
        return self.idle.pop()[1] if self.idle else await self.connection.open_channel()

    def take_back(self, channel: Channel) -> Channel | None:
        """Keep an idle channel open. Returns another one that has been idle for too long."""
        now = asyncio.get_running_loop().time()
        self.idle.append((now, channel))
        if len(self.idle) > _IDLE_CHANNELS and now - self.idle[0][0] > _IDLE_S:
            return self.idle.pop(0)[1]
        return None


@dataclass(slots=True, eq=False)
class _OpenChannel:
    """The channel shared by all proven routes of a session."""

    channel: Channel
    session: _PublishSession
    in_flight: int = 0
    nacks: int = 0
    retired: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a retired channel has no unconfirmed messages."""

    def leave(self) -> None:
        """Called when a message was confirmed or failed."""
        self.in_flight -= 1
        if not self.in_flight and self.retired.is_set():
            self.idle.set()


class MessageSender:
    """Publishes messages with confirms, and reconnects if the connection is lost.

    Use this as an async context manager. It waits for the first connection and raises an exception
    if it fails. `start` does not wait.

    Args:
        timeout: Maximum time to wait for a channel.
        keyless: Names of exchanges that are not topic exchanges.
        sends_replies: If True, direct replies are published on this connection. By default a
            separate connection is used.
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
            is_expected=is_forged_address if sends_replies else lambda _error: False,
        )
        self._task: asyncio.Task[None] | None = None
        self._current: asyncio.Future[_OpenChannel] | None = None
        self._shared: _OpenChannel | None = None
        """The shared channel while it can be used."""
        self._winding_down: set[asyncio.Task[None]] = set()
        self._reopened_at = float("-inf")

    @property
    def _open_channel(self) -> asyncio.Future[_OpenChannel]:
        if self._current is None:
            self._current = asyncio.get_running_loop().create_future()
        return self._current

    @property
    def state(self) -> SupervisedState:
        """The state of the connection."""
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
        """Start connecting."""
        if self._task is None:
            self._task = asyncio.create_task(self._line.run(), name="hopback-publisher")
            self._task.add_done_callback(self._on_end)

    async def close(self) -> None:
        """Close the connection.

        Pending messages raise PublishInterrupted. It is safe to call this more than once.
        """
        self._line.stop()
        if self._replies is not None:
            await self._replies.close()
        if self._task is None:
            self._refuse("the publisher is closed")
        else:
            await asyncio.wait({self._task})

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Pass the error to all callers that are waiting for a channel."""
        error = None if task.cancelled() else task.exception()
        self._refuse(str(error or "the publisher is closed"))

    def _refuse(self, why: str) -> None:
        if not self._open_channel.done():
            self._open_channel.set_exception(ConnectionFailed(f"message not sent: {why}"))
            self._open_channel.exception()  # avoids a warning, because there may be no caller

    async def send(
        self, message: Message, *, mandatory: bool = True, ended: asyncio.Event | None = None
    ) -> None:
        """Publish a message and wait for the confirm.

        An unroutable message is only returned if both `mandatory` and `message.mandatory` are True.

        Args:
            message: The message.
            mandatory: Whether to return unroutable messages.
            ended: Set when the current delivery is lost.

        Raises:
            PublishFailed: If the message is not confirmed.
            ConnectionFailed: If there is no connection in time. The message is not sent.
            ValueError: If the message has a delay. Delays require the queues of an App.
        """
        refuse_delay(require_message(message))
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
                    return  # published on a scratch channel
            current, fate = handed
            try:
                await fate
                current.nacks = 0
                return
            except Nacked:
                self._count_nack(current)
                raise
            except PublishInterrupted as error:
                # The route was proven, so the exchange or a permission must have been removed since
                # then.
                if not isinstance(error.__cause__, ChannelClosed):
                    raise
                current.session.proven.clear()
                handed = None
            finally:
                current.leave()

    def _count_nack(self, current: _OpenChannel) -> None:
        """Replace the channel after several nacks in a row. Don't do this too often, as the queue
        may just be full.
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
        """Publish on the shared channel, but only if there is no need to wait."""
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
        """Publish on the shared channel. Returns None if a scratch channel was used.

        If the channel is closed, the message has not been sent and the next channel is used.
        """
        if await self._apart_at_once(message, mandatory, ended):
            return None
        # the supervisor has neither started nor been closed
        if self._task is None and self._current is None:
            raise ConnectionFailed(_NOT_STARTED)
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
        """Publish on a scratch channel, but only if there is no need to wait.

        Returns False otherwise.
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
        """Publish on a scratch channel. `limit` is the timeout until the message is sent."""
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
        """Don't use this channel for any more messages."""
        current.retired.set()
        if self._shared is current:
            self._shared = None
            self._current = None

    def _wind_down(self, closing: asyncio.Task[None]) -> None:
        self._winding_down.add(closing)
        closing.add_done_callback(self._winding_down.discard)

    async def _session(self, connection: Connection) -> None:
        """Keep a shared channel open as long as the connection is open."""
        session = _PublishSession(connection, ProvenRoutes(self._keyless))
        try:
            while True:
                current = _OpenChannel(await connection.open_channel(), session)
                self._shared = current
                self._open_channel.set_result(current)
                await first_of(current.channel.wait_closed(), current.retired.wait())
                self._retire(current)
                # Close the channel when all of its messages are confirmed.
                self._wind_down(asyncio.create_task(_close_when_idle(current)))
        finally:
            if self._shared is not None:
                self._retire(self._shared)
            for task in self._winding_down:
                task.cancel()


def refuse_delay(message: Message) -> None:
    """Raise ValueError if the message has a delay. Delays require the queues of an App."""
    delay = message.delay
    if delay is not None:
        found = format_duration(delay) if isinstance(delay, int) else str(delay)
        expected = "delay: expected none, because delays need the queues of `app.delays()`"
        remedy = "Publish by that App while it runs, or by its outbox"
        raise ValueError(f"{expected}, got {found}. {remedy}")


async def _close_when_idle(current: _OpenChannel) -> None:
    if current.in_flight:
        await current.idle.wait()
    await current.channel.close()
