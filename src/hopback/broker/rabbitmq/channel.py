"""One channel to RabbitMQ: fills the port's `Channel` over the wire."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopback.broker.port import QueueState
from hopback.broker.rabbitmq.faults import channel_fault
from hopback.broker.rabbitmq.publishing import Publishing
from hopback.errors import BrokerError, ChannelClosed, ProtocolError
from hopback.wire.events import Delivered, Got, MethodReceived, ReturnedMessage, SettlementReceived
from hopback.wire.settlement import Settlements

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

    from hopback.broker.port import OnCancel, OnDelivery
    from hopback.fields import Headers
    from hopback.message import Delivery, Message
    from hopback.topology.model import Binding, Exchange, Queue
    from hopback.wire.events import Event
    from hopback.wire.transport import Wire

__all__ = ["RabbitChannel"]


@dataclass(slots=True)
class _ChannelConsumer:
    tag: str
    queue: str
    on_delivery: OnDelivery
    on_cancel: OnCancel | None


@dataclass(slots=True)
class _PendingRequest:
    """A request on its way; `orphaned` cleans up if nobody waits for the answer any more."""

    answer: Future[Any]
    orphaned: Callable[[Any], object] | None = None


class RabbitChannel:
    """A channel in confirm mode. Settlement is bound to this object: a dead one settles nothing."""

    def __init__(
        self,
        number: int,
        wire: Wire,
        release: Callable[[RabbitChannel], None],
        *,
        window: int,
        confirm_timeout: float,
    ) -> None:
        self.number = number
        self.publishing: Publishing = Publishing(
            number, wire, window, confirm_timeout, self._give_up
        )
        self.lost: tuple[int, ...] = ()
        """The tags that were unsettled when the channel ended; the broker has them back."""
        self._wire = wire
        self._core = wire.connection
        self._release = release
        self._loop = asyncio.get_running_loop()
        self._requests: deque[_PendingRequest] = deque()
        self._consumers: dict[bytes, _ChannelConsumer] = {}
        self._next_consumer = 0
        self._ended: Future[BrokerError | None] = self._loop.create_future()
        self._closing = False
        self._settlements = Settlements(number)

    # --- life

    async def open(self) -> None:
        """Open it and switch confirms on."""
        answer = self._request("channel.open", orphaned=lambda _: self._send_close())
        self._settlements = self._core.channels[self.number].settlements
        await answer
        await self._request("confirm.select", orphaned=lambda _: self._send_close())

    @property
    def closed(self) -> bool:
        """Whether it has ended or is ending."""
        return self._closing or self._ended.done()

    async def close(self) -> None:
        """Close in order; everything unsettled goes back to its queues. Safe to repeat."""
        if not self.closed:
            self._send_close()
        await self.wait_closed()

    def _give_up(self) -> None:
        if not self.closed:
            self._send_close()

    def _send_close(self) -> None:
        self._closing = True
        self._core.send(self.number, "channel.close", reply_code=200, reply_text="closed by client")
        self._wire.wake()

    def leave(self) -> None:
        """The connection is being closed: nothing more is sent on this channel."""
        self._closing = True

    async def wait_closed(self) -> BrokerError | None:
        """Return when the channel has ended: the reason, or None if we closed it."""
        return await asyncio.shield(self._ended)

    def end(self, error: BrokerError | None) -> None:
        """The channel or its connection is gone. Everyone who waits is told why."""
        if self._ended.done():
            return
        self._core.channels.pop(self.number, None)
        self.lost = tuple(self._settlements.unsettled)
        self._ended.set_result(error)
        reason = error or _closed_by_us()
        for request in self._requests:
            if not request.answer.done():
                request.answer.set_exception(reason)
        self._requests.clear()
        self._consumers.clear()
        self.publishing.end(error)
        self._release(self)

    def _check(self) -> None:
        if self._ended.done():
            error = self._ended.result() or _closed_by_us()
            raise error.with_traceback(None)
        if self._closing:
            raise _closed_by_us()

    # --- requests

    def _request(
        self, name: str, orphaned: Callable[[Any], object] | None = None, **arguments: Any
    ) -> Future[Any]:
        """Send a method; the answer's arguments (or its message) come in the order of requests."""
        self._check()
        self._core.send(self.number, name, **arguments)
        answer: Future[Any] = self._loop.create_future()
        self._requests.append(_PendingRequest(answer, orphaned))
        self._wire.wake()
        return answer

    def _answer(self, value: Any) -> None:
        request = self._requests.popleft()
        if not request.answer.done():
            request.answer.set_result(value)
        elif request.orphaned is not None:
            request.orphaned(value)

    # --- what the connection tells us

    def on_event(self, event: Event) -> None:
        """Something came in on this channel."""
        if type(event) is Delivered:
            self._on_delivery(event)
        elif type(event) is SettlementReceived:
            self.publishing.on_confirm(event)
        elif isinstance(event, MethodReceived):
            self._on_method(event)
        elif isinstance(event, Got):
            self._answer(event)
        elif isinstance(event, ReturnedMessage) and not self.publishing.on_return(event):
            # A message of ours was not routed and we cannot tell which: nothing may count as stored.
            raise ProtocolError(f"expected a return of a publish in flight, got {event!r}")

    def _on_delivery(self, event: Delivered) -> None:
        consumer = self._consumers.get(event.consumer)
        if consumer is None:
            self._give_back(event)
            return
        event.queue = consumer.queue
        try:  # a callback's fault must not end the line
            consumer.on_delivery(event)
        except Exception as problem:
            self._loop.call_exception_handler(
                {"message": f"on_delivery of {consumer.queue!r} raised", "exception": problem}
            )

    def _on_method(self, event: MethodReceived) -> None:
        if event.name == "channel.close":
            self.end(channel_fault(event.arguments["reply_code"], event.arguments["reply_text"]))
        elif event.name == "channel.close-ok":
            self.end(None)
        elif event.name == "basic.cancel":
            # The broker ended the consumer. RabbitMQ 4.3 keeps a consumer that timed out and
            # delivers to it again after a late ack, so we cancel it ourselves as well; a tag that
            # is gone is no error.
            tag = event.arguments["consumer_tag"]
            self._core.send(self.number, "basic.cancel", consumer_tag=tag, nowait=True)
            consumer = self._consumers.pop(tag.encode("utf-8", "surrogateescape"), None)
            if consumer is not None and consumer.on_cancel is not None:
                self._loop.call_soon(consumer.on_cancel, tag)
        elif event.name != "channel.flow":
            self._answer(event.arguments)

    # --- declarations

    async def declare_exchange(self, exchange: Exchange, *, passive: bool = False) -> None:
        """Create it, or check it."""
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
        """Delete it; an exchange that does not exist is no error."""
        await self._request("exchange.delete", exchange=name, if_unused=if_unused)

    async def declare_queue(self, queue: Queue, *, passive: bool = False) -> QueueState:
        """Create it, or check it, and count it."""
        answer = await self._request(
            "queue.declare",
            queue=queue.name,
            passive=passive,
            durable=queue.durable,
            exclusive=queue.exclusive,
            auto_delete=queue.auto_delete,
            arguments={} if passive else queue.declared_arguments,
        )
        return QueueState(answer["queue"], answer["message_count"], answer["consumer_count"])

    async def delete_queue(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete it with its messages and tell how many."""
        answer = await self._request(
            "queue.delete", queue=name, if_unused=if_unused, if_empty=if_empty
        )
        return int(answer["message_count"])

    async def purge_queue(self, name: str) -> int:
        """Remove all ready messages for good and tell how many."""
        answer = await self._request("queue.purge", queue=name)
        return int(answer["message_count"])

    async def bind(self, binding: Binding) -> None:
        """Add the binding; one that exists is no error."""
        await self._request(*_binding("bind", binding), **_ends(binding))

    async def unbind(self, binding: Binding) -> None:
        """Remove the binding; a missing one is no error."""
        await self._request(*_binding("unbind", binding), **_ends(binding))

    # --- publishing

    def publish(self, message: Message, *, mandatory: bool = True) -> Future[None]:
        """Hand the message over, in call order, and return its fate."""
        self._check()
        return self.publishing.publish(message, mandatory)

    def publish_raw(
        self, exchange: str, routing_key: str, properties: bytes, body: bytes
    ) -> Future[None]:
        """As `publish`, with properties as a delivery's `raw_properties` gives them."""
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

    # --- consuming

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
            orphaned=lambda _: self._send_cancel(tag),
            queue=queue,
            consumer_tag=tag,
            exclusive=exclusive,
            no_ack=no_ack,
            arguments=arguments or {},
        )
        return tag

    async def cancel(self, tag: str) -> None:
        """End the consumer; what it holds stays unsettled on this channel. No delivery comes after."""
        self._check()
        if tag.encode() not in self._consumers:
            return
        await self._send_cancel(tag)

    def _send_cancel(self, tag: str) -> Future[Any]:
        answer = self._request("basic.cancel", consumer_tag=tag)
        answer.add_done_callback(lambda _: self._consumers.pop(tag.encode(), None))
        return answer

    async def get(self, queue: str) -> Delivery | None:
        """Take one message, unsettled, or None if the queue has none ready."""
        found = await self._request("basic.get", orphaned=self._give_back, queue=queue)
        if not isinstance(found, Got):
            return None
        found.queue = queue
        return found

    def _give_back(self, found: object) -> None:
        """Whoever asked has gone away: the message must not stay in nobody's hands."""
        if isinstance(found, Delivered) and not self.closed:
            self.nack(found.tag, requeue=True)

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
        """As nack for one, but RabbitMQ 4.3 counts it as a failed delivery."""
        self._check()
        self._settlements.reject(tag, requeue=requeue)
        self._wire.wake()

    async def recover(self) -> None:
        """Put everything unsettled on this channel back into its queues (`basic.recover`)."""
        await self._request("basic.recover", requeue=True)


def _closed_by_us() -> ChannelClosed:
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
