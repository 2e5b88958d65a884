"""The broker's side of connections and channels."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from hopback.broker.embedded.arguments import integer_problem
from hopback.broker.embedded.consumers import ConsumerTimeout, QueueConsumer
from hopback.broker.embedded.journal import EventKind, Loss
from hopback.broker.embedded.queue import LiveQueue, ReturnKind
from hopback.broker.embedded.refusal import (
    Refusal,
    access_refused,
    not_allowed,
    not_implemented,
    precondition_failed,
)
from hopback.broker.embedded.rights import (
    DEFAULT_EXCHANGE,
    Right,
    Rights,
    access_refusal,
    topic_refusal,
)
from hopback.broker.embedded.stored import Entry, UnackedDelivery
from hopback.topology.model import Binding, Exchange, ExchangeType, Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hopback.broker.embedded.node import Node
    from hopback.fields import Headers
    from hopback.message import Message, Properties

P = ParamSpec("P")
T = TypeVar("T")


class Sink(Protocol):
    """Receives the output of a channel. It must not call the broker."""

    def deliver(self, taken: UnackedDelivery) -> None:
        """Handle a delivery for the consumer `taken.consumer`."""

    def on_cancel(self, tag: str) -> None:
        """Called when the broker has cancelled a consumer."""

    def on_close(self, refusal: Refusal) -> None:
        """Called when the broker has closed the channel or its connection."""


class Session:
    def __init__(self, node: Node, name: str, user: str, rights: Rights | None = None) -> None:
        self.node = node
        self.name = name
        self.user = user
        self.opened_at: float = node.now()
        self.rights = rights
        """The permissions of the user. None allows everything."""
        self.channels: dict[int, SessionChannel] = {}
        self.is_open: bool = True

    def check(self, right: Right, kind: str, name: str) -> None:
        """Raise 403 if the user does not have this permission."""
        name = name or DEFAULT_EXCHANGE
        if self.rights is not None and not self.rights.allows(right, name):
            raise access_refusal(self._right_name(right), kind, name, self.node.vhost, self.user)

    def check_passive(self, kind: str, name: str) -> None:
        """Raise 403 if a passive declare requires a permission, and the user has none for this name."""
        if not self.node.profile.passive_declare_needs_right or self.rights is None:
            return
        if not any(self.rights.allows(right, name) for right in Right):
            named = self._right_name(Right.CONFIGURE)
            raise access_refusal(named, kind, name, self.node.vhost, self.user)

    def check_topic(self, right: Right, exchange: str, key: str) -> None:
        """Raise 403 if the user may not use this routing key of a topic exchange."""
        found = self.node.routing.exchanges.get(exchange)
        if self.rights is None or found is None or found.type != ExchangeType.TOPIC:
            return
        if not self.rights.allows_topic(right, exchange, key):
            raise topic_refusal(self._right_name(right), key, exchange, self.node.vhost, self.user)

    def _right_name(self, right: Right) -> Right | None:
        return right if self.node.profile.refusals_name_the_right else None

    def open_channel(self, sink: Sink, number: int | None = None) -> SessionChannel:
        if number is None:
            number = max(self.channels, default=0) + 1
        channel = self.channels[number] = SessionChannel(self, number, sink)
        return channel

    def close(self) -> None:
        """Close the connection. Deliveries are requeued, and exclusive queues are deleted. Can be
        called more than once.
        """
        if not self.is_open:
            return
        self.is_open = False
        for channel in tuple(self.channels.values()):
            channel.close()
        self.node.sessions.remove(self)
        for queue in tuple(self.node.queues.values()):
            if queue.owner is self:
                self.node.remove_queue(queue, Loss.QUEUE_DELETED)

    def fail(self, refusal: Refusal) -> None:
        channels = tuple(self.channels.values())
        self.close()
        for channel in channels:
            channel.sink.on_close(refusal)


def _refusable(
    operation: Callable[Concatenate[SessionChannel, P], T],
) -> Callable[Concatenate[SessionChannel, P], T]:
    """Wrap an operation so that the channel or connection is closed before an error is raised."""

    @wraps(operation)
    def guarded(self: SessionChannel, /, *args: P.args, **options: P.kwargs) -> T:
        try:
            return operation(self, *args, **options)
        except Refusal as refusal:
            self.fail(refusal)
            raise

    return guarded


class SessionChannel:
    """A channel. Any error closes it, or its connection, and is also raised to the caller."""

    __slots__ = (
        "_consumer_timeout",
        "_lowest",
        "_tag",
        "ceiling",
        "consumers",
        "is_open",
        "node",
        "number",
        "paused",
        "prefetch",
        "session",
        "sink",
        "unacked",
    )

    def __init__(self, session: Session, number: int, sink: Sink) -> None:
        self.session: Session = session
        self.node: Node = session.node
        self.number: int = number
        self.sink: Sink = sink
        self.is_open: bool = True
        self.paused: bool = False
        self.prefetch: int = 0
        """The limit of each consumer that is started later. 0 means no limit."""
        self.ceiling: int = 0
        """The limit of the whole channel. 0 means no limit."""
        self.consumers: dict[str, QueueConsumer] = {}
        self.unacked: dict[int, UnackedDelivery] = {}
        self._tag = 0
        self._lowest = 1
        self._consumer_timeout = ConsumerTimeout(self)

    def fail(self, refusal: Refusal) -> None:
        """Close the channel or connection because of an error."""
        if refusal.connection:
            self.session.fail(refusal)
        elif self.is_open:
            self.close()
            self.sink.on_close(refusal)

    def close(self) -> None:
        """Close the channel and requeue unsettled deliveries. Can be called more than once."""
        if not self.is_open:
            return
        self.is_open = False
        self.session.channels.pop(self.number, None)
        self._consumer_timeout.clear()
        held, self.unacked = list(self.unacked.values()), {}
        self._give_back(held, ReturnKind.CLOSE)
        for consumer in tuple(self.consumers.values()):
            consumer.queue.remove_consumer(consumer)
        self.consumers.clear()

    @_refusable
    def declare_exchange(self, exchange: Exchange, *, passive: bool = False) -> None:
        routing, check = self.node.routing, self.session.check
        if exchange.name and passive:
            self.session.check_passive("exchange", exchange.name)
        elif exchange.name:
            check(Right.CONFIGURE, "exchange", exchange.name)
        alternate = exchange.arguments.get("alternate-exchange")
        if not passive and isinstance(alternate, str) and exchange.name not in routing.exchanges:
            check(Right.READ, "exchange", exchange.name)
            check(Right.WRITE, "exchange", alternate)
        routing.declare(exchange, passive=passive)

    @_refusable
    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        if name and not name.startswith("amq."):
            self.session.check(Right.CONFIGURE, "exchange", name)
        self.node.routing.delete(name, if_unused=if_unused)

    @_refusable
    def declare_queue(self, queue: Queue, *, passive: bool = False) -> LiveQueue:
        return self.node.declare_queue(self.session, queue, passive=passive)

    @_refusable
    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue and return the number of ready messages."""
        return self.node.delete_queue(self.session, name, if_unused=if_unused, if_empty=if_empty)

    @_refusable
    def purge_queue(self, name: str) -> int:
        """Delete all ready messages and return how many there were."""
        return self._readable(name).purge()

    def _readable(self, name: str) -> LiveQueue:
        """Find a queue that the user may read from."""
        self.session.check(Right.READ, "queue", name)
        return self.node.queue(name, self.session)

    @_refusable
    def bind(self, binding: Binding) -> None:
        self._check_binding(binding)
        queue = None if binding.to_exchange else self.node.queues.get(binding.destination)
        if queue is not None:
            self.node.queue(queue.name, self.session)
        self.node.routing.bind(binding)

    @_refusable
    def unbind(self, binding: Binding) -> None:
        self._check_binding(binding)
        self.node.routing.unbind(binding)

    def _check_binding(self, binding: Binding) -> None:
        session, kind = self.session, "exchange" if binding.to_exchange else "queue"
        session.check(Right.WRITE, kind, binding.destination)
        if binding.source:
            session.check(Right.READ, "exchange", binding.source)
            session.check_topic(Right.READ, binding.source, binding.routing_key)

    def publish(
        self, message: Message, *, mandatory: bool = False, properties: Properties | None = None
    ) -> EventKind:
        """Route a message and return its fate: ENQUEUED, REFUSED, RETURNED or DROPPED.

        `properties` can be used to replace the properties of the message.
        """
        session = self.session
        try:
            if session.rights is not None:
                session.check(Right.WRITE, "exchange", message.exchange)
            content = self.node.intake.take(message, properties or message.properties, session.user)
            if session.rights is not None:
                session.check_topic(Right.WRITE, message.exchange, message.routing_key)
        except Refusal as refusal:
            self.fail(refusal)
            raise
        return self.node.publish(content, mandatory=mandatory)

    @_refusable
    def check_write(self, exchange: str) -> None:
        """Raise 403 if the user may not write to this exchange."""
        self.session.check(Right.WRITE, "exchange", exchange)

    def qos(self, prefetch: int, *, whole_channel: bool = False) -> None:
        """Limit the unsettled deliveries of consumers started later, or of the whole channel."""
        if not whole_channel:
            self.prefetch = prefetch
        elif self.node.profile.global_qos_refused:
            self.ceiling = prefetch
            self._wake_all()
        else:
            self.prefetch = prefetch  # 4.3 treats it as a per-consumer limit and logs an error

    def flow(self, *, active: bool) -> None:
        """Pause or resume deliveries to a client that is too slow."""
        self.paused = not active
        if active:
            self._wake_all()

    def _wake_all(self) -> None:
        for consumer in tuple(self.consumers.values()):
            consumer.queue.ring.wake(consumer)
            consumer.queue.pump()

    @_refusable
    def consume(
        self,
        queue: str,
        *,
        tag: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Headers | None = None,
    ) -> str:
        live, given = self._readable(queue), arguments or {}
        if tag in self.consumers:
            raise not_allowed(f"attempt to reuse consumer tag '{tag}'")
        self._check_consumer(live, given, exclusive=exclusive)
        consumer = QueueConsumer(
            tag or self.node.made_up("amq.ctag-"),
            live,
            self,
            prefetch=self.prefetch,
            no_ack=no_ack,
            exclusive=exclusive,
            arguments=given,
        )
        self.consumers[consumer.tag] = consumer
        # If a cancelled consumer of a quorum queue still has unsettled messages, a new one with the
        # same tag on the same channel takes its place.
        leaving = live.ring.leaving
        for old in [each for each in leaving if (each.tag, each.channel) == (consumer.tag, self)]:
            leaving.remove(old)
            consumer.holding = old.holding
            for taken in self.unacked.values():
                if taken.consumer is old:
                    taken.consumer = consumer
        live.add_consumer(consumer)
        return consumer.tag

    def _check_consumer(self, queue: LiveQueue, arguments: Headers, *, exclusive: bool) -> None:
        place, others = self.node.place("queue", queue.name), queue.ring.consumers
        if "x-priority" in arguments:
            problem = integer_problem(arguments["x-priority"])
            if problem is not None:
                raise precondition_failed(f"invalid arg 'x-priority' for {place}: {problem}")
        if queue.is_quorum:
            if self.ceiling:
                raise not_implemented(f"{place} does not support global qos")
        elif others and (exclusive or any(other.exclusive for other in others)):
            raise access_refused(f"{place} in exclusive use")

    def cancel(self, tag: str) -> None:
        """Cancel a consumer. Its deliveries stay unsettled."""
        consumer = self.consumers.pop(tag, None)
        if consumer is not None:
            consumer.queue.remove_consumer(consumer, by_client=True)

    def lose_consumer(self, consumer: QueueConsumer) -> None:
        """Remove a consumer because its queue was deleted."""
        if self.consumers.pop(consumer.tag, None) is not None and self.is_open:
            self.sink.on_cancel(consumer.tag)

    def end_consumer(self, consumer: QueueConsumer, held: Sequence[UnackedDelivery]) -> None:
        """Cancel a consumer and requeue these deliveries. Settling them later has no effect."""
        if self.consumers.pop(consumer.tag, None) is not None:
            consumer.queue.remove_consumer(consumer)
            self.sink.on_cancel(consumer.tag)
        consumer.queue.requeue([taken for taken in held if not taken.void], ReturnKind.TIMEOUT)
        for taken in held:
            taken.void = True

    def has_room(self, _consumer: QueueConsumer) -> bool:
        """Whether the limit of the channel allows another delivery."""
        if not self.is_open or self.paused:
            return False
        return not self.ceiling or len(self.unacked) < self.ceiling

    def hand_over(self, queue: LiveQueue, entry: Entry, consumer: QueueConsumer) -> None:
        """Deliver a message to a consumer."""
        taken = self._take(queue, entry, consumer)
        if consumer.no_ack:
            self._ack_at_once(queue, entry)
        else:
            consumer.holding += 1
            self._remember(taken)
        self.sink.deliver(taken)

    @_refusable
    def get(self, name: str, *, no_ack: bool = False) -> UnackedDelivery | None:
        """Get a message. Returns None if no message is ready."""
        queue = self._readable(name)
        entry = queue.take()
        if entry is None:
            return None
        taken = self._take(queue, entry, None)
        if no_ack:
            self._ack_at_once(queue, entry)
        else:
            self._remember(taken)
        return taken

    def next_tag(self) -> int:
        """Return the next delivery tag of this channel."""
        self._tag += 1
        return self._tag

    def _take(
        self, queue: LiveQueue, entry: Entry, consumer: QueueConsumer | None
    ) -> UnackedDelivery:
        self._tag += 1
        taken = UnackedDelivery(self._tag, queue, entry, consumer, self.node.now())
        if queue.is_quorum:
            taken.counts = queue.counts(entry, by_get=consumer is None)
        if self.node.journal is not None:
            self.node.journal.entry(EventKind.DELIVERED, entry, queue.name)
        return taken

    def _ack_at_once(self, queue: LiveQueue, entry: Entry) -> None:
        if self.node.journal is not None:
            self.node.journal.entry(EventKind.ACKED, entry, queue.name)

    def _remember(self, taken: UnackedDelivery) -> None:
        self.unacked[taken.tag] = taken
        taken.source.unacked += 1
        self._consumer_timeout.watch(taken)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        for taken in self._take_named(tag, multiple=multiple):
            if not taken.void:
                taken.source.ack(taken)
        if self.ceiling:
            self._wake_all()

    def nack(self, tag: int, *, requeue: bool, multiple: bool = False) -> None:
        self._refuse(self._take_named(tag, multiple=multiple), ReturnKind.NACK, requeue=requeue)

    def reject(self, tag: int, *, requeue: bool) -> None:
        self._refuse(self._take_named(tag, multiple=False), ReturnKind.REJECT, requeue=requeue)

    def recover(self) -> None:
        """Requeue all unsettled deliveries."""
        held, self.unacked = list(self.unacked.values()), {}
        self._give_back(held, ReturnKind.RECOVER)

    def _refuse(self, deliveries: list[UnackedDelivery], how: ReturnKind, *, requeue: bool) -> None:
        if requeue:
            self._give_back(deliveries, how)
        else:
            for taken in deliveries:
                if not taken.void:
                    taken.source.discard(taken, how)
        if self.ceiling:
            self._wake_all()

    def _give_back(self, deliveries: Iterable[UnackedDelivery], how: ReturnKind) -> None:
        by_queue: dict[LiveQueue, list[UnackedDelivery]] = {}
        for taken in deliveries:
            if not taken.void:
                by_queue.setdefault(taken.source, []).append(taken)
        for queue, held in by_queue.items():
            queue.requeue(held, how)

    def _take_named(self, tag: int, *, multiple: bool) -> list[UnackedDelivery]:
        """Remove the deliveries that are settled from the list of unsettled ones."""
        if multiple and tag == 0:
            held, self.unacked = list(self.unacked.values()), {}
            return held
        taken = self.unacked.pop(tag, None)
        if taken is None:
            refusal = precondition_failed(f"unknown delivery tag {tag}")
            self.fail(refusal)
            raise refusal
        if not multiple:
            return [taken]
        older = (self.unacked.pop(number, None) for number in range(self._lowest, tag))
        held = [each for each in older if each is not None]
        self._lowest = tag + 1
        return [*held, taken]
