"""The embedded broker: a synchronous state machine without I/O.

A server, a client or a test drives it. The node never waits and has no clock. It reads the time
from `now`, and the owner of the clock calls `run_due` when `next_deadline` has passed. A
`PublishChecker` checks every publish before the node stores it.
"""

from __future__ import annotations

import base64
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.broker.embedded.arguments import (
    check_expiration,
    check_queue_arguments,
    inequivalent,
    inequivalent_argument,
)
from hopback.broker.embedded.dead_lettering import DeadLetterer, deaths_to_count
from hopback.broker.embedded.direct_replies import check_reply_address
from hopback.broker.embedded.journal import Event, EventKind, EventReporter, Loss
from hopback.broker.embedded.profile import Profile, profile_for
from hopback.broker.embedded.queue import LiveQueue
from hopback.broker.embedded.refusal import (
    Refusal,
    access_refused,
    frame_error,
    no_such,
    not_implemented,
    precondition_failed,
    resource_locked,
    type_name,
    where,
)
from hopback.broker.embedded.rights import Right, Rights
from hopback.broker.embedded.routing import Routing
from hopback.broker.embedded.session import Session
from hopback.broker.embedded.settings import Policies
from hopback.broker.embedded.stored import (
    StoredContent,
    UnackedDelivery,
    copy_table,
    remove_header,
    with_headers,
)
from hopback.broker.embedded.timers import Timers
from hopback.fields import FieldValue, RawValue, as_text, further_size, table_size, text_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hopback.clock import Clock, ManualClock
    from hopback.message import Message, Properties
    from hopback.topology.model import Exchange, Queue
    from hopback.version import BrokerVersion

FRAME_PAYLOAD = 131_072
"""Maximum bytes of properties and headers in a header frame."""

_ALL_OTHERS = 4096
"""Bytes. Upper limit of all properties except the headers."""
_NOTHING: dict[str, FieldValue] = {}
_STRINGS = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)


class PublishChecker:
    """Checks publishes and makes the broker's own copy of them."""

    __slots__ = ("_count", "_exchanges", "_max_body", "_profile", "_vhost")

    def __init__(
        self, exchanges: Mapping[str, Exchange], profile: Profile, max_body: int | None, vhost: str
    ) -> None:
        self._exchanges = exchanges
        self._vhost = vhost
        self._profile = profile
        self._max_body = profile.max_body_bytes if max_body is None else max_body
        self._count = 0

    def take(self, message: Message, properties: Properties, user: str) -> StoredContent:
        """Return the message in stored form. Raise Refusal if the broker rejects it."""
        self._check(message, properties, user)
        if properties.opaque_headers:
            # Headers that a client could not decode cannot be sent over the wire either.
            properties = replace(properties, opaque_headers=b"")
        headers = self._headers(properties) if properties.headers else _NOTHING
        keys: tuple[str, ...] = (message.routing_key,)
        if headers and ("CC" in headers or "BCC" in headers):
            keys += (*_copies(headers, "CC"), *_copies(headers, "BCC"))
            if not message.exchange:
                for key in keys[1:]:
                    check_reply_address(key, self._profile)
            further = remove_header(headers, properties.further_headers, "BCC")
            properties = with_headers(properties, headers, further=further)
        if properties.further_headers and self._profile.sorts_headers:
            # The broker keeps only the first of each name.
            once: dict[bytes, FieldValue] = {}
            for name, value in properties.further_headers:
                once.setdefault(name, value)
            properties = with_headers(
                properties,
                headers,
                further=tuple(
                    (name, value)
                    for name, value in once.items()
                    if name.decode("utf-8", "surrogateescape") not in properties.headers
                ),
            )
        self._count += 1
        deaths = deaths_to_count(headers, self._profile) if "x-death" in headers else ()
        return StoredContent(
            message.body, properties, headers, message.exchange, keys, self._count, deaths
        )

    def _check(self, message: Message, properties: Properties, user: str) -> None:
        if len(message.body) > self._max_body:
            raise precondition_failed(
                f"message size {len(message.body)} is larger than"
                f" configured max size {self._max_body}"
            )
        if message.exchange:
            exchange = self._exchanges.get(message.exchange)
            if exchange is None:
                raise no_such(where("exchange", message.exchange, self._vhost))
            if exchange.internal:
                place = where("exchange", message.exchange, self._vhost)
                raise access_refused(f"cannot publish to internal {place}")
        if properties.user_id is not None and properties.user_id != user:
            raise precondition_failed(
                f"user_id property set to '{properties.user_id}'"
                f" but authenticated user was '{user}'"
            )
        if properties.expiration is not None:
            check_expiration(properties.expiration)
        mode = properties.delivery_mode
        if mode is not None and mode not in (1, 2) and self._profile.checks_delivery_mode:
            raise precondition_failed(f"invalid message: {{delivery_mode_unknown,{mode}}}")

    def _headers(self, properties: Properties) -> dict[str, FieldValue]:
        """Copy the headers, in the order in which the broker delivers them."""
        table = table_size(properties.headers) + further_size(properties.further_headers)
        if table > FRAME_PAYLOAD - _ALL_OTHERS:
            # The header frame contains class, weight, body size, flags and the properties.
            given = (getattr(properties, name) for name in _STRINGS)
            strings = sum(1 + text_bytes(text) for text in given if text is not None)
            octets = sum(
                value is not None for value in (properties.delivery_mode, properties.priority)
            )
            size = 14 + strings + octets + 8 * (properties.timestamp is not None) + table
            if size > FRAME_PAYLOAD:
                raise frame_error(size, FRAME_PAYLOAD - 8)
        headers = copy_table(properties.headers)
        return dict(sorted(headers.items())) if self._profile.sorts_headers else headers


