"""Requests with replies, based on direct reply-to.

Replies are not stored in a queue. The broker sends them straight to the channel of the request,
provided that it is still open. If the broker refuses a request, it closes the channel. Requests to
a route that has not been used before are therefore sent on a separate channel (see
`broker.proven_routes`).
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from hopback.broker.port import REPLY_TO, Broker, Channel, Connection
from hopback.broker.proven_routes import ProvenRoutes
from hopback.broker.sendable import check_message, sole_failure
from hopback.broker.supervise import Backoff, Supervised
from hopback.errors import (
    BrokerError,
    ChannelClosed,
    ConnectionLost,
    DeliveryLost,
    NoReply,
    PublishInterrupted,
)
from hopback.runtime.address import broker_at
from hopback.runtime.context import (
    REQUEST_TIMEOUT,
    PublishOptions,
    check_options,
    compose,
    end_of_session,
    parse_wait,
)
from hopback.runtime.payload import decoder_for
from hopback.runtime.publish_arguments import explain_arguments
from hopback.waiting import first_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.durations import Duration
    from hopback.message import Delivery, Message
    from hopback.runtime.codecs import Codecs

T = TypeVar("T")

_OURS = ("correlation_id", "reply_to", "delay", "at", "mandatory")
"""Options that cannot be used with requests."""

_APART = 64
"""Maximum number of concurrent requests on separate channels."""

_LOST = (
    "request not sent: the channel of the delivery that is being handled has ended, and the broker"
    " delivers it again"
)

_MOST_READERS = 1_000
"""Maximum number of cached decoders."""


class RequestClient:
    """Sends requests and waits for replies.

    Use this as an async context manager in programs without an `App`. Otherwise use `app.request`.

    Args:
        broker: A broker or the URL of RabbitMQ.
        codecs: Codecs for encoding requests and decoding replies.
    """

    def __init__(
        self,
        broker: Broker | str,
        *,
        name: str = "hopback requests",
        codecs: Codecs | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._codecs = codecs
        self._line = Supervised(broker_at(broker), name, self._session, backoff=backoff)
        self._task: asyncio.Task[None] | None = None
        self._current: asyncio.Future[Channel] | None = None
        self._connection: Connection | None = None
        self._proven = ProvenRoutes()
        self._apart = asyncio.Semaphore(_APART)
        self._waiting: dict[str, asyncio.Future[Delivery]] = {}
        self._readers: dict[Any, Callable[[Delivery], Any]] = {}
        self.late: int = 0
        """The number of replies that arrived too late."""

    @property
    def _channel(self) -> asyncio.Future[Channel]:
        if self._current is None:
            self._current = asyncio.get_running_loop().create_future()
        return self._current

    async def __aenter__(self) -> Self:
        self.start()
        assert self._task is not None  # noqa: S101 - started just before
        await first_of(self._channel, self._line.tried.wait(), self._task)
        if not self._channel.done():
            error = self._line.trouble
            await self.close()
            await self._task
            raise error or NoReply("request not sent: there is no connection")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._line.run(), name="hopback-requests")
            # Ignore the error here. `request` raises it.
            self._task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def close(self) -> None:
        """Close the connection. Pending requests raise NoReply. It is safe to call this more than
        once.
        """
        self._line.stop()
        if self._task is not None:
            await asyncio.wait({self._task})

    @explain_arguments
    async def request(
        self,
        routing_key: str,
        payload: object,
        *,
        exchange: str = "",
        timeout: Duration = REQUEST_TIMEOUT,  # noqa: ASYNC109 - the reply says how it ended
        returns: type[T] | Any = Any,
        **options: Unpack[PublishOptions],
    ) -> T | Any:
        """Send a request and return the reply.

        Args:
            routing_key: The routing key, or the name of a queue if there is no exchange.
            payload: The payload.
            exchange: The exchange to publish to.
            timeout: Maximum time to wait for the reply.
            returns: The type of the reply.
            options: See `PublishOptions`.

        Raises:
            Returned: If the request is unroutable.
            NoReply: If there is no reply in time or the connection is lost. The request may still
                have been handled.
            Undecodable: If the reply cannot be decoded.
        """
        return await self.request_with(
            self._codecs, routing_key, payload, exchange, timeout, returns, options
        )

    async def request_with(
        self,
        codecs: Codecs | None,
        routing_key: str,
        payload: object,
        exchange: str,
        timeout: Duration,  # noqa: ASYNC109 - the reply says how it ended
        returns: Any,
        options: PublishOptions,
    ) -> Any:
        """Send a request of one of several applications, which have their own codecs."""
        check_options(options, "timeout", "returns")
        refused = [name for name in _OURS if options.get(name) is not None]
        if refused:
            raise ValueError(f"expected a request without {', '.join(refused)}: it has its own")
        read = self._reader(codecs, returns)
        seconds = parse_wait(timeout, "timeout") / 1000
        options["correlation_id"], options["reply_to"] = uuid.uuid4().hex, REPLY_TO
        message = compose(routing_key, payload, exchange=exchange, codecs=codecs, **options)
        self.start()
        try:
            async with asyncio.timeout(seconds) as limit:
                reply = await self._ask(message)
        except TimeoutError:
            if not limit.expired():
                raise
            place = f"queue {message.routing_key!r}"
            if message.exchange:
                place = f"exchange {message.exchange!r}, routing key {message.routing_key!r}"
            state = f" (its connection: {self._line.state})" if not self._channel.done() else ""
            raise NoReply(
                f"no reply within {seconds:g} s to a request for {place}{state}"
            ) from None
        return read(reply)

    async def _ask(self, message: Message) -> Delivery:
        """Send a request and return the reply. If the channel is closed, use the next one."""
        number = message.properties.correlation_id or ""
        ended = end_of_session()
        may_share = check_message(message, may_ask=True)
        while True:
            # Wait for a channel. Errors that reconnecting cannot fix are raised.
            if not self._channel.done() and self._task is not None:
                await first_of(self._channel, self._task)
                if not self._channel.done():
                    await self._task
                    raise NoReply("request not sent: the client is closed")
            channel = await asyncio.shield(self._channel)
            if not may_share or not self._proven.cover(message):
                async with AsyncExitStack() as turn:
                    is_due = await turn.enter_async_context(self._proven.turn(message))
                    if is_due or not may_share:
                        try:
                            return await self._ask_apart(message, ended, turn)
                        except ConnectionLost:
                            self._forget(channel)  # the request was not sent
                continue
            answer: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
            self._waiting[number] = answer
            try:
                await channel.room()
                if ended is not None and ended.is_set():
                    del self._waiting[number]
                    raise DeliveryLost(_LOST)
                fate = channel.publish(message)
            except (ChannelClosed, ConnectionLost):
                del self._waiting[number]
                await first_of(channel.wait_closed())
                self._forget(channel)
                continue
            # The reply may arrive before the confirm.
            fate.add_done_callback(lambda done: done.cancelled() or done.exception())
            try:
                await first_of(fate, answer)
                if not answer.done():
                    await asyncio.shield(fate)
                return await answer
            finally:
                self._waiting.pop(number, None)

    async def _ask_apart(
        self, message: Message, ended: asyncio.Event | None, turn: AsyncExitStack
    ) -> Delivery:
        """Send a request on a separate channel and return the reply.

        `turn` is closed once the broker has accepted the request. Raises ConnectionLost if the
        request was not sent.
        """
        answer: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

        def on_reply(delivery: Delivery) -> None:
            if answer.done() or (
                delivery.properties.correlation_id != message.properties.correlation_id
            ):
                self.late += 1
            else:
                answer.set_result(delivery)

        async with self._apart:
            if self._connection is None:
                raise ConnectionLost("the connection of requests is being made")
            channel = await self._connection.open_channel()
            try:
                await channel.consume(REPLY_TO, on_reply, no_ack=True)
                await channel.room()
                if ended is not None and ended.is_set():
                    raise DeliveryLost(_LOST)
                fate = channel.publish(message)
                fate.add_done_callback(lambda done: done.cancelled() or done.exception())
                await first_of(fate, answer)
                if not answer.done():
                    try:
                        await asyncio.shield(fate)
                    except PublishInterrupted as error:
                        raise sole_failure(message, error) from error.__cause__
                self._proven.add(message)
                await turn.aclose()
                _, closed = await first_of(answer, channel.wait_closed())
                if closed is not None and not answer.done():
                    why = closed.result() or "the connection ended"
                    raise NoReply(f"no reply can come any more: {why}")
                return answer.result()
            finally:
                await channel.close()

    def _reader(self, codecs: Codecs | None, returns: Any) -> Callable[[Delivery], Any]:
        try:
            return self._readers[codecs, returns]
        except KeyError:
            may_keep = len(self._readers) < _MOST_READERS
        except TypeError:
            may_keep = False  # the type is not hashable
        decode = decoder_for(returns)
        if codecs is not None:
            read = codecs.reader(returns, decode)
        else:

            def read(delivery: Delivery) -> Any:
                return decode(delivery.body)

        if may_keep:
            self._readers[codecs, returns] = read
        return read

    async def _session(self, connection: Connection) -> None:
        """Receive replies until the connection is closed."""
        self._connection, self._proven = connection, ProvenRoutes()
        try:
            while True:
                channel = await connection.open_channel()
                await channel.consume(REPLY_TO, self._on_reply, no_ack=True)
                self._channel.set_result(channel)
                error = await channel.wait_closed()
                self._proven.clear()  # a request was refused
                self._forget(channel)
                self._give_up(error)
        finally:
            self._connection = None
            if self._channel.done():
                self._forget(self._channel.result())
            self._give_up(None)

    def _forget(self, channel: Channel) -> None:
        if self._channel.done() and self._channel.result() is channel:
            self._current = None

    def _give_up(self, error: BrokerError | None) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                why = error or "the connection ended"
                answer.set_exception(NoReply(f"no reply can come any more: {why}"))
                answer.exception()  # the caller may have been cancelled

    def _on_reply(self, delivery: Delivery) -> None:
        answer = self._waiting.get(delivery.properties.correlation_id or "")
        if answer is None or answer.done():
            self.late += 1
        else:
            answer.set_result(delivery)
