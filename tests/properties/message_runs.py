"""A model of a broker and of one message in it, without I/O.

It covers dead-lettering with `x-death`, retry queues that return messages, and `x-death` headers
published by a client: RabbitMQ 4.0 replaces them, older versions continue them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hopback.fields import Timestamp
from hopback.message import Message, Properties, Received
from hopback.policy import Occasion, decide, effects
from hopback.policy.decision import Publish, Settle, Settlement
from hopback.topology.routing import RoutingTable
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hopback.fields import FieldValue, Headers
    from hopback.policy import Outcome
    from hopback.topology.model import Topology
    from hopback.topology.plan import Plan

__all__ = ["MessageRuns", "TinyBroker", "plain_message"]

_V4_0 = BrokerVersion(4, 0)
_ENTERED = 1_700_000_000


@dataclass(frozen=True, slots=True)
class _StoredMessage:
    """A message in a queue. `published` is true if its `x-death` comes from a client."""

    delivery: Received
    published: bool


class TinyBroker:
    """Routes and dead-letters messages by the queue arguments, without time or loss."""

    def __init__(self, topology: Topology, version: BrokerVersion) -> None:
        self._topology = topology
        self._version = version
        self._table = RoutingTable(
            topology.exchanges, (queue.name for queue in topology.queues), topology.bindings
        )

    def publish(self, message: Message) -> tuple[_StoredMessage, ...]:
        """Return the copies in queues after a publish."""
        return tuple(
            _StoredMessage(_received(queue, message), published=True)
            for queue in self._table.route(
                message.exchange, message.routing_key, message.properties.headers
            )
        )

    def dead_letter(self, stored: _StoredMessage, reason: str) -> tuple[_StoredMessage, ...]:
        """Return the copies in queues after the queue dead-letters the message."""
        was = stored.delivery
        queue = self._topology.queue(was.queue)
        assert queue is not None
        exchange = queue.arguments.get("x-dead-letter-exchange")
        assert isinstance(exchange, str), f"{queue.name} would delete its dead letters"
        key = str(queue.arguments.get("x-dead-letter-routing-key", was.routing_key))
        trusted = not stored.published or self._version < _V4_0
        headers = _with_death(was, reason, continued=trusted)
        properties = replace(was.properties, headers=headers, expiration=None)
        copies = self.publish(Message(exchange, key, was.body, properties))
        return tuple(replace(copy, published=False) for copy in copies)

    def is_retry_queue(self, name: str) -> bool:
        """Return whether messages leave this queue by TTL."""
        queue = self._topology.queue(name)
        return queue is not None and "x-message-ttl" in queue.arguments


class MessageRuns:
    """Runs one message through a queue until it is done or in the dead-letter queue."""

    def __init__(self, topology: Topology, plan: Plan, version: BrokerVersion) -> None:
        self.plan = plan
        self.version = version
        self.broker = TinyBroker(topology, version)
        self.runs: list[Received] = []
        self.copies: list[Received] = []
        """Deliveries to queues outside the plan."""

    def run_message(
        self, message: Message, outcome: Callable[[int], Outcome], *, at_most: int = 200
    ) -> Received | None:
        """Run the message with `outcome` by run number. Return the dead letter, or None if it was done."""
        waiting = [
            stored
            for stored in self.broker.publish(message)
            if self.broker.is_retry_queue(stored.delivery.queue)
            or stored.delivery.queue == self.plan.queue
        ]
        run = 0
        while waiting:
            stored = waiting.pop()
            queue = stored.delivery.queue
            if queue == self.plan.parking.queue:
                return stored.delivery
            if self.broker.is_retry_queue(queue):
                waiting.extend(self._keep_planned(self.broker.dead_letter(stored, "expired")))
                continue
            run += 1
            assert run <= at_most, "the message never reaches its end"
            self.runs.append(stored.delivery)
            waiting.extend(self._keep_planned(self._handle(stored, outcome(run))))
        return None

    def _handle(self, stored: _StoredMessage, outcome: Outcome) -> Iterator[_StoredMessage]:
        decision = decide(stored.delivery, outcome, self.plan, version=self.version)
        for effect in effects(decision, stored.delivery, self.plan, Occasion(now=1_700_000_000.0)):
            match effect:
                case Publish(message=message):
                    yield from self.broker.publish(message)
                case Settle(how=Settlement.DEAD_LETTER):
                    yield from self.broker.dead_letter(stored, "rejected")
                case Settle(how=Settlement.RELEASE):
                    yield stored

    def _keep_planned(
        self, copies: Iterator[_StoredMessage] | tuple[_StoredMessage, ...]
    ) -> Iterator[_StoredMessage]:
        retry = {route.queue for tier in self.plan.tiers for route in tier.routes}
        for copy in copies:
            if copy.delivery.queue in {self.plan.queue, self.plan.parking.queue, *retry}:
                yield copy
            else:
                self.copies.append(copy.delivery)


def _received(queue: str, message: Message) -> Received:
    return Received(queue, message.exchange, message.routing_key, message.body, message.properties)


def _with_death(was: Received, reason: str, *, continued: bool) -> Headers:
    """Return the headers with this death first. The count continues for a known queue and reason."""
    headers: dict[str, FieldValue] = dict(was.properties.headers)
    found = headers.pop("x-death", ())
    old = found if continued and isinstance(found, list) else []
    entries = [dict(entry) for entry in old if isinstance(entry, dict)]
    known = [e for e in entries if (e["queue"], e["reason"]) == (was.queue, reason)]
    first: dict[str, FieldValue] = {
        "count": 0,
        "reason": reason,
        "queue": was.queue,
        "time": Timestamp(_ENTERED),
        "exchange": was.exchange,
        "routing-keys": [was.routing_key],
    }
    entry = known[0] if known else first
    others = [e for e in entries if e is not entry]
    count = entry["count"]
    assert isinstance(count, int)
    headers["x-death"] = [{**entry, "count": count + 1}, *others]
    headers["x-first-death-queue"] = others[-1]["queue"] if others else was.queue
    return headers


def plain_message(exchange: str, routing_key: str) -> Message:
    """Return a persistent message with one producer header."""
    properties = Properties(delivery_mode=2, message_id="m-1", headers={"tenant": "acme"})
    return Message(exchange, routing_key, b"{}", properties)
