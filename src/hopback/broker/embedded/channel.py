"""Channels of the embedded broker.

Requests are executed immediately. Responses arrive in a later iteration of the event loop, as they
would on a network. When the node has closed a channel but the client does not know yet, its calls
have no effect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from hopback.broker.embedded.direct_replies import check_reply_address
from hopback.broker.embedded.faults import Fault
from hopback.broker.embedded.journal import EventKind
from hopback.broker.embedded.refusal import (
    Refusal,
    channel_error,
    connection_error,
    persistent,
    publish_interrupt,
    publish_refused,
    publish_timeout,
)
from hopback.broker.port import REPLY_TO, OnCancel, OnDelivery, QueueState
from hopback.errors import BrokerError, ChannelClosed, ProtocolError
from hopback.message import Message, Properties, Received
from hopback.wire.outgoing import check_body, check_route, encode_message

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

    from hopback.broker.embedded.connection import EmbeddedConnection
    from hopback.broker.embedded.stored import UnackedDelivery
    from hopback.fields import Headers
    from hopback.topology.model import Binding, Exchange, Queue

T = TypeVar("T")

_FRAME_MAX = 131_072  # bytes, the default of RabbitMQ


class EmbeddedChannel:
    """A channel that is connected directly to a node."""

    def __init__(self, connection: EmbeddedConnection) -> None:
        self._connection = connection
        self._broker = connection.broker
        self._faults = connection.broker.faults
        self._put = connection.replies.put
        self._loop = asyncio.get_running_loop()
        self._state = connection.session.open_channel(self)
        self._hand = self._hand_over  # bound once, since looking it up for each delivery is slow
        self._confirm = self._settle_publish
        self._consumers: dict[str, tuple[OnDelivery, OnCancel | None]] = {}
        self._next_consumer = 0
        self._fates: dict[Future[None], Message] = {}
        self._requests: set[Future[Any]] = set()
        self._waiters: deque[Future[None]] = deque()
        self._plain: tuple[Properties | None, Properties | None] = (None, None)
        self._encoded: Properties | None = None
        self._replies = connection.broker.replies
        self._on_reply: OnDelivery | None = None
        self._closing = False
        self._over = False
        self._ended: Future[BrokerError | None] = self._loop.create_future()

    async def _ask(
        self, operation: Callable[[], T], orphaned: Callable[[T], object] | None = None
    ) -> T:
        """Run an operation and wait for the response. `orphaned` cleans up if the caller was
        cancelled.
        """
        self._check()
        answer: Future[T] = self._loop.create_future()
        self._requests.add(answer)
        self._tell(lambda: self._put(self._answer, (answer, operation(), orphaned)))
        return await answer

    def _tell(self, operation: Callable[[], object]) -> None:
        """Run an operation, or delay it while the connection is not being read. Ignored if the
        channel is closed.
        """
        if not self._connection.reading:
            self._connection.postpone(lambda: self._tell(operation))
        elif self._state.is_open:
            # The node reports an error to the channel, which passes it to pending requests.
            with suppress(Refusal):
                operation()

    def _answer(self, said: tuple[Future[T], T, Callable[[T], object] | None]) -> None:
        answer, value, orphaned = said
        self._requests.discard(answer)
        if not answer.done():
            answer.set_result(value)
        elif orphaned is not None:
            orphaned(value)

    def _check(self) -> None:
        if self._over:
            error = self._ended.result() if self._ended.done() else None
            raise (error or ChannelClosed(200, "closed by us")).with_traceback(None)

    # Called by the node (see `Sink`).

    def deliver(self, taken: UnackedDelivery) -> None:
        self._put(self._hand, taken)

    def _hand_over(self, taken: UnackedDelivery) -> None:
        if self._over or taken.consumer is None:
            return
        found = self._consumers.get(taken.consumer.tag)
        if found is not None:
            found[0](taken)

    def on_cancel(self, tag: str) -> None:
        """Called when the broker has cancelled a consumer."""
        self._put(self._lose, tag)

    def _lose(self, tag: str) -> None:
        found = self._consumers.pop(tag, None)
        if found is not None and found[1] is not None:
            found[1](tag)

    def on_close(self, refusal: Refusal) -> None:
        """Called when the broker has closed the channel or connection."""
        if refusal.connection:
            self._connection.fail(connection_error(refusal))
        else:
            self._put(self.end, channel_error(refusal))

    async def wait_open(self) -> None:
        """Wait for the response of the broker."""
        await self._ask(lambda: None)

    async def close(self) -> None:
        """Close the channel and requeue unsettled deliveries. Can be called more than once."""
        if not self._over:
            self._over = True
            self._replies.end(self)
            self._state.close()
            self._put(self.end, None)
        await self.wait_closed()

    async def wait_closed(self) -> BrokerError | None:
        """Wait until the channel is closed. Returns the error, or None after `close`."""
        return await asyncio.shield(self._ended)

    def end(self, error: BrokerError | None) -> None:
        """Pass the reason to all callers that are still waiting."""
        if self._ended.done():
            return
        self._over = True
        self._replies.end(self)
        self._ended.set_result(error)
        for answer in self._requests:
            if not answer.done():
                answer.set_exception(error or ChannelClosed(200, "closed by us"))
        for fate, message in self._fates.items():
            if not fate.done():
                fate.set_exception(publish_interrupt(message, error))
        self._requests.clear()
        self._fates.clear()
        self._consumers.clear()
        self._connection.release(self)
        self.admit()

    async def declare_exchange(self, exchange: Exchange, *, passive: bool = False) -> None:
        await self._ask(lambda: self._state.declare_exchange(exchange, passive=passive))

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange. Does nothing if it does not exist."""
        await self._ask(lambda: self._state.delete_exchange(name, if_unused=if_unused))

    async def declare_queue(self, queue: Queue, *, passive: bool = False) -> QueueState:
        """Declare a queue and return its state."""

        def declare() -> QueueState:
            found = self._state.declare_queue(queue, passive=passive)
            return QueueState(found.name, len(found.ready), found.consumer_count)

        return await self._ask(declare)

    async def delete_queue(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete a queue and return the number of messages it had."""
        return await self._ask(
            lambda: self._state.delete_queue(name, if_unused=if_unused, if_empty=if_empty)
        )

    async def purge_queue(self, name: str) -> int:
        """Delete all ready messages and return how many there were."""
        return await self._ask(lambda: self._state.purge_queue(name))

    async def bind(self, binding: Binding) -> None:
        """Add a binding. Does nothing if it already exists."""
        await self._ask(lambda: self._state.bind(binding))

    async def unbind(self, binding: Binding) -> None:
        """Remove a binding. Does nothing if it does not exist."""
        await self._ask(lambda: self._state.unbind(binding))

    def publish(self, message: Message, *, mandatory: bool = True) -> Future[None]:
        """Publish a message and return a future for the confirm. Order is preserved."""
        if self._over:
            self._check()
        # Reject messages that cannot be sent, like the channel for RabbitMQ does.
        if message.properties is not self._encoded or message.properties.headers:
            encode_message(message, _FRAME_MAX, default_mode=2)
            self._encoded = message.properties
        else:
            check_route(message.exchange, message.routing_key)
            check_body(message)
        fate: Future[None] = self._loop.create_future()
        self._fates[fate] = message
        if self._faults.active and self._inject_fault(fate, message, mandatory=mandatory):
            return fate
        if self._broker.blocked:
            self._connection.stop_reading()
            self._connection.postpone(lambda: self._send(fate, message, mandatory=mandatory))
            self._loop.call_later(self._broker.confirm_timeout, self._time_out, fate)
        else:
            self._send(fate, message, mandatory=mandatory)
        return fate

    def _send(self, fate: Future[None], message: Message, *, mandatory: bool) -> None:
        if not self._state.is_open:
            return
        properties = message.properties
        if properties.reply_to is not None or message.routing_key.startswith(REPLY_TO):
            try:
                addressed = self._run(lambda: self._replies.set_reply_address(self, properties))
                if not message.exchange:
                    profile = self._state.node.profile
                    self._run(partial(check_reply_address, message.routing_key, profile))
            except Refusal:
                return
            if addressed is not properties:
                properties = addressed
                message = replace(message, properties=properties)
            if not message.exchange and message.routing_key.startswith(f"{REPLY_TO}."):
                asker = self._replies.asker(message.routing_key)
                if asker is not None:
                    asker.channel.take_reply(message)
                is_routed = asker is not None and not self._state.node.profile.returns_replies
                unrouted = EventKind.RETURNED if mandatory else EventKind.DROPPED
                self._put(self._confirm, (fate, EventKind.ENQUEUED if is_routed else unrouted))
                return
        if properties.delivery_mode is None:
            if properties is not self._plain[0]:
                self._plain = (properties, persistent(properties))
            kept = self._plain[1]
        else:
            kept = None
        try:
            verdict = self._state.publish(message, mandatory=mandatory, properties=kept)
        except Refusal:
            return  # the channel is closing, and this publish ends with it
        self._put(self._confirm, (fate, verdict))

    def _settle_publish(self, said: tuple[Future[None], EventKind]) -> None:
        fate, verdict = said
        message = self._fates.pop(fate, None)
        if message is not None and not fate.done():
            if verdict is EventKind.REFUSED or verdict is EventKind.RETURNED:
                fate.set_exception(publish_refused(verdict, message))
            else:
                fate.set_result(None)
        if self._waiters:
            self.admit()

    def _inject_fault(self, fate: Future[None], message: Message, *, mandatory: bool) -> bool:
        """Inject a fault into this publish. Returns True if there was one."""
        strikes = self._faults.strikes
        if strikes(Fault.CUT_BEFORE_PUBLISH):
            self._connection.cut()
        elif strikes(Fault.NACK):
            self._put(self._confirm, (fate, EventKind.REFUSED))
        elif mandatory and strikes(Fault.RETURN):
            self._put(self._confirm, (fate, EventKind.RETURNED))
        elif strikes(Fault.LOSE_CONFIRM):
            self._send(self._loop.create_future(), message, mandatory=mandatory)
            self._loop.call_later(self._broker.confirm_timeout, self._time_out, fate)
        elif strikes(Fault.CUT_AFTER_PUBLISH):
            self._send(fate, message, mandatory=mandatory)
            self._connection.cut(buffered=False)
        else:
            return False
        return True

    def _time_out(self, fate: Future[None]) -> None:
        message = self._fates.pop(fate, None)
        if message is not None and not fate.done():
            fate.set_exception(publish_timeout(message, self._broker.confirm_timeout))
        self.admit()

    @property
    def has_room(self) -> bool:
        """Whether another message can be published without waiting."""
        return len(self._fates) < self._broker.window and not self._broker.blocked

    async def room(self) -> None:
        """Wait until another message can be published."""
        self._check()
        while not self.has_room:
            waiter: Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
            self._check()

    def admit(self) -> None:
        """Wake up publishers that are waiting, if there is room."""
        if not self._over and not self.has_room:
            return
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def qos(self, prefetch: int) -> None:
        """Set the prefetch count of new consumers."""
        await self._ask(lambda: self._state.qos(prefetch))

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
        name = tag or f"hopback-{self._state.number}-{self._next_consumer}"
        if name in self._consumers:
            raise ProtocolError(f"expected a new consumer tag on this channel, got {name!r} again")
        self._consumers[name] = (on_delivery, on_cancel)
        if queue == REPLY_TO:
            self._on_reply = on_delivery
            begin = partial(self._replies.begin, self, self._broker.node.made_up, name)
            return await self._ask(lambda: self._run(partial(begin, no_ack=no_ack)))
        return await self._ask(
            lambda: self._state.consume(
                queue, tag=name, no_ack=no_ack, exclusive=exclusive, arguments=arguments
            ),
            orphaned=self._state.cancel,
        )

    def _run(self, operation: Callable[[], T]) -> T:
        """Run an operation. Errors close the channel."""
        try:
            return operation()
        except Refusal as refusal:
            self._state.fail(refusal)
            raise

    def take_reply(self, message: Message) -> None:
        """Deliver a direct reply to this channel."""
        properties = message.properties
        tag = self._state.next_tag()
        reply = Received(REPLY_TO, "", message.routing_key, message.body, properties, tag=tag)
        self._put(self._hand_reply, reply)

    def _hand_reply(self, reply: Received) -> None:
        if not self._over and self._on_reply is not None:
            self._on_reply(reply)

    async def cancel(self, tag: str) -> None:
        """Cancel a consumer. Its deliveries stay unsettled, and no more messages are delivered to
        it.
        """
        self._check()
        if tag in self._consumers:
            await self._ask(lambda: self._state.cancel(tag))
            self._consumers.pop(tag, None)

    async def get(self, queue: str) -> UnackedDelivery | None:
        """Get a message without acking it. Returns None if there are no ready messages."""
        return await self._ask(lambda: self._state.get(queue), orphaned=self._give_back)

    def _give_back(self, taken: UnackedDelivery | None) -> None:
        """Requeue a message if the caller was cancelled."""
        if taken is not None and not self._over:
            self.nack(taken.tag, requeue=True)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Ack a delivery. Unknown tags close the channel."""
        if self._over or self._faults.active or not self._connection.reading:
            self._settle(lambda: self._state.ack(tag, multiple=multiple))
        elif self._state.is_open:
            try:
                self._state.ack(tag, multiple=multiple)
            except Refusal:
                return  # the error was already reported to the channel

    def nack(self, tag: int, *, requeue: bool, multiple: bool = False) -> None:
        """Requeue or dead-letter deliveries."""
        self._settle(lambda: self._state.nack(tag, requeue=requeue, multiple=multiple))

    def reject(self, tag: int, *, requeue: bool) -> None:
        """Requeue or dead-letter a single delivery. RabbitMQ 4.3 counts this as a failure, unlike
        nack.
        """
        self._settle(lambda: self._state.reject(tag, requeue=requeue))

    def _settle(self, operation: Callable[[], None]) -> None:
        self._check()
        if self._faults.active and self._faults.strikes(Fault.CUT_BEFORE_SETTLE):
            self._connection.cut()
        self._tell(operation)
        if self._faults.active and self._faults.strikes(Fault.CUT_AFTER_SETTLE):
            self._connection.cut()

    async def recover(self) -> None:
        """Requeue all unsettled deliveries of this channel (`basic.recover`)."""
        await self._ask(self._state.recover)
