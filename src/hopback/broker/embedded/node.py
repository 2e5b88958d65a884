"""The embedded broker: a synchronous state machine without I/O.

The node is used by a server, a client or a test. It never blocks and does not have a clock. The
current time is read from `now`, and the caller has to run `run_due` once `next_deadline` has
passed. All messages are checked by a `PublishChecker` before they are stored.
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
"""Maximum size of properties and headers in a header frame, in bytes."""

_ALL_OTHERS = 4096
"""Maximum size of all properties except the headers, in bytes."""
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
    """Validates messages and creates the broker's copy of them."""

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
        """Return the message as it is stored. Raises Refusal if the broker would reject it."""
        self._check(message, properties, user)
        if properties.opaque_headers:
            # Headers that a client was not able to decode cannot be sent to it either.
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
            # If a name occurs twice, the broker only keeps the first header.
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
        """Copy the headers in the order used by the broker."""
        table = table_size(properties.headers) + further_size(properties.further_headers)
        if table > FRAME_PAYLOAD - _ALL_OTHERS:
            # A header frame consists of class, weight, body size, flags and properties.
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
    """Return the additional routing keys specified by a header."""
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
    """A virtual host with all of its objects.

    All virtual hosts of a broker share `timers`, because they have the same clock. `max_body_bytes`
    and `consumer_timeout` (in seconds, None for no timeout) correspond to RabbitMQ's configuration.
    The defaults depend on the version.
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

    def next_deadline(self) -> float | None:
        """The time when something will happen without a client, or None."""
        return self.timers.next()

    def run_due(self) -> int:
        """Run all timers that are due, including timers they start. Returns how many were run."""
        return self.timers.run(self.now())

    def listen(self, listener: Callable[[Event], object] | None) -> None:
        """Pass all further events to `listener`. None disables this."""
        self.journal = None if listener is None else EventReporter(self.now, listener)

    def connect(self, name: str = "", user: str = "guest", rights: Rights | None = None) -> Session:
        """Open a session. If `rights` is None, the user has all permissions."""
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

    def publish(self, message_content: StoredContent, *, mandatory: bool) -> EventKind:
        """Route a message and return its fate: ENQUEUED, REFUSED, RETURNED or DROPPED."""
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
        """Return the queues that a message is routed to. There are none if the exchange does not
        exist.
        """
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
        """The number of copies that were added to queues so far."""
        return self._numbers

    def number(self) -> int:
        """Return a unique number for a copy."""
        self._numbers += 1
        return self._numbers

    def declare_queue(self, session: Session, queue: Queue, *, passive: bool = False) -> LiveQueue:
        """Create a queue, or check that it exists with the same properties."""
        name = queue.name or self.made_up("amq.gen-")
        if passive:
            session.check_passive("queue", name)
        else:
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
            # Quorum queues have to be durable and named by the client. They cannot be exclusive or
            # auto-delete.
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
        """Find a queue that `session` is allowed to use."""
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
        """Delete a queue and return the number of ready messages. Returns 0 if the queue does not
        exist.
        """
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
        """Delete a queue and all of its messages."""
        if self.queues.pop(queue.name, None) is None:
            return
        self.routing.queue_gone(queue.name)
        queue.close(loss)

    def restart(self) -> None:
        """Restart the node: close connections, and only keep durable objects and messages."""
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
        """Format the name of a queue or exchange like RabbitMQ does in errors."""
        return where(kind, name, self.vhost)

    def made_up(self, prefix: str) -> str:
        """Generate a name in the format of RabbitMQ. Names only depend on the seed."""
        noise = self._random.getrandbits(128).to_bytes(16, "big")
        return prefix + base64.urlsafe_b64encode(noise).decode().rstrip("=")


def advance(node: Node, clock: ManualClock, moment: float) -> None:
    """Advance the clock of `node` to `moment`, stopping at each deadline on the way."""
    while (due := node.next_deadline()) is not None and due <= moment:
        clock.advance_to(max(due, clock.now()))
        node.run_due()
    clock.advance_to(max(moment, clock.now()))


def _check_same(queue: Queue, found: LiveQueue, session: Session, place: str) -> None:
    """Raise 405 for a different exclusivity, and 406 for any other difference."""
    if queue.exclusive != (found.owner is session):
        raise resource_locked(place)
    if queue.durable != found.durable:
        raise inequivalent(place, "durable", queue.durable, found.durable)
    if queue.auto_delete != found.auto_delete:
        raise inequivalent(place, "auto_delete", queue.auto_delete, found.auto_delete)
    refusal = inequivalent_argument(place, queue.declare_arguments, found.arguments)
    if refusal is not None:
        raise refusal
