"""Classic and quorum queues."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.broker.embedded.consumers import ConsumerRing, QueueConsumer
from hopback.broker.embedded.dead_lettering import AtLeastOnce, Reason
from hopback.broker.embedded.journal import EventKind, Loss
from hopback.broker.embedded.profile import CountHeaders, Discards, Profile
from hopback.broker.embedded.ready import ClassicReady, PriorityReady, QuorumReady, Ready
from hopback.broker.embedded.stored import Entry, StoredContent, UnackedDelivery
from hopback.broker.embedded.timers import Deadline, Delays, QueueExpiry, Ticks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.embedded.node import Node
    from hopback.broker.embedded.session import Session
    from hopback.broker.embedded.settings import QueueSettings
    from hopback.fields import FieldValue, Headers


class ReturnKind(StrEnum):
    """Ways in which a delivery returns to its queue."""

    NACK = "nack"
    REJECT = "reject"
    RECOVER = "recover"
    CLOSE = "close"
    """The channel or connection was closed."""
    TIMEOUT = "timeout"
    """The consumer was cancelled because of the consumer timeout (4.3)."""


_MOST_HOPS = 500
"""Maximum number of dead-letterings at the same time of the clock. If there are more, the message
is in a cycle that has no delay.
"""
_REST_S = 10.0
"""Seconds by which such a message is delayed. This lets virtual time advance and other messages
proceed.
"""
_MOST_CRASHES = 5
"""Number of crashes after which RabbitMQ's supervisor gives up on a queue, if they occur within
`_CRASH_PERIOD_S`.
"""
_CRASH_PERIOD_S = 10.0
"""Period in seconds in which crashes are counted."""

_TO_TAIL = frozenset({ReturnKind.NACK, ReturnKind.REJECT, ReturnKind.RECOVER})
_FAILED = frozenset({ReturnKind.REJECT, ReturnKind.CLOSE})


class LiveQueue:
    """A queue with its messages and consumers."""

    __slots__ = (
        "_alarm",
        "_crashes",
        "_expiring",
        "_had_consumers",
        "_lease",
        "arguments",
        "auto_delete",
        "byte_count",
        "delays",
        "down",
        "durable",
        "is_quorum",
        "name",
        "node",
        "owner",
        "profile",
        "ready",
        "ring",
        "safe",
        "settings",
        "ticks",
        "unacked",
    )

    def __init__(
        self,
        node: Node,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        owner: Session | None,
        arguments: Headers,
        settings: QueueSettings,
    ) -> None:
        self.node: Node = node
        self.profile: Profile = node.profile
        self.name: str = name
        self.durable: bool = durable
        self.auto_delete: bool = auto_delete
        self.owner: Session | None = owner
        self.arguments: Headers = arguments
        self.settings: QueueSettings = settings
        self.is_quorum: bool = arguments.get("x-queue-type") == "quorum"
        highest = arguments.get("x-max-priority")
        self.ready: Ready
        if self.is_quorum:
            self.ready = QuorumReady(self.profile.priorities)
        elif isinstance(highest, int):
            self.ready = PriorityReady(highest)
        else:
            self.ready = ClassicReady()
        self.ring: ConsumerRing = ConsumerRing(
            single_active=arguments.get("x-single-active-consumer") is True
        )
        self.safe: AtLeastOnce = AtLeastOnce(self)
        self.delays: Delays = Delays(self)
        self.unacked: int = 0
        self.byte_count: int = 0
        self.down: bool = False
        """Whether the queue is down after too many crashes. It does not accept or deliver messages
        until a restart.
        """
        self._crashes: list[float] = []
        self._expiring = False
        self._had_consumers = False
        self._alarm = Deadline(node.timers, self._look)
        self._lease = QueueExpiry(self)
        self.ticks: Ticks = Ticks(self)

    def publish(self, content: StoredContent) -> bool:
        """Store a message. Returns False if the queue is full and rejects new messages."""
        if self.down:
            return False
        if self.settings.has_length_limit and self.settings.overflow != "drop-head":
            # A classic queue rejects a message that would exceed the limit. A quorum queue only
            # starts to reject when the limit has already been exceeded.
            more, size = (0, 0) if self.is_quorum else (1, len(content.body))
            is_full = self._exceeds(len(self.safe) + more, self.safe.byte_count + size)
        else:
            is_full = False
        if is_full:
            if self.settings.overflow == "reject-publish-dlx":
                self._let_die(self._entry(content), Reason.MAXLEN)
            return False
        self._store(content)
        return True

    def take_dead_letter(self, content: StoredContent) -> bool:
        """Store a dead letter. The source does not wait for a confirm, so a full quorum queue still
        accepts it.
        """
        if not self.is_quorum:
            return self.publish(content)
        self._store(content)
        return True

    def take_confirmed(self, content: StoredContent) -> bool:
        """Store a dead letter and confirm it to the source queue."""
        return self.publish(content)

    def _exceeds(self, more: int = 0, size: int = 0) -> bool:
        settings = self.settings
        length, limit = len(self.ready) + more, settings.max_length
        if limit is not None and length > limit:
            return True
        return settings.max_bytes is not None and self.byte_count + size > settings.max_bytes

    def _entry(self, content: StoredContent) -> Entry:
        # The expiry does not change later. The smaller TTL of the queue and the message applies.
        ttl = self.settings.ttl
        if content.properties.expiration is not None:
            own = int(content.properties.expiration) / 1000
            ttl = own if ttl is None else min(ttl, own)
        entry = Entry(content, self.node.number(), None if ttl is None else self.node.now() + ttl)
        if self.is_quorum and content.failed:
            entry.failed = content.failed
            entry.redelivered = True
        if self.node.journal is not None:
            self.node.journal.entry(EventKind.ENQUEUED, entry, self.name)
        return entry

    def _store(self, content: StoredContent) -> None:
        entry = self._entry(content)
        if self._expiring:
            self.expire()
        self.ticks.before_change()
        self.ready.push(entry)
        self.byte_count += len(content.body)
        if content.hops > _MOST_HOPS:
            # Old brokers can dead-letter a message in an endless cycle. Give other work a chance to
            # run.
            self._alarm.set(self.node.now() + _REST_S)
            return
        self._distribute()
        if entry.expires is not None:
            self._expiring = True
            self.expire()
        if self.settings.has_length_limit:
            self._trim()

    def _trim(self) -> None:
        """Drop messages from the head until the queue is within its limit (`drop-head`)."""
        if self.settings.overflow == "drop-head":
            while not self.down and len(self.ready) and self._exceeds():
                self._let_die(self._pop(), Reason.MAXLEN)
            if self._expiring:
                self.expire()

    def pump(self) -> None:
        """Deliver messages to consumers until there are no messages or no prefetch left."""
        if self.down:
            return
        if self._expiring:
            self.expire()
        self._distribute()
        if self._expiring:
            self._watch()

    def _distribute(self) -> None:
        ready, following = self.ready, self.ring.next
        while len(ready):
            consumer = following()
            if consumer is None:
                return
            consumer.channel.hand_over(self, self._pop(), consumer)

    def take(self) -> Entry | None:
        """Take the first message for `basic.get`."""
        self._lease.renew()
        if self._expiring:
            self.expire()
        entry = self._pop() if len(self.ready) else None
        if self._expiring:
            self._watch()
        return entry

    def _pop(self) -> Entry:
        self.ticks.before_change()
        entry = self.ready.pop()
        self.byte_count -= len(entry.content.body)
        return entry

    def counts(self, entry: Entry, *, by_get: bool) -> dict[str, FieldValue] | None:
        """Return the delivery count headers that a quorum queue adds to a message."""
        match self.profile.count_headers:
            case CountHeaders.ALWAYS:
                shown = entry.acquired
                return {"x-delivery-count": shown} if shown or by_get else None
            case CountHeaders.RETURNS:
                shown = entry.acquired or entry.failed
                return {"x-delivery-count": shown} if shown else None
            case CountHeaders.FAILURES:
                acquired = entry.acquired or entry.content.acquired
                both = {"x-delivery-count": entry.failed, "x-acquired-count": acquired}
                return {name: count for name, count in both.items() if count} or None

    def dead_letter_counts(self, entry: Entry, reason: Reason) -> tuple[int, int]:
        """Return the failure and return counts that a dead letter keeps (4.x)."""
        if not self.is_quorum:
            return entry.content.failed, entry.content.acquired
        if self.profile.count_headers is CountHeaders.FAILURES:
            return entry.failed, entry.acquired or entry.content.acquired
        # Before 4.3 there is only one count. Returns to this queue replace the count from earlier
        # queues.
        rejected = reason is Reason.REJECTED and self.profile.discards is Discards.ALL
        return (entry.acquired or entry.failed) + int(rejected), 0

    def ack(self, taken: UnackedDelivery) -> None:
        """Remove a delivery that the client is done with."""
        self.ticks.before_change()
        self.unacked -= 1
        if self.node.journal is not None:
            self.node.journal.entry(EventKind.ACKED, taken.entry, self.name)
        self._free(taken)

    def discard(self, taken: UnackedDelivery, how: ReturnKind) -> None:
        """Dead-letter a delivery that was rejected without requeue."""
        self.ticks.before_change()
        self.unacked -= 1
        if how is ReturnKind.REJECT and self.is_quorum and self.profile.discards is Discards.REJECT:
            taken.entry.failed += 1
        self._let_die(taken.entry, Reason.REJECTED)
        self._free(taken)

    def requeue(self, deliveries: Iterable[UnackedDelivery], how: ReturnKind) -> None:
        """Requeue deliveries in this order."""
        self.ticks.before_change()
        for taken in deliveries:
            self.unacked -= 1
            self._take_back(taken.entry, how)
            self._vacate(taken)
        if self.settings.has_length_limit:
            self._trim()
        self.pump()

    def _take_back(self, entry: Entry, how: ReturnKind) -> None:
        entry.redelivered = True
        if not self.is_quorum:
            self._requeue(entry, how)
            return
        failed = how in _FAILED
        entry.acquired += 1
        if failed and self.profile.failures_count_towards_limit:
            entry.failed += 1
        by_failures = self.profile.failures_count_towards_limit
        count = entry.failed if by_failures else entry.acquired
        limit = self.settings.delivery_limit
        if limit is not None and count > limit:
            self._let_die(entry, Reason.DELIVERY_LIMIT)
        elif not self.delays.hold(entry, failed=failed):
            self._requeue(entry, how)

    def _requeue(self, entry: Entry, how: ReturnKind) -> None:
        if self.node.journal is not None:
            self.node.journal.entry(EventKind.REQUEUED, entry, self.name, how)
        self.put_back(
            entry,
            tail=self.is_quorum
            and self.settings.delivery_limit is None
            and self.profile.unlimited_returns_to_tail
            and how in _TO_TAIL,
        )

    def put_back(self, entry: Entry, *, tail: bool = False) -> None:
        """Make a message ready again. It goes before new ones, or to the tail of a quorum queue
        that has no limit.
        """
        self.ticks.before_change()
        if tail:
            self.ready.push(entry)
        else:
            self.ready.give_back(entry)
        self.byte_count += len(entry.content.body)
        self._expiring = self._expiring or entry.expires is not None

    def _free(self, taken: UnackedDelivery) -> None:
        self._vacate(taken)
        if len(self.ready) and (taken.consumer is None or not taken.consumer.cancelled):
            self.pump()

    def _vacate(self, taken: UnackedDelivery) -> None:
        """Note that a consumer has room for another delivery."""
        consumer = taken.consumer
        if consumer is not None:
            consumer.holding -= 1
            if consumer.cancelled:
                # Classic queues look up consumers by tag, so if the tag is used again, the new
                # consumer gets the room.
                if self.is_quorum:
                    if not consumer.holding and consumer in self.ring.leaving:
                        self.ring.leaving.remove(consumer)
                    return
                heir = consumer.channel.consumers.get(consumer.tag)
                if heir is not None and heir.queue is self:
                    heir.holding -= 1
                    self.ring.wake(heir)
                    self.pump()
            elif not consumer.listed:
                self.ring.wake(consumer)

    def expire(self) -> None:
        """Dead-letter expired messages, in the part of the queue that the broker checks."""
        now = self.node.now()
        self.ticks.before_change()
        while not self.down and (entry := self.ready.pop_expired(now)) is not None:
            self.byte_count -= len(entry.content.body)
            self._let_die(entry, Reason.EXPIRED)
        self._watch()

    def _look(self) -> None:
        self._expiring = True
        self.pump()
        self._trim()

    def _watch(self) -> None:
        """Schedule the next check for the time when the head expires."""
        moment = None if self.down else self.ready.next_expiry()
        if moment is not None:
            self._alarm.set(moment)
        elif not len(self.ready):
            self._expiring = False

    def _let_die(self, entry: Entry, reason: Reason) -> None:
        if self.node.journal is not None:
            self.node.journal.entry(EventKind.DIED, entry, self.name, reason)
        if self.settings.at_least_once:
            self.safe.keep(entry, reason)
        else:
            self.node.dead_letterer.post(self, entry, reason)

    def purge(self) -> int:
        """Delete all ready messages and return how many there were."""
        count = len(self.ready)
        self.drop_ready(Loss.PURGED)
        return count

    def drop_ready(self, loss: Loss) -> None:
        """Remove all ready messages."""
        self.ticks.before_change()
        while len(self.ready):
            self._lose(self._pop(), loss)
        self._expiring = False

    def _lose(self, entry: Entry, loss: Loss) -> None:
        if self.node.journal is not None:
            self.node.journal.entry(EventKind.DROPPED, entry, self.name, loss)

    def close(self, loss: Loss) -> None:
        """Drop all messages and cancel the consumers, because the queue was deleted."""
        self.drop_ready(loss)
        self.safe.abandon(loss)
        self.delays.abandon(loss)
        self._alarm.clear()
        self._lease.clear()
        for taken in self.node.deliveries_of(self):
            taken.void = True
            self._lose(taken.entry, loss)
        self.cancel_consumers()

    def cancel_consumers(self) -> None:
        for consumer in tuple(self.ring.consumers):
            self.ring.remove(consumer)
            consumer.channel.lose_consumer(consumer)

    def crash(self, poison: Entry) -> None:
        """Handle a message that crashes the queue process (before 3.13).

        A quorum queue loses the message. A classic queue restarts: its consumers are cancelled, the
        unacked messages and the one that caused the crash are ready again, and transient messages
        are lost. If a queue crashes too often within a short time, it is not restarted.
        """
        if self.is_quorum:
            self._lose(poison, Loss.CRASH)
            return
        self.cancel_consumers()
        for taken in self.node.deliveries_of(self):
            taken.void = True
            self._restart_with(taken.entry)
        self.unacked = 0
        self._restart_with(poison)
        now = self.node.now()
        recent = [moment for moment in self._crashes if moment > now - _CRASH_PERIOD_S]
        self._crashes = [*recent, now]
        self.restart(Loss.CRASH, up=len(self._crashes) < _MOST_CRASHES)

    def restart(self, loss: Loss = Loss.RESTART, *, up: bool = True) -> None:
        """Restart the queue. A classic queue only keeps durable messages, a quorum queue keeps all
        of them.
        """
        self.down = not up
        if self.is_quorum:
            return
        for entry in [self._pop() for _ in range(len(self.ready))]:
            self._restart_with(entry, loss)
        self.pump()

    def _restart_with(self, entry: Entry, loss: Loss = Loss.CRASH) -> None:
        if self.durable and entry.content.properties.delivery_mode == 2:
            entry.redelivered = True
            self._requeue(entry, ReturnKind.CLOSE)
        else:
            self._lose(entry, loss)

    @property
    def consumer_count(self) -> int:
        """The number of consumers as seen by clients.

        For a quorum queue, consumers that are waiting to become the single active consumer do not
        count. Cancelled consumers that still have unsettled messages do.
        """
        ring = self.ring
        if not self.is_quorum:
            return len(ring.consumers)
        serving = min(len(ring.consumers), 1) if ring.is_single else len(ring.consumers)
        return serving + len(ring.leaving)

    def add_consumer(self, consumer: QueueConsumer) -> None:
        self.ticks.before_change()
        self._had_consumers = True
        self.ring.add(consumer)
        self.pump()

    def remove_consumer(self, consumer: QueueConsumer, *, by_client: bool = False) -> None:
        """Remove a consumer. An auto-delete queue is deleted together with its last consumer."""
        self.ticks.before_change()
        self.ring.remove(consumer)
        if self.is_quorum and consumer.holding and consumer.channel.is_open:
            self.ring.leaving.append(consumer)
        if self.ring.consumers:
            if self.is_quorum or not by_client or self.profile.cancel_serves_next:
                self.pump()
            return
        self._lease.renew()
        if self.auto_delete and self._had_consumers:
            self.node.remove_queue(self, Loss.QUEUE_DELETED)

    def renew_expiry(self) -> None:
        """Handle another declaration. On a classic queue, this resets the expiry."""
        if not self.is_quorum:
            self._lease.renew()

    def apply(self, settings: QueueSettings) -> None:
        """Apply the settings of a policy. A new TTL only affects messages published later."""
        was_safe, self.settings = self.settings.at_least_once, settings
        if was_safe and not settings.at_least_once:
            self.safe.abandon(Loss.STRATEGY_CHANGED)
        self._lease.renew()
        if settings.has_length_limit:
            self._trim()
