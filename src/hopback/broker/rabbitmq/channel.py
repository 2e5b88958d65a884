"""One channel to RabbitMQ: implements the port's `Channel` over AMQP.

`Publishing` sends publishes and matches confirms to their senders. RabbitMQ's refusals are raised
as Hopback's errors with RabbitMQ's text.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
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
_PERSISTENT = 2  # persistent messages survive a restart of the broker
# Routes. Few applications use more. The limit bounds the memory of producers with unbounded routing
# keys.
_CACHED_ROUTES = 512
_ABANDONED_WINDOWS = 4
"""A channel with more unanswered windows than this is closed, because they stay in memory until the
channel ends.
"""


class Publishing:
    """The publishes of one channel.

    Up to `window` publishes may be in flight. `room` waits until another may start. After `timeout`
    seconds without an answer the sender gets ConfirmTimeout. `give_up` closes a channel that has
    too many unanswered publishes.
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
        """Whether the last publish was the only one in flight. Under load, the first publish after
        all confirms have arrived is also the only one. It is better written together with the
        publishes that follow.
        """
        self.blocked: bool = False

    @property
    def in_flight(self) -> int:
        """Number of publishes that wait for their confirm."""
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
        """Send a message whose properties are already encoded. Return a future for its outcome."""
        route = self._routes.get((exchange, routing_key, mandatory))
        if route is None:
            # The basic.publish frame is encoded once per route.
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
            # A caller that publishes one by one waits only for this message, so write it
            # immediately.
            wire.hurry()
        else:
            # Publishes on several channels share one write, because the system call is the largest
            # cost.
            wire.wake()
        return fate

    def on_confirm(self, event: SettlementReceived) -> None:
        """The broker confirmed or nacked one or several publishes."""
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
        """The broker returned a message. Return False if it does not match a publish in flight."""
        return self._confirms.take_back(message) is not None

    def end(self, error: BrokerError | None) -> None:
        """The channel ended: fail all publishes that have no outcome."""
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
        """The broker blocked or unblocked this connection.

        A blocked broker reads the sent messages when its alarm ends. Publishing them again in the
        meantime would store them twice. The confirm timeout therefore stops while the connection is
        blocked and then starts again in full.
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
        """Whether a publish may be started now."""
        return self._confirms.live < self._window and not self.blocked and self._wire.writable

    async def room(self, closed: Callable[[], bool]) -> None:
        """Wait until another publish may start. `closed` returns whether waiting is pointless."""
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
        """Wake waiting publishers after a change."""
        self._admit()

    def _admit(self) -> None:
        """Wake as many waiting publishers as the window allows, then check again in the next
        turn.
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
"""Requests that the process of the queue answers. The channel may answer a later request first."""


@dataclass(slots=True)
class _PendingRequest:
    """A request without an answer. `orphaned` cleans up if the caller no longer waits.

    `arguments` is None once the request is sent.
    """

    name: str
    answer: Future[Any]
    deadline: float
    orphaned: Callable[[Any], object] | None
    arguments: dict[str, Any] | None


