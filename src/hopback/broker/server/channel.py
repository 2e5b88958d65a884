"""A channel of a client. Handles methods and writes frames."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from hopback.broker.embedded.direct_replies import check_reply_address
from hopback.broker.embedded.journal import EventKind
from hopback.broker.embedded.refusal import (
    Refusal,
    no_such,
    not_allowed,
    not_implemented,
    precondition_failed,
)
from hopback.broker.port import REPLY_TO
from hopback.broker.server.outgoing import confirm_frame, short_text
from hopback.errors import ProtocolError
from hopback.message import Delivery, Message, Properties, Received
from hopback.topology.model import Binding, Exchange, Queue, QueueType
from hopback.wire.events import Event, MethodReceived, Published, SettlementReceived
from hopback.wire.frames import ChannelState as WireState
from hopback.wire.methods import METHODS

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.embedded.session import Session, SessionChannel
    from hopback.broker.embedded.stored import UnackedDelivery
    from hopback.broker.server.client import Client
    from hopback.fields import FieldValue

_Arguments: TypeAlias = dict[str, Any]
_Handler: TypeAlias = "Callable[[ServerChannel, _Arguments], None]"
ResultT = TypeVar("ResultT")

HANDLERS: dict[str, _Handler] = {}
"""Maps methods to their handlers."""


def _on(name: str) -> Callable[[_Handler], _Handler]:
    def register(handler: _Handler) -> _Handler:
        HANDLERS[name] = handler
        return handler

    return register


def _ignore(_channel: ServerChannel, _asked: _Arguments) -> None:
    """Does nothing, because this method is handled by the wire."""


HANDLERS.update(dict.fromkeys(("channel.flow-ok", "basic.cancel-ok"), _ignore))


def queue_from(name: str, asked: _Arguments, arguments: dict[str, FieldValue]) -> Queue:
    """Create the queue of a declaration. Unknown types are kept as an argument, so that the node
    refuses them.
    """
    kind, told = QueueType.CLASSIC, arguments.get("x-queue-type")
    if isinstance(told, str) and told in tuple(QueueType):
        kind = QueueType(told)
        arguments = {key: value for key, value in arguments.items() if key != "x-queue-type"}
    return Queue(
        name,
        kind,
        durable=asked["durable"],
        exclusive=asked["exclusive"],
        auto_delete=asked["auto_delete"],
        arguments=arguments,
    )


def _queue_name(channel: ServerChannel, name: str) -> str:
    """Return the name of a queue. An empty name means the queue that was declared last on this
    channel.
    """
    if name:
        return name
    if not channel.last_queue:
        channel.refuse(Refusal(404, "NOT_FOUND - no previously declared queue"))
    return channel.last_queue


@_on("channel.flow")
def _flow(channel: ServerChannel, asked: _Arguments) -> None:
    if not asked["active"]:
        channel.refuse(not_implemented("active=false"))
    channel.reply("channel.flow-ok", asked, active=True)


@_on("exchange.declare")
def _declare_exchange(channel: ServerChannel, asked: _Arguments) -> None:
    name = asked["exchange"]
    if not asked["passive"]:
        channel.check_declared(name in channel.state.node.routing.exchanges)
    exchange = Exchange(
        name,
        asked["type"],
        durable=asked["durable"],
        auto_delete=asked["auto_delete"],
        internal=asked["internal"],
        arguments=asked["arguments"],
    )
    channel.state.declare_exchange(exchange, passive=asked["passive"])
    channel.reply("exchange.declare-ok", asked)


@_on("exchange.delete")
def _delete_exchange(channel: ServerChannel, asked: _Arguments) -> None:
    channel.state.delete_exchange(asked["exchange"], if_unused=asked["if_unused"])
    channel.reply("exchange.delete-ok", asked)


def _exchange_binding(asked: _Arguments) -> Binding:
    return Binding(
        asked["source"],
        asked["destination"],
        asked["routing_key"],
        to_exchange=True,
        arguments=asked["arguments"],
    )


@_on("exchange.bind")
def _bind_exchange(channel: ServerChannel, asked: _Arguments) -> None:
    channel.check_declared(False)
    channel.state.bind(_exchange_binding(asked))
    channel.reply("exchange.bind-ok", asked)


@_on("exchange.unbind")
def _unbind_exchange(channel: ServerChannel, asked: _Arguments) -> None:
    channel.state.unbind(_exchange_binding(asked))
    channel.reply("exchange.unbind-ok", asked)


@_on("queue.declare")
def _declare_queue(channel: ServerChannel, asked: _Arguments) -> None:
    name, node = asked["queue"], channel.state.node
    if name.startswith(REPLY_TO):
        # The replier may check whether the requester is still waiting.
        waiting = channel.client.broker.replies.asker(name) is not None
        if name != REPLY_TO and not waiting:
            channel.refuse(no_such(channel.state.node.place("queue", name)))
        channel.reply("queue.declare-ok", asked, queue=name, message_count=0, consumer_count=1)
        return
    if asked["passive"]:
        name = _queue_name(channel, name)
    else:
        channel.check_declared(name in node.queues)
    queue = queue_from(name, asked, asked["arguments"])
    found = channel.state.declare_queue(queue, passive=asked["passive"])
    channel.last_queue = found.name
    channel.reply(
        "queue.declare-ok",
        asked,
        queue=found.name,
        message_count=len(found.ready),
        consumer_count=found.consumer_count,
    )


def _queue_binding(channel: ServerChannel, asked: _Arguments) -> Binding:
    queue = _queue_name(channel, asked["queue"])
    key = asked["routing_key"] or ("" if asked["queue"] else queue)
    return Binding(asked["exchange"], queue, key, arguments=asked["arguments"])


@_on("queue.bind")
def _bind_queue(channel: ServerChannel, asked: _Arguments) -> None:
    channel.check_declared(False)
    channel.state.bind(_queue_binding(channel, asked))
    channel.reply("queue.bind-ok", asked)


@_on("queue.unbind")
def _unbind_queue(channel: ServerChannel, asked: _Arguments) -> None:
    channel.state.unbind(_queue_binding(channel, asked))
    channel.reply("queue.unbind-ok", asked)


@_on("queue.purge")
def _purge_queue(channel: ServerChannel, asked: _Arguments) -> None:
    count = channel.state.purge_queue(_queue_name(channel, asked["queue"]))
    channel.reply("queue.purge-ok", asked, message_count=count)


@_on("queue.delete")
def _delete_queue(channel: ServerChannel, asked: _Arguments) -> None:
    name = _queue_name(channel, asked["queue"])
    with channel.client.answer_first():
        count = channel.state.delete_queue(
            name, if_unused=asked["if_unused"], if_empty=asked["if_empty"]
        )
        channel.reply("queue.delete-ok", asked, message_count=count)


@_on("basic.qos")
def _qos(channel: ServerChannel, asked: _Arguments) -> None:
    if asked["prefetch_size"]:
        channel.refuse(not_implemented(f"prefetch_size!=0 ({asked['prefetch_size']})"))
    channel.state.qos(asked["prefetch_count"], whole_channel=asked["global_"])
    channel.reply("basic.qos-ok", asked)


@_on("basic.consume")
def _consume(channel: ServerChannel, asked: _Arguments) -> None:
    """Start a consumer. The response is sent before the first delivery."""
    if asked["queue"] == REPLY_TO:
        begin = partial(channel.client.broker.replies.begin, channel, channel.state.node.made_up)
        tag = channel.run(lambda: begin(asked["consumer_tag"], no_ack=asked["no_ack"]))
        channel.reply("basic.consume-ok", asked, consumer_tag=tag)
        return
    most = channel.client.broker.limits.consumers
    if len(channel.state.consumers) >= most:
        channel.refuse(not_allowed(f"reached maximum ({most}) of consumers per channel"))
    channel.hold()
    try:
        tag = channel.state.consume(
            _queue_name(channel, asked["queue"]),
            tag=asked["consumer_tag"],
            no_ack=asked["no_ack"],
            exclusive=asked["exclusive"],
            arguments=asked["arguments"],
        )
        channel.reply("basic.consume-ok", asked, consumer_tag=tag)
    finally:
        channel.let_go()


@_on("basic.cancel")
def _cancel(channel: ServerChannel, asked: _Arguments) -> None:
    tag = asked["consumer_tag"]
    channel.client.broker.replies.end(channel, tag)
    channel.state.cancel(tag)
    channel.forget_tag(tag)
    channel.reply("basic.cancel-ok", asked, consumer_tag=tag)


@_on("basic.get")
def _get(channel: ServerChannel, asked: _Arguments) -> None:
    taken = channel.state.get(_queue_name(channel, asked["queue"]), no_ack=asked["no_ack"])
    if taken is None:
        channel.reply("basic.get-empty", asked)
    elif channel.is_open:
        client = channel.client
        method = client.envelopes.get_ok(channel.number, taken, len(taken.source.ready))
        raw = client.envelopes.properties(taken.properties)
        client.core.reply_with_content(channel.number, "basic.get-ok", method, raw, taken.body)


@_on("basic.recover")
def _recover(channel: ServerChannel, asked: _Arguments) -> None:
    _recover_async(channel, asked)
    channel.reply("basic.recover-ok", asked)


@_on("basic.recover-async")
def _recover_async(channel: ServerChannel, asked: _Arguments) -> None:
    if not asked["requeue"]:
        channel.refuse(not_implemented("requeue=false"))
    channel.state.recover()


# A channel can have either confirms or transactions.


@_on("confirm.select")
def _select_confirms(channel: ServerChannel, asked: _Arguments) -> None:
    if channel.transaction is not None:
        channel.refuse(precondition_failed("cannot switch from tx to confirm mode"))
    channel.confirming = True
    channel.reply("confirm.select-ok", asked)


@_on("tx.select")
def _select_transactions(channel: ServerChannel, asked: _Arguments) -> None:
    if channel.confirming:
        channel.refuse(precondition_failed("cannot switch from confirm to tx mode"))
    if channel.transaction is None:
        channel.transaction = ChannelTransaction()
    channel.reply("tx.select-ok", asked)


@_on("tx.commit")
def _commit(channel: ServerChannel, asked: _Arguments) -> None:
    _transaction(channel).commit()
    channel.reply("tx.commit-ok", asked)


@_on("tx.rollback")
def _roll_back(channel: ServerChannel, asked: _Arguments) -> None:
    _transaction(channel).roll_back()
    channel.reply("tx.rollback-ok", asked)


def _transaction(channel: ServerChannel) -> ChannelTransaction:
    if channel.transaction is None:
        refusal = precondition_failed("channel is not transactional")
        channel.state.fail(refusal)
        raise refusal
    return channel.transaction


_PUBLISH = METHODS["basic.publish"].id


class ServerChannel:
    """A channel of a client. The node writes to it as a `Sink`."""

    def __init__(self, client: Client, session: Session, number: int) -> None:
        self.client = client
        self.number = number
        self.state: SessionChannel = session.open_channel(self, number)
        self.last_queue = ""
        """The queue that was declared last. Methods with an empty queue name refer to it."""
        self.transaction: ChannelTransaction | None = None
        self.confirming = False
        self._published = 0
        self._confirmed_from = 0
        self._confirmed_to = 0
        self._tags: dict[str, bytes] = {}

    @property
    def name(self) -> str:
        """The name of the channel, as in RabbitMQ."""
        return f"{self.client.name} ({self.number})"

    def on_event(self, event: Event) -> None:
        """Handle an event. Errors have already been sent to the client."""
        client = self.client
        try:
            if type(event) is Published:
                client.doing = _PUBLISH
                if self.transaction is None:
                    self.publish(event)
                else:
                    self._defer(lambda: self.publish(event), len(event.body))
            elif type(event) is SettlementReceived:
                client.doing = METHODS[event.name].id
                if self.transaction is None:
                    self.settle(event)
                else:
                    self._defer(lambda: self.settle(event))
            elif isinstance(event, MethodReceived):
                client.doing = METHODS[event.name].id
                HANDLERS[event.name](self, event.arguments)
        except Refusal:
            pass
        client.doing = 0

    def _defer(self, step: Callable[[], None], size: int = 0) -> None:
        problem = self.transaction.add(step, size) if self.transaction is not None else None
        if problem is not None:
            self.refuse(problem)

    def publish(self, event: Published) -> None:
        """Publish a message, and return or confirm it."""
        if event.immediate:
            self.refuse(not_implemented("immediate=true"))
        client = self.client
        properties = client.read_properties(event.raw_properties)
        exchange, routing_key, body = event.exchange, event.routing_key, event.body
        if self.confirming:
            self._published += 1
        if properties.reply_to is not None:
            properties = self.run(
                partial(client.broker.replies.set_reply_address, self, properties)
            )
        message = Message(exchange, routing_key, body)
        if not exchange and routing_key.startswith(REPLY_TO):
            fate = self._reply(message, properties, mandatory=event.mandatory)
        else:
            fate = self.state.publish(message, mandatory=event.mandatory, properties=properties)
            client.broker.took(self.state.node, len(body))
        if fate is EventKind.RETURNED and self.is_open:
            method = client.envelopes.return_frame(self.number, exchange, routing_key)
            client.core.content(self.number, method, event.raw_properties, body)
        if self.confirming:
            if fate is EventKind.REFUSED:
                self.send_confirms()
                if self.is_open:
                    client.core.write(confirm_frame(self.number, self._published, stored=False))
            else:
                if not self._confirmed_to:
                    self._confirmed_from = self._published
                    client.mark_confirming(self)
                self._confirmed_to = self._published
            if fate is EventKind.RETURNED or fate is EventKind.DROPPED:
                # Confirm right away, since the message is not stored and the channel may be closed
                # next.
                self.send_confirms()

    def _reply(self, message: Message, properties: Properties, *, mandatory: bool) -> EventKind:
        """Pass a direct reply to the channel of the requester."""
        self.state.check_write("")
        self.run(partial(check_reply_address, message.routing_key, self.state.node.profile))
        asker = self.client.broker.replies.asker(message.routing_key)
        if asker is not None:
            asker.channel.take_reply(asker.tag, message, properties)
        if asker is not None and not self.state.node.profile.returns_replies:
            return EventKind.ENQUEUED
        return EventKind.RETURNED if mandatory else EventKind.DROPPED

    def take_reply(self, tag: str, message: Message, properties: Properties) -> None:
        """Deliver a direct reply to the consumer of this channel."""
        number = self.state.next_tag()
        reply = Received("", "", message.routing_key, message.body, properties, tag=number)
        self._write(reply, tag)

    def settle(self, event: SettlementReceived) -> None:
        match event.name:
            case "basic.ack":
                self.state.ack(event.tag, multiple=event.multiple)
            case "basic.nack":
                self.state.nack(event.tag, requeue=event.requeue, multiple=event.multiple)
            case _:
                self.state.reject(event.tag, requeue=event.requeue)

    def refuse(self, refusal: Refusal) -> None:
        """Close the channel or connection with an error."""
        self.state.fail(refusal)
        raise refusal

    def run(self, operation: Callable[[], ResultT]) -> ResultT:
        """Run an operation. Errors close the channel or connection."""
        try:
            return operation()
        except Refusal as refusal:
            self.refuse(refusal)
            raise

    def check_declared(self, exists: bool) -> None:
        """Raise an error if there are too many queues, exchanges and bindings."""
        broker = self.client.broker
        if not exists and broker.is_full():
            most = broker.limits.declared
            self.refuse(precondition_failed(f"limit of {most} queues, exchanges and bindings"))

    # Confirms from the same iteration of the event loop are sent together.

    def send_confirms(self) -> None:
        """Confirm messages that were stored."""
        last, self._confirmed_to = self._confirmed_to, 0
        if last and self.is_open:
            several = last != self._confirmed_from
            frame = confirm_frame(self.number, last, stored=True, multiple=several)
            self.client.core.write(frame)

    # Called by the node.

    def deliver(self, taken: UnackedDelivery) -> None:
        """Write a delivery to a consumer of this channel."""
        if taken.consumer is not None:
            self._write(taken, taken.consumer.tag)

    def _write(self, taken: Delivery, tag: str) -> None:
        if self.is_open:
            try:
                client, body = self.client, taken.body
                raw_tag = self._tags.get(tag)
                if raw_tag is None:
                    raw_tag = self._tags[tag] = short_text(tag)
                method = client.envelopes.deliver(self.number, raw_tag, taken)
                raw = client.envelopes.properties(taken.properties)
                client.core.content(self.number, method, raw, body)
                client.count_queued(len(body) + len(raw) + 100)
            except (ProtocolError, ValueError):  # the publisher must not get this error
                self.client.socket.abort()

    def forget_tag(self, tag: str) -> None:
        self._tags.pop(tag, None)

    def hold(self) -> None:
        """Pause deliveries until `let_go` is called. The response to `basic.consume` has to be sent
        first.
        """
        self.state.paused = True

    def let_go(self) -> None:
        """Resume deliveries, unless the client is still reading its backlog."""
        if not self.client.paused and self.state.is_open:
            self.state.flow(active=True)

    def on_cancel(self, tag: str) -> None:
        """The node has cancelled a consumer. Tell the client, if it supports this."""
        self.forget_tag(tag)
        if not self.client.keep_for_later(lambda: self._tell_cancelled(tag)):
            self._tell_cancelled(tag)

    def _tell_cancelled(self, tag: str) -> None:
        if self.is_open and self.client.knows_cancel:
            self.client.core.send(self.number, "basic.cancel", consumer_tag=tag, nowait=True)
            self.client.socket.wake()

    def on_close(self, refusal: Refusal) -> None:
        """The node has closed the channel or connection."""
        client = self.client
        if refusal.connection:
            client.refuse(refusal)
        elif self.is_open:
            self.send_confirms()
            client.core.send(
                self.number,
                "channel.close",
                reply_code=refusal.code,
                reply_text=reply_text(refusal),
                class_id=client.doing >> 16,
                method_id=client.doing & 0xFFFF,
            )
            client.socket.wake()

    @property
    def is_open(self) -> bool:
        """Whether the client is still listening to this channel."""
        core = self.client.core.channels.get(self.number)
        return core is not None and core.state is WireState.OPEN and self.client.is_open

    def reply(self, name: str, asked: dict[str, Any], **arguments: Any) -> None:
        """Send a response, unless the client has set `nowait` or has disconnected."""
        if not asked.get("nowait", False) and self.is_open:
            self.client.core.send(self.number, name, **arguments)


def reply_text(refusal: Refusal) -> str:
    """Truncate text to the maximum length of a short string."""
    raw = refusal.text.encode("utf-8", "replace")
    return refusal.text if len(raw) <= 255 else raw[:252].decode("utf-8", "ignore") + "..."


#
# `tx`: publishes and settlements that wait for a commit. As in RabbitMQ, they are batched, not
# atomic.

_MOST_BYTES = 64 * 1024 * 1024
"""Maximum size of a transaction in bytes. It uses memory in addition to that of the queues, which
has its own limit.
"""
_STEP_BYTES = 1000
"""Bytes to add for each step, because empty messages and acks also need memory."""


class ChannelTransaction:
    """The publishes and settlements since the last commit."""

    __slots__ = ("_bytes", "_steps")

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []
        self._bytes = 0

    def add(self, step: Callable[[], None], size: int = 0) -> Refusal | None:
        """Add a step to the transaction. Returns an error if the transaction is too large."""
        self._bytes += size + _STEP_BYTES
        if self._bytes > _MOST_BYTES:
            return Refusal(506, "RESOURCE_ERROR - too much in one transaction; commit more often")
        self._steps.append(step)
        return None

    def commit(self) -> None:
        """Commit: run all steps in order."""
        steps, self._steps, self._bytes = self._steps, [], 0
        for step in steps:
            step()

    def roll_back(self) -> None:
        """Roll back: discard all steps. Deliveries stay unsettled."""
        self._steps, self._bytes = [], 0
