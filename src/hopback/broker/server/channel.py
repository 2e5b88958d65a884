"""One channel of one client: methods in, frames out. The node tells it what happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hopback.broker.embedded.journal import EventKind
from hopback.broker.embedded.refusal import Refusal, not_implemented, precondition_failed
from hopback.broker.server.methods import HANDLERS
from hopback.broker.server.outgoing import confirm_frame, short_text
from hopback.broker.server.replies import REPLY_TO
from hopback.errors import ProtocolError
from hopback.message import Message, Received
from hopback.wire.contents import Published
from hopback.wire.events import MethodReceived, SettlementReceived
from hopback.wire.methods import METHODS
from hopback.wire.states import ChannelState as WireState

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.embedded.session import Session
    from hopback.broker.embedded.stored import Taken
    from hopback.broker.server.client import Client
    from hopback.broker.server.transaction import ChannelTransaction
    from hopback.message import Delivery, Properties
    from hopback.wire.events import Event

__all__ = ["ServerChannel", "reply_text"]

_PUBLISH = METHODS["basic.publish"].id


class ServerChannel:
    """A client's channel. Fills the node's `Sink`: what the node says becomes frames at once."""

    def __init__(self, client: Client, session: Session, number: int) -> None:
        self.client = client
        self.number = number
        self.state = session.open_channel(self, number)
        self.last_queue = ""
        """The queue that an empty name means: the one declared last."""
        self.transaction: ChannelTransaction | None = None
        self.confirming = False
        self._published = 0
        self._confirmed_from = 0
        self._confirmed_to = 0
        self._tags: dict[str, bytes] = {}

    @property
    def name(self) -> str:
        """What RabbitMQ calls a channel."""
        return f"{self.client.name} ({self.number})"

    # What the client says.

    def on_event(self, event: Event) -> None:
        """Do what the client asks; where the node refuses, it has told us so by then."""
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
        """Take a message; return and confirm it."""
        if event.immediate:
            self.refuse(not_implemented("immediate=true"))
        client = self.client
        properties = client.read_properties(event.raw_properties)
        exchange, routing_key, body = event.exchange, event.routing_key, event.body
        if self.confirming:
            self._published += 1
        if properties.reply_to is not None:
            properties = client.house.replies.addressed(self, properties)
        message = Message(exchange, routing_key, body)
        if not exchange and routing_key.startswith(REPLY_TO):
            fate = self._reply(message, properties, mandatory=event.mandatory)
        else:
            fate = self.state.publish(message, mandatory=event.mandatory, properties=properties)
            client.house.took(self.state.node, len(body))
        if fate is EventKind.RETURNED and self.is_open:
            method = client.envelopes.returned(self.number, exchange, routing_key)
            client.core.content(self.number, method, event.raw_properties, body)
        if self.confirming:
            self._confirm(stored=fate is not EventKind.REFUSED)
            if fate is EventKind.RETURNED or fate is EventKind.DROPPED:
                # Nothing has to be stored: the answer goes at once, also before a close that follows.
                self.send_confirms()

    def _reply(self, message: Message, properties: Properties, *, mandatory: bool) -> EventKind:
        """Hand a direct reply to whoever asked."""
        self.state.check_write("")
        asker = self.client.house.replies.asker(message.routing_key)
        if asker is None:
            return EventKind.RETURNED if mandatory else EventKind.DROPPED
        asker.channel.take_reply(asker.tag, message, properties)
        return EventKind.ENQUEUED

    def take_reply(self, tag: str, message: Message, properties: Properties) -> None:
        """A reply has come for our consumer."""
        number = self.state.next_tag()
        reply = Received("", "", message.routing_key, message.body, properties, tag=number)
        self._write(reply, tag)

    def settle(self, event: SettlementReceived) -> None:
        """Ack, nack or reject."""
        match event.name:
            case "basic.ack":
                self.state.ack(event.tag, multiple=event.multiple)
            case "basic.nack":
                self.state.nack(event.tag, requeue=event.requeue, multiple=event.multiple)
            case _:
                self.state.reject(event.tag, requeue=event.requeue)

    def refuse(self, refusal: Refusal) -> None:
        """End the channel or the connection because of what the client asked."""
        self.state.fail(refusal)
        raise refusal

    def check_declared(self, exists: bool) -> None:
        """Refuse another queue, exchange or binding where there are too many."""
        house = self.client.house
        if not exists and house.is_full():
            most = house.limits.declared
            self.refuse(precondition_failed(f"limit of {most} queues, exchanges and bindings"))

    # Confirms: those of one turn go together.

    def _confirm(self, *, stored: bool) -> None:
        if stored:
            if not self._confirmed_to:
                self._confirmed_from = self._published
                self.client.confirming(self)
            self._confirmed_to = self._published
            return
        self.send_confirms()
        if self.is_open:
            self.client.core.write(confirm_frame(self.number, self._published, stored=False))

    def send_confirms(self) -> None:
        """Tell the client which publishes are stored."""
        last, self._confirmed_to = self._confirmed_to, 0
        if last and self.is_open:
            several = last != self._confirmed_from
            frame = confirm_frame(self.number, last, stored=True, multiple=several)
            self.client.core.write(frame)

    # What the node says.

    def deliver(self, taken: Taken) -> None:
        """A delivery for one of our consumers."""
        if taken.consumer is not None:
            self._write(taken, taken.consumer.tag)

    def _write(self, taken: Delivery, tag: str) -> None:
        if self.is_open:
            try:
                self._send(taken, tag)
            except (ProtocolError, ValueError):  # whoever published must not suffer from it
                self.client.line.abort()

    def _send(self, taken: Delivery, tag: str) -> None:
        client, body = self.client, taken.body
        method = client.envelopes.deliver(self.number, self._tags.get(tag) or self._tag(tag), taken)
        raw = client.envelopes.properties(taken.properties)
        client.core.content(self.number, method, raw, body)
        client.queued(len(body) + len(raw) + 100)

    def _tag(self, tag: str) -> bytes:
        known = self._tags[tag] = short_text(tag)
        return known

    def forget_tag(self, tag: str) -> None:
        """A consumer is gone."""
        self._tags.pop(tag, None)

    def hold(self) -> None:
        """Deliveries wait until `let_go`: the answer to `basic.consume` goes first."""
        self.state.paused = True

    def let_go(self) -> None:
        """Deliver, unless the client has as much as it can take."""
        if not self.client.paused and self.state.is_open:
            self.state.flow(active=True)

    def cancelled(self, tag: str) -> None:
        """The node has ended a consumer; clients that cannot be told so are not."""
        self.forget_tag(tag)
        if not self.client.keep_for_later(lambda: self._tell_cancelled(tag)):
            self._tell_cancelled(tag)

    def _tell_cancelled(self, tag: str) -> None:
        if self.is_open and self.client.knows_cancel:
            self.client.core.send(self.number, "basic.cancel", consumer_tag=tag, nowait=True)
            self.client.line.wake()

    def closed(self, refusal: Refusal) -> None:
        """The node has closed the channel, or the connection."""
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
            client.line.wake()

    # Answers.

    @property
    def is_open(self) -> bool:
        """Whether the client still listens to this channel."""
        core = self.client.core.channels.get(self.number)
        return core is not None and core.state is WireState.OPEN and self.client.is_open

    def reply(self, name: str, asked: dict[str, Any], **arguments: Any) -> None:
        """Answer, unless the client does not want an answer or has left meanwhile."""
        if not asked.get("nowait", False) and self.is_open:
            self.client.core.send(self.number, name, **arguments)


def reply_text(refusal: Refusal) -> str:
    """The text as a short string can hold it."""
    raw = refusal.text.encode("utf-8", "replace")
    return refusal.text if len(raw) <= 255 else raw[:252].decode("utf-8", "ignore") + "..."