class RabbitChannel:
    """A channel in confirm mode. Deliveries can be settled only on the channel they arrived on."""

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
        """The tags that were unsettled when the channel ended. The broker has requeued them.

        Tags held with `hold` are not listed.
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
        """Whether the channel has ended or is closing."""
        return self._closing or self._ended.done()

    async def close(self) -> None:
        """Close the channel. Unsettled deliveries are requeued. Safe to repeat.

        The wait for the broker's answer has a time limit. The connection detects a dead broker.
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
        """The connection is closing: stop sending on this channel."""
        self._closing = True

    async def wait_closed(self) -> BrokerError | None:
        """Wait until the channel has closed. Return the reason, or None after `close`."""
        return await asyncio.shield(self._ended)

    def end(self, error: BrokerError | None) -> None:
        """The channel or its connection ended: raise the reason to all waiting callers."""
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
        """Send a method and return a future for its answer. Answers arrive in the order of
        requests.

        A request that follows `basic.consume` or `basic.cancel` waits for that answer.
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
        """Send the requests that need not wait for an earlier answer."""
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
        """Look whether the oldest request is overdue. A broker that blocks us does not read requests."""
        self._answer_timer = None
        if not self._requests or self._unanswered is not None:
            return
        now, oldest = self._loop.time(), self._requests[0]
        if self.publishing.blocked:
            self.postpone_answers()
        if oldest.deadline > now:
            self._answer_timer = self._loop.call_at(oldest.deadline, self._on_overdue)
            return
        # Answers arrive in order, so later requests cannot be answered either. The channel is
        # unusable.
        error = self._unanswered = AnswerTimeout(
            f"no answer to {oldest.name} within {self._answer_timeout:g} s (answer_timeout)"
        )
        for request in self._requests:
            if not request.answer.done():
                request.answer.set_exception(error)
        if oldest.name == "channel.open":
            self._closing = True  # closed as soon as it is open
        elif not self.closed:
            self._send_close()

    def postpone_answers(self) -> None:
        """Restart the timeout of all requests, because the broker has only now read them."""
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
        """Handle an event of this channel."""
        if type(event) is Delivered:
            consumer = self._consumers.get(event.consumer)
            if consumer is None:
                self._give_back(event)
                return
            event.queue = consumer.queue
            try:  # an error in a callback must not close the connection
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
            # The unroutable message is unknown, so none of the publishes in flight may count as
            # stored.
            raise ProtocolError(f"expected a return of a publish in flight, got {event!r}")

    def _on_method(self, event: MethodReceived) -> None:
        if event.name == "channel.close":
            self.end(channel_fault(event.arguments["reply_code"], event.arguments["reply_text"]))
        elif event.name == "channel.close-ok":
            self.end(None)
        elif event.name == "basic.cancel":
            # The broker cancelled the consumer. RabbitMQ 4.3 keeps a consumer that timed out and
            # delivers to it again after a late ack, so cancel it from this side as well. An unknown
            # tag is not an error.
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
        """Delete an exchange. A missing exchange is not an error."""
        await self._request("exchange.delete", exchange=name, if_unused=if_unused)

    async def declare_queue(self, queue: Queue, *, passive: bool = False) -> QueueState:
        """Create or check a queue and count its messages."""
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
        """Delete a queue and return how many messages it had."""
        answer = await self._request(
            "queue.delete", queue=name, if_unused=if_unused, if_empty=if_empty
        )
        return int(answer["message_count"])

    async def purge_queue(self, name: str) -> int:
        """Delete all ready messages and return how many."""
        answer = await self._request("queue.purge", queue=name)
        return int(answer["message_count"])

    async def bind(self, binding: Binding) -> None:
        """Add a binding. An existing binding is not an error."""
        await self._request(*_binding("bind", binding), **_ends(binding))

    async def unbind(self, binding: Binding) -> None:
        """Remove a binding. A missing binding is not an error."""
        await self._request(*_binding("unbind", binding), **_ends(binding))

    def publish(self, message: Message, *, mandatory: bool = True) -> Future[None]:
        """Hand the message over, in call order, and return its fate."""
        self._check()
        return self.publishing.publish(message, mandatory)

    def publish_raw(
        self, exchange: str, routing_key: str, properties: bytes, body: bytes
    ) -> Future[None]:
        """Like `publish`, with encoded properties from a delivery's `raw_properties`."""
        self._check()
        return self.publishing.publish_raw(exchange, routing_key, properties, body)

    @property
    def has_room(self) -> bool:
        """Whether another publish may be started now."""
        return self.publishing.has_room

    async def room(self) -> None:
        """Return when another publish may be started."""
        self._check()
        if not self.publishing.has_room:
            await self.publishing.room(lambda: self.closed)
            self._check()

    async def qos(self, prefetch: int) -> None:
        """At most this many unsettled deliveries for each consumer started from now on."""
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

    async def cancel(self, tag: str) -> None:
        """Cancel the consumer. Its deliveries stay unsettled on this channel, and no further ones
        arrive.
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
        """Get one message, unsettled, or None if the queue has no ready message."""
        found = await self._request("basic.get", orphaned=self._give_back, queue=queue)
        if not isinstance(found, Got):
            return None
        found.queue = queue
        return found

    def _give_back(self, found: object) -> None:
        """Requeue a message whose caller no longer waits."""
        if isinstance(found, Delivered) and not self.closed:
            self.nack(found.tag, requeue=True)

    def hold(self, tag: int) -> None:
        """Keep a delivery unsettled until the channel ends or a multiple ack or nack covers it.

        No frame is sent, and held tags are not stored one by one.
        """
        self._settlements.hold(tag)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Settle as done. Sent with the next write."""
        if self._closing or self._ended.done():
            self._check()
        if multiple:
            self._settlements.ack_through(tag)
        else:
            self._settlements.ack(tag)
        self._wire.wake()

    def nack(self, tag: int, *, requeue: bool, multiple: bool = False) -> None:
        """Release to the queue, or dead-letter."""
        self._check()
        self._settlements.nack(tag, requeue=requeue, multiple=multiple)
        self._wire.wake()

    def reject(self, tag: int, *, requeue: bool) -> None:
        """Like nack for one delivery, but RabbitMQ 4.3 counts it as a failed delivery."""
        self._check()
        self._settlements.reject(tag, requeue=requeue)
        self._wire.wake()

    async def recover(self) -> None:
        """Put everything unsettled on this channel back into its queues (`basic.recover`)."""
        await self._request("basic.recover", requeue=True)


def _ignore_result(answer: Future[Any]) -> None:
    """Retrieve the error of a request that no caller waits for, so that asyncio does not log it."""
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
