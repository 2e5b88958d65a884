"""Channels of a RabbitMQ connection.

`Publishing` sends messages and matches confirms with their senders. Errors from RabbitMQ are
converted to exceptions with the same text.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hopback.broker.port import OnCancel, OnDelivery, QueueState
from hopback.errors import (
    AccessRefused,
    AnswerTimeout,
    BrokerError,
    ChannelClosed,
    ConfirmTimeout,
    ConnectionLost,
    Nacked,
    NotFound,
    PreconditionFailed,
    ProtocolError,
    PublishInterrupted,
    ResourceLocked,
    Returned,
)
from hopback.wire.confirms import Confirms, InFlight
from hopback.wire.events import (
    Delivered,
    Event,
    Got,
    MethodReceived,
    ReturnedMessage,
    SettlementReceived,
)
from hopback.wire.frames import METHOD, frame
from hopback.wire.methods import METHODS, encode_arguments
from hopback.wire.outgoing import check_body, check_route, unsendable
from hopback.wire.properties import encode_properties
from hopback.wire.settlement import Settlements

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Mapping

    from hopback.fields import Headers
    from hopback.message import Delivery, Message, Properties
    from hopback.topology.model import Binding, Exchange, Queue
    from hopback.wire.transport import Wire

_PUBLISH = METHODS["basic.publish"]
_PERSISTENT = 2  # persistent, so messages survive a restart of the broker
# Maximum number of cached routes. Most applications need fewer, but some use an unlimited number of
# routing keys.
_CACHED_ROUTES = 512
_ABANDONED_WINDOWS = 4
"""If a channel has more unconfirmed messages than this number of windows, it is closed to free
their memory.
"""


class Publishing:
    """Publishes on a channel.

    There may be up to `window` unconfirmed messages. Use `room` to wait until another one can be
    sent. If there is no confirm within `timeout` seconds, ConfirmTimeout is raised. `give_up`
    closes a channel that has too many messages that were never confirmed.
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
        self._alone = True
        """Whether the last message was the only one in flight.

        Under load this is also True for the first message after all others were confirmed. In this
        case it is better to write it together with the following ones.
        """
        self.blocked: bool = False

    @property
    def in_flight(self) -> int:
        """The number of messages that are waiting for a confirm."""
        return self._confirms.live

    def publish(self, message: Message, mandatory: bool) -> asyncio.Future[None]:
        properties = message.properties
        if properties is self._plain[0] and not properties.headers:
            raw = self._plain[1]
        else:
            try:
                raw = encode_properties(properties, default_mode=_PERSISTENT)
            except Exception as error:
                raise unsendable(message.exchange, message.routing_key, error) from None
            if not properties.headers:
                self._plain = (properties, raw)
        if type(message.body) is not bytes:
            check_body(message)
        return self.publish_raw(message.exchange, message.routing_key, raw, message.body, mandatory)

    def publish_raw(
        self,
        exchange: str,
        routing_key: str,
        properties: bytes,
        body: bytes,
        mandatory: bool = True,
    ) -> asyncio.Future[None]:
        """Publish a message with encoded properties. Returns a future for the confirm."""
        route = self._routes.get((exchange, routing_key, mandatory))
        if route is None:
            # Encode the basic.publish frame only once per route.
            check_route(exchange, routing_key)
            arguments = {"exchange": exchange, "routing_key": routing_key, "mandatory": mandatory}
            route = frame(METHOD, self._number, encode_arguments(_PUBLISH, arguments))
            if len(self._routes) >= _CACHED_ROUTES:
                self._routes.clear()
            self._routes[exchange, routing_key, mandatory] = route
        wire, confirms = self._wire, self._confirms
        try:
            wire.connection.content(self._number, route, properties, body)
        except ProtocolError as error:
            raise unsendable(exchange, routing_key, error) from None
        fate: asyncio.Future[None] = self._loop.create_future()
        deadline = self._loop.time() + self._timeout
        confirms.add(InFlight(fate, exchange, routing_key, properties, body, mandatory, deadline))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)
        alone, self._alone = self._alone, confirms.live == 1
        last, wire.last_publisher = wire.last_publisher, self
        if alone and self._alone and (last is self or last is None):
            # Write immediately, because a caller that publishes one message at a time is waiting
            # for it.
            wire.hurry()
        else:
            # Write the messages of several channels together. The system call is the most expensive
            # part.
            wire.wake()
        return fate

    def on_confirm(self, event: SettlementReceived) -> None:
        """Handle a confirm or nack for one or more messages."""
        positive = event.name == "basic.ack"
        for publish in self._confirms.settle(event.tag, multiple=event.multiple):
            fate = publish.ticket
            if fate.done():
                continue
            if positive and publish.returned is None:
                fate.set_result(None)
            elif (back := publish.returned) is not None:
                fate.set_exception(
                    Returned(publish.exchange, publish.routing_key, back.code, back.text)
                )
            else:
                where = f"exchange {publish.exchange!r}, routing key {publish.routing_key!r}"
                fate.set_exception(Nacked(f"refused (nack) by the broker: {where}"))
        if self._waiters:
            self._admit()

    def on_return(self, message: ReturnedMessage) -> bool:
        """Handle a returned message. Returns False if it does not match any message in flight."""
        return self._confirms.take_back(message) is not None

    def end(self, error: BrokerError | None) -> None:
        """Fail all messages in flight, because the channel was closed."""
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
        """Handle a notification that the broker has blocked or unblocked this connection.

        When the alarm ends, the broker reads the messages we have already sent. If we published
        them again, they would be stored twice. The confirm timeout is therefore stopped while the
        connection is blocked, and restarted afterwards.
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
        if self._confirms.abandon_count > _ABANDONED_WINDOWS * self._window:
            self._give_up()
        oldest = next((p for p in self._confirms.in_flight.values() if not p.expired), None)
        if oldest is not None:
            self._timer = self._loop.call_at(oldest.deadline, self._expire)
        self._admit()

    @property
    def has_room(self) -> bool:
        """Whether another message can be sent now."""
        return self._confirms.live < self._window and not self.blocked and self._wire.writable

    async def room(self, closed: Callable[[], bool]) -> None:
        """Wait until another message can be sent. `closed` returns True if it never will be."""
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
        """Wake up publishers that are waiting, because something has changed."""
        self._admit()

    def _admit(self) -> None:
        """Wake up as many publishers as the window allows. Continues in the next iteration of the
        event loop.
        """
        if not self._waiters or not self.has_room:
            return
        for _ in range(min(len(self._waiters), self._window - self._confirms.live)):
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
        if self._waiters:
            self._loop.call_soon(self._admit)


_BY_CODE: dict[int, type[ChannelClosed]] = {
    403: AccessRefused,
    404: NotFound,
    405: ResourceLocked,
    406: PreconditionFailed,
}


def channel_fault(code: int, text: str) -> ChannelClosed:
    return _BY_CODE.get(code, ChannelClosed)(code, text)


def connection_fault(arguments: Mapping[str, object]) -> ConnectionLost:
    code, text = arguments["reply_code"], arguments["reply_text"]
    return ConnectionLost(
        f"connection closed by the broker: {code} {text}", code=code if type(code) is int else 0
    )


@dataclass(slots=True)
class _ChannelConsumer:
    tag: str
    queue: str
    on_delivery: OnDelivery
    on_cancel: OnCancel | None


_ANSWERED_BY_QUEUE = frozenset({"basic.consume", "basic.cancel"})
"""Requests that are handled by the queue process. The responses to later requests may arrive first.
"""


@dataclass(slots=True)
class _PendingRequest:
    """A request that is waiting for its response. `orphaned` cleans up if the caller was cancelled.

    `arguments` is None if the request has already been sent.
    """

    name: str
    answer: Future[Any]
    deadline: float
    orphaned: Callable[[Any], object] | None
    arguments: dict[str, Any] | None


class RabbitChannel:
    """A channel with confirms. Deliveries have to be settled on the channel they were received on."""

    def __init__(
        self,
        number: int,
        wire: Wire,
        release: Callable[[RabbitChannel], None],
        *,
        window: int,
        confirm_timeout: float,
        answer_timeout: float,
    ) -> None:
        self.number = number
        self.publishing: Publishing = Publishing(
            number, wire, window, confirm_timeout, self._give_up
        )
        self.lost: tuple[int, ...] = ()
        """Tags that were unsettled when the channel was closed. The broker has requeued them.

        Does not contain tags held by `hold`.
        """
        self._wire = wire
        self._core = wire.connection
        self._release = release
        self._loop = asyncio.get_running_loop()
        self._requests: deque[_PendingRequest] = deque()
        self._answer_timeout = answer_timeout
        self._answer_timer: asyncio.TimerHandle | None = None
        self._unanswered: AnswerTimeout | None = None
        self._consumers: dict[bytes, _ChannelConsumer] = {}
        self._next_consumer = 0
        self._ended: Future[BrokerError | None] = self._loop.create_future()
        self._closing = False
        self._settlements = Settlements(number)

    async def open(self) -> None:
        """Open the channel and enable confirms."""
        answer = self._request("channel.open", orphaned=lambda _: self._send_close())
        self._settlements = self._core.channels[self.number].settlements
        await answer
        await self._request("confirm.select", orphaned=lambda _: self._send_close())

    @property
    def closed(self) -> bool:
        """Whether the channel is closed or closing."""
        return self._closing or self._ended.done()

    async def close(self) -> None:
        """Close the channel and requeue unsettled deliveries. Can be called more than once.

        There is a timeout for the response. If the broker is dead, the connection will notice.
        """
        if not self.closed:
            self._send_close()
        await asyncio.wait({self._ended}, timeout=self._answer_timeout)

    def _give_up(self) -> None:
        if not self.closed:
            self._send_close()

    def _send_close(self) -> None:
        self._closing = True
        self._core.send(self.number, "channel.close", reply_code=200, reply_text="closed by client")
        self._wire.wake()

    def leave(self) -> None:
        """Stop sending, because the connection is about to be closed."""
        self._closing = True

    async def wait_closed(self) -> BrokerError | None:
        """Wait until the channel is closed. Returns the error, or None after `close`."""
        return await asyncio.shield(self._ended)

    def end(self, error: BrokerError | None) -> None:
        """Pass the reason to all waiting callers, because the channel or its connection was closed."""
        if self._ended.done():
            return
        self._core.channels.pop(self.number, None)
        self.lost = tuple(self._settlements.unsettled)
        self._ended.set_result(error)
        reason = error or _own_close()
        for request in self._requests:
            if not request.answer.done():
                request.answer.set_exception(reason)
        self._requests.clear()
        if self._answer_timer is not None:
            self._answer_timer.cancel()
        self._consumers.clear()
        self.publishing.end(error)
        self._release(self)

    def _check(self) -> None:
        if self._ended.done():
            error = self._ended.result() or _own_close()
            raise error.with_traceback(None)
        if self._closing:
            raise (self._unanswered or _own_close()).with_traceback(None)

    def _request(
        self, name: str, orphaned: Callable[[Any], object] | None = None, **arguments: Any
    ) -> Future[Any]:
        """Send a method and return a future for the response. Responses arrive in order.

        After a `basic.consume` or `basic.cancel`, the next request is delayed until its response
        has arrived.
        """
        self._check()
        answer: Future[Any] = self._loop.create_future()
        deadline = self._loop.time() + self._answer_timeout
        self._requests.append(_PendingRequest(name, answer, deadline, orphaned, arguments))
        if self._answer_timer is None:
            self._answer_timer = self._loop.call_at(deadline, self._on_overdue)
        self._send_requests()
        return answer

    def _send_requests(self) -> None:
        """Send the requests that don't have to wait for an earlier response."""
        for request in tuple(self._requests):
            if request.arguments is not None:
                try:
                    self._core.send(self.number, request.name, **request.arguments)
                except Exception as unsendable:
                    self._requests.remove(request)
                    if not request.answer.done():
                        request.answer.set_exception(unsendable)
                    continue
                request.arguments = None
                self._wire.wake()
            if request.name in _ANSWERED_BY_QUEUE:
                return

    def _on_overdue(self) -> None:
        """Check if the oldest request has timed out. While the broker is blocking us, it does not
        read requests.
        """
        self._answer_timer = None
        if not self._requests or self._unanswered is not None:
            return
        now, oldest = self._loop.time(), self._requests[0]
        if self.publishing.blocked:
            self.postpone_answers()
        if oldest.deadline > now:
            self._answer_timer = self._loop.call_at(oldest.deadline, self._on_overdue)
            return
        # Responses arrive in order, so there will be none for later requests either. The channel
        # cannot be used any more.
        error = self._unanswered = AnswerTimeout(
            f"no answer to {oldest.name} within {self._answer_timeout:g} s (answer_timeout)"
        )
        for request in self._requests:
            if not request.answer.done():
                request.answer.set_exception(error)
        if oldest.name == "channel.open":
            self._closing = True  # closed once it is open
        elif not self.closed:
            self._send_close()

    def postpone_answers(self) -> None:
        """Restart the timeout of all requests, because the broker did not read them before now."""
        deadline = self._loop.time() + self._answer_timeout
        for request in self._requests:
            request.deadline = deadline

    def _answer(self, value: Any) -> None:
        request = self._requests.popleft()
        if not self.closed:
            self._send_requests()
        if not request.answer.done():
            request.answer.set_result(value)
        elif request.orphaned is not None:
            request.orphaned(value)

    def on_event(self, event: Event) -> None:
        if type(event) is Delivered:
            consumer = self._consumers.get(event.consumer)
            if consumer is None:
                self._give_back(event)
                return
            event.queue = consumer.queue
            try:  # errors in a callback must not close the connection
                consumer.on_delivery(event)
            except Exception as problem:
                self._loop.call_exception_handler(
                    {"message": f"on_delivery of {consumer.queue!r} raised", "exception": problem}
                )
        elif type(event) is SettlementReceived:
            self.publishing.on_confirm(event)
        elif isinstance(event, MethodReceived):
            self._on_method(event)
        elif isinstance(event, Got):
            self._answer(event)
        elif isinstance(event, ReturnedMessage) and not self.publishing.on_return(event):
            # We don't know which message was unroutable, so we can't assume that any of them were
            # stored.
            raise ProtocolError(f"expected a return of a publish in flight, got {event!r}")

    def _on_method(self, event: MethodReceived) -> None:
        if event.name == "channel.close":
            self.end(channel_fault(event.arguments["reply_code"], event.arguments["reply_text"]))
        elif event.name == "channel.close-ok":
            self.end(None)
        elif event.name == "basic.cancel":
            # RabbitMQ 4.3 does not remove a consumer after a timeout. It resumes deliveries if
            # there is a late ack, so cancel the consumer from our side as well. It does not matter
            # if the tag is unknown.
            tag = event.arguments["consumer_tag"]
            self._core.send(self.number, "basic.cancel", consumer_tag=tag, nowait=True)
            consumer = self._consumers.pop(tag.encode("utf-8", "surrogateescape"), None)
            if consumer is not None and consumer.on_cancel is not None:
                self._loop.call_soon(consumer.on_cancel, tag)
        elif event.name != "channel.flow":
            self._answer(event.arguments)

    async def declare_exchange(self, exchange: Exchange, *, passive: bool = False) -> None:
        await self._request(
            "exchange.declare",
            exchange=exchange.name,
            type=str(exchange.type),
            passive=passive,
            durable=exchange.durable,
            auto_delete=exchange.auto_delete,
            internal=exchange.internal,
            arguments=exchange.arguments,
        )

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange. Does nothing if it does not exist."""
        await self._request("exchange.delete", exchange=name, if_unused=if_unused)

    async def declare_queue(self, queue: Queue, *, passive: bool = False) -> QueueState:
        """Declare a queue and return its state."""
        answer = await self._request(
            "queue.declare",
            queue=queue.name,
            passive=passive,
            durable=queue.durable,
            exclusive=queue.exclusive,
            auto_delete=queue.auto_delete,
            arguments={} if passive else queue.declare_arguments,
        )
        return QueueState(answer["queue"], answer["message_count"], answer["consumer_count"])

    async def delete_queue(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete a queue and return the number of messages it had."""
        answer = await self._request(
            "queue.delete", queue=name, if_unused=if_unused, if_empty=if_empty
        )
        return int(answer["message_count"])

    async def purge_queue(self, name: str) -> int:
        """Delete all ready messages and return how many there were."""
        answer = await self._request("queue.purge", queue=name)
        return int(answer["message_count"])

    async def bind(self, binding: Binding) -> None:
        """Add a binding. Does nothing if it already exists."""
        await self._request(*_binding("bind", binding), **_ends(binding))

    async def unbind(self, binding: Binding) -> None:
        """Remove a binding. Does nothing if it does not exist."""
        await self._request(*_binding("unbind", binding), **_ends(binding))

    def publish(self, message: Message, *, mandatory: bool = True) -> Future[None]:
        """Publish a message and return a future for the confirm. Order is preserved."""
        self._check()
        return self.publishing.publish(message, mandatory)

    def publish_raw(
        self, exchange: str, routing_key: str, properties: bytes, body: bytes
    ) -> Future[None]:
        """Same as `publish`, but uses the encoded `raw_properties` of a delivery."""
        self._check()
        return self.publishing.publish_raw(exchange, routing_key, properties, body)

    @property
    def has_room(self) -> bool:
        """Whether another message can be published without waiting."""
        return self.publishing.has_room

    async def room(self) -> None:
        """Wait until another message can be published."""
        self._check()
        if not self.publishing.has_room:
            await self.publishing.room(lambda: self.closed)
            self._check()

    async def qos(self, prefetch: int) -> None:
        """Set the prefetch count of new consumers."""
        await self._request("basic.qos", prefetch_count=prefetch)

    async def consume(
        self,
        queue: str,
        on_delivery: OnDelivery,
        *,
        on_cancel: OnCancel | None = None,
        tag: str = "",
        exclusive: bool = False,
        no_ack: bool = False,
        arguments: Headers | None = None,
    ) -> str:
        """Start a consumer and return its tag."""
        self._check()
        self._next_consumer += 1
        tag = tag or f"hopback-{self.number}-{self._next_consumer}"
        key = tag.encode()
        if key in self._consumers:
            raise ProtocolError(f"expected a new consumer tag on this channel, got {tag!r} again")
        if no_ack:
            on_delivery = partial(self._forget, on_delivery)
        self._consumers[key] = _ChannelConsumer(tag, queue, on_delivery, on_cancel)
        await self._request(
            "basic.consume",
            orphaned=lambda _: self._send_cancel(tag).add_done_callback(_ignore_result),
            queue=queue,
            consumer_tag=tag,
            exclusive=exclusive,
            no_ack=no_ack,
            arguments=arguments or {},
        )
        return tag

    def _forget(self, on_delivery: OnDelivery, delivery: Delivery) -> None:
        """Remove a delivery that needs no ack from the unsettled ones and pass it on."""
        self._settlements.unsettled.pop(delivery.tag, None)
        on_delivery(delivery)

    async def cancel(self, tag: str) -> None:
        """Cancel a consumer. Its deliveries stay unsettled, and no more messages are delivered to
        it.
        """
        self._check()
        if tag.encode() not in self._consumers:
            return
        await self._send_cancel(tag)

    def _send_cancel(self, tag: str) -> Future[Any]:
        answer = self._request("basic.cancel", consumer_tag=tag)
        answer.add_done_callback(lambda _: self._consumers.pop(tag.encode(), None))
        return answer

    async def get(self, queue: str) -> Delivery | None:
        """Get a message without acking it. Returns None if there are no ready messages."""
        found = await self._request("basic.get", orphaned=self._give_back, queue=queue)
        if not isinstance(found, Got):
            return None
        found.queue = queue
        return found

    def _give_back(self, found: object) -> None:
        """Requeue a message if the caller was cancelled."""
        if isinstance(found, Delivered) and not self.closed:
            self.nack(found.tag, requeue=True)

    def hold(self, tag: int) -> None:
        """Leave a delivery unsettled until the channel is closed or a multiple ack or nack includes
        it.

        Nothing is sent to the broker, and ranges of tags are stored instead of single ones.
        """
        self._settlements.hold(tag)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Ack a delivery. This is sent with the next write."""
        if self._closing or self._ended.done():
            self._check()
        if multiple:
            self._settlements.ack_through(tag)
        else:
            self._settlements.ack(tag)
        self._wire.wake()

    def nack(self, tag: int, *, requeue: bool, multiple: bool = False) -> None:
        """Requeue or dead-letter deliveries."""
        self._check()
        self._settlements.nack(tag, requeue=requeue, multiple=multiple)
        self._wire.wake()

    def reject(self, tag: int, *, requeue: bool) -> None:
        """Requeue or dead-letter a single delivery. RabbitMQ 4.3 counts this as a failure, unlike
        nack.
        """
        self._check()
        self._settlements.reject(tag, requeue=requeue)
        self._wire.wake()

    async def recover(self) -> None:
        """Requeue all unsettled deliveries of this channel (`basic.recover`)."""
        await self._request("basic.recover", requeue=True)


def _ignore_result(answer: Future[Any]) -> None:
    """Mark the error of a request as retrieved. asyncio would log it if the caller is gone."""
    if not answer.cancelled():
        answer.exception()


def _own_close() -> ChannelClosed:
    return ChannelClosed(200, "closed by us")


def _binding(verb: str, binding: Binding) -> tuple[str]:
    return (f"{'exchange' if binding.to_exchange else 'queue'}.{verb}",)


def _ends(binding: Binding) -> dict[str, Any]:
    source, target = ("source", "destination") if binding.to_exchange else ("exchange", "queue")
    return {
        source: binding.source,
        target: binding.destination,
        "routing_key": binding.routing_key,
        "arguments": binding.arguments,
    }