def _copies(headers: dict[str, FieldValue], name: str) -> tuple[str, ...]:
    """The further routing keys that a header asks for."""
    found = headers.get(name, [])
    if isinstance(found, RawValue):
        texts = found.texts()
        found = {} if texts is None else texts
    if not isinstance(found, list):
        kind = type_name(found)
        raise precondition_failed(
            f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}'
        )
    return tuple(key for key in map(as_text, found) if key is not None)


class Node:
    """One virtual host of a broker, with all objects that a connection can reach.

    `timers` are shared by all virtual hosts of a broker, which have the same clock.
    `max_body_bytes` and `consumer_timeout` (seconds, None: never) correspond to RabbitMQ's
    configuration. By default they are those of the emulated version.
    """

    def __init__(
        self,
        version: BrokerVersion,
        clock: Clock,
        *,
        seed: int = 0,
        consumer_timeout: float | None = 1800.0,
        max_body_bytes: int | None = None,
        vhost: str = "/",
        timers: Timers | None = None,
    ) -> None:
        self.vhost = vhost
        self.profile: Profile = profile_for(version)
        self.now: Callable[[], float] = clock.now
        self.timers: Timers = timers or Timers()
        self.journal: EventReporter | None = None
        self.consumer_timeout = consumer_timeout
        self.queues: dict[str, LiveQueue] = {}
        self.sessions: list[Session] = []
        self.policies: Policies = Policies(self.profile, self._policies_changed)
        self.routing: Routing = Routing(self.queues, self.policies.all, self.profile, vhost)
        self.dead_letterer: DeadLetterer = DeadLetterer(self)
        self._intake = PublishChecker(self.routing.exchanges, self.profile, max_body_bytes, vhost)
        self._random = random.Random(seed)
        self._numbers = 0

    # Time and listening.

    def next_deadline(self) -> float | None:
        """When something will happen by itself, or None."""
        return self.timers.next()

    def run_due(self) -> int:
        """Run the due timers, including timers that become due in the process. Return how many ran."""
        return self.timers.run(self.now())

    def listen(self, listener: Callable[[Event], object] | None) -> None:
        """Report every event to `listener` from now on. None stops reporting."""
        self.journal = None if listener is None else EventReporter(self.now, listener)

    # Clients.

    def connect(self, name: str = "", user: str = "guest", rights: Rights | None = None) -> Session:
        """Open a session. Without `rights` its user has all permissions."""
        session = Session(self, name, user, rights)
        self.sessions.append(session)
        return session

    def deliveries_of(self, queue: LiveQueue) -> list[UnackedDelivery]:
        """List the unacked deliveries of a queue."""
        return [taken for taken in self.deliveries() if taken.source is queue]

    def deliveries(self) -> Iterator[UnackedDelivery]:
        for session in self.sessions:
            for channel in session.channels.values():
                yield from (taken for taken in channel.unacked.values() if not taken.void)

    # Publishing.

    def publish(self, message_content: StoredContent, *, mandatory: bool) -> EventKind:
        """Route a message and return its outcome: ENQUEUED, REFUSED, RETURNED or DROPPED."""
        targets = self.targets(message_content)
        journal = self.journal
        if journal is not None:
            journal.content(EventKind.PUBLISHED, message_content)
        if not targets:
            fate = EventKind.RETURNED if mandatory else EventKind.DROPPED
            if journal is not None:
                journal.content(fate, message_content, reason=Loss.UNROUTABLE)
            return fate
        fate = EventKind.ENQUEUED
        for queue in targets:
            if not queue.publish(message_content):
                fate = EventKind.REFUSED
                if journal is not None:
                    journal.content(EventKind.REFUSED, message_content, queue.name)
        return fate

    def targets(self, content: StoredContent) -> tuple[LiveQueue, ...] | list[LiveQueue]:
        """Return the queues a message is routed to. A missing exchange routes to no queue."""
        keys, queues = content.keys, self.queues
        if not content.exchange and len(keys) == 1:
            queue = queues.get(keys[0])
            return () if queue is None else (queue,)
        if not self.knows_exchange(content.exchange):
            return ()
        table = self.routing.table
        if len(keys) == 1:
            names = table.route(content.exchange, keys[0], content.headers)
        else:
            names = table.route_keys(content.exchange, keys, content.headers)
        return [queues[name] for name in names]

    def knows_exchange(self, name: str) -> bool:
        return not name or name in self.routing.exchanges

    @property
    def intake(self) -> PublishChecker:
        return self._intake

    @property
    def copies(self) -> int:
        """Number of message copies put into queues so far."""
        return self._numbers

    def number(self) -> int:
        """The next number for a copy."""
        self._numbers += 1
        return self._numbers

    # Queues.

    def declare_queue(self, session: Session, queue: Queue, *, passive: bool = False) -> LiveQueue:
        """Create a queue, or check that it exists with the same properties."""
        name = queue.name or self.made_up("amq.gen-")
        if not passive or self.profile.passive_declare_needs_right:
            session.check(Right.CONFIGURE, "queue", name)
        found = self.queues.get(name)
        if found is not None:
            self._check_access(found, session)
            if not passive:
                _check_same(queue, found, session, self.place("queue", name))
                found.renew_expiry()
            return found
        if passive:
            raise no_such(self.place("queue", name))
        self._check_new(queue)
        exchange = queue.declare_arguments.get("x-dead-letter-exchange")
        if isinstance(exchange, str):
            session.check(Right.READ, "queue", name)
            session.check(Right.WRITE, "exchange", exchange)
        arguments = queue.declare_arguments
        live = LiveQueue(
            self,
            name,
            durable=queue.durable,
            auto_delete=queue.auto_delete,
            owner=session if queue.exclusive else None,
            arguments=arguments,
            settings=self.policies.settings(name, arguments),
        )
        self.queues[name] = live
        self.routing.invalidate()
        return live

    def _check_new(self, queue: Queue) -> None:
        if queue.name.startswith("amq."):
            raise access_refused(f"queue name '{queue.name}' contains reserved prefix 'amq.*'")
        arguments = queue.declare_arguments
        kind = arguments.get("x-queue-type", "classic")
        if kind == "stream":
            raise not_implemented("the embedded broker has no streams")
        place = self.place("queue", queue.name)
        check_queue_arguments(
            place, "quorum" if kind == "quorum" else "classic", arguments, self.profile
        )
        if kind == "quorum":
            # Quorum queues are durable, shared, permanent and named by their users.
            if not queue.name:
                raise precondition_failed(
                    "Cannot declare a server-named queue for type rabbit_quorum_queue"
                )
            refused = {
                "non-durable": not queue.durable,
                "exclusive-owner": queue.exclusive,
                "auto-delete": queue.auto_delete,
            }
            for name, given in refused.items():
                if given:
                    raise precondition_failed(f"invalid property '{name}' for {place}")

    def queue(self, name: str, session: Session) -> LiveQueue:
        """The queue of that name, for use by `session`."""
        found = self.queues.get(name)
        if found is None:
            raise no_such(self.place("queue", name))
        self._check_access(found, session)
        return found

    def _check_access(self, queue: LiveQueue, session: Session) -> None:
        if queue.down:
            place = self.place("queue", queue.name)
            raise Refusal(404, f"NOT_FOUND - {place} process is stopped by supervisor")
        if queue.owner is not None and queue.owner is not session:
            raise resource_locked(self.place("queue", queue.name))

    def delete_queue(
        self, session: Session, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete a queue and return how many messages were ready, or 0 for a missing queue."""
        session.check(Right.CONFIGURE, "queue", name)
        queue = self.queues.get(name)
        if queue is None:
            return 0
        self._check_access(queue, session)
        if if_unused and queue.ring.consumers:
            raise precondition_failed(f"{self.place('queue', name)} in use")
        if if_empty and len(queue.ready):
            raise precondition_failed(f"{self.place('queue', name)} not empty")
        count = len(queue.ready)
        self.remove_queue(queue, Loss.QUEUE_DELETED)
        return count

    def remove_queue(self, queue: LiveQueue, loss: Loss) -> None:
        """Delete a queue with all its messages."""
        if self.queues.pop(queue.name, None) is None:
            return
        self.routing.queue_gone(queue.name)
        queue.close(loss)

    def restart(self) -> None:
        """Restart: close connections, drop transient objects and messages, keep durable ones."""
        for session in tuple(self.sessions):
            session.close()
        for queue in tuple(self.queues.values()):
            if queue.durable:
                queue.restart()
            else:
                self.remove_queue(queue, Loss.RESTART)
        for exchange in tuple(self.routing.exchanges.values()):
            if not exchange.durable:
                self.routing.delete(exchange.name)

    def _policies_changed(self) -> None:
        self.routing.invalidate()
        for queue in tuple(self.queues.values()):
            queue.apply(self.policies.settings(queue.name, queue.arguments))

    def place(self, kind: str, name: str) -> str:
        """Format the name of a queue or exchange as in RabbitMQ's errors."""
        return where(kind, name, self.vhost)

    def made_up(self, prefix: str) -> str:
        """Return a name as the broker generates it. The same seed gives the same names."""
        noise = self._random.getrandbits(128).to_bytes(16, "big")
        return prefix + base64.urlsafe_b64encode(noise).decode().rstrip("=")


def advance(node: Node, clock: ManualClock, moment: float) -> None:
    """Let time pass on the clock of `node`, from deadline to deadline, until `moment`."""
    while (due := node.next_deadline()) is not None and due <= moment:
        clock.advance_to(max(due, clock.now()))
        node.run_due()
    clock.advance_to(max(moment, clock.now()))


def _check_same(queue: Queue, found: LiveQueue, session: Session, place: str) -> None:
    """Refuse a different redeclaration with 406, and one that differs in exclusivity with 405."""
    if queue.exclusive != (found.owner is session):
        raise resource_locked(place)
    if queue.durable != found.durable:
        raise inequivalent(place, "durable", queue.durable, found.durable)
    if queue.auto_delete != found.auto_delete:
        raise inequivalent(place, "auto_delete", queue.auto_delete, found.auto_delete)
    refusal = inequivalent_argument(place, queue.declare_arguments, found.arguments)
    if refusal is not None:
        raise refusal
