"""Snapshots of a node, used by tests, pages and simulations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.broker.embedded.stored import Entry, copy_table, with_headers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.broker.embedded.node import Node
    from hopback.broker.embedded.queue import LiveQueue
    from hopback.message import Properties
    from hopback.topology.model import Binding, Exchange


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A copy of a message in a queue. `expires` is in seconds since the epoch."""

    copy: int
    origin: int
    exchange: str
    routing_key: str
    body: bytes
    properties: Properties
    redelivered: bool
    returns: int
    """How often the message was returned to this queue. Only quorum queues count this."""
    failures: int
    """How often a delivery of the message failed. Only quorum queues count this, since 4.0."""
    expires: float | None


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """A queue with all of its messages."""

    name: str
    type: str
    durable: bool
    ready: tuple[StoredMessage, ...]
    """The ready messages in delivery order."""
    unacked: tuple[StoredMessage, ...]
    held: tuple[StoredMessage, ...]
    """Dead letters that no target has confirmed yet (at-least-once)."""
    delayed: tuple[StoredMessage, ...]
    consumers: tuple[str, ...]

    @property
    def messages(self) -> tuple[StoredMessage, ...]:
        return self.ready + self.unacked + self.held + self.delayed


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    at: float
    queues: tuple[QueueSnapshot, ...]
    exchanges: tuple[Exchange, ...]
    bindings: tuple[Binding, ...]

    def queue(self, name: str) -> QueueSnapshot:
        """Return a queue by name. Raises KeyError if it does not exist."""
        found = next((queue for queue in self.queues if queue.name == name), None)
        if found is None:
            known = ", ".join(queue.name for queue in self.queues) or "none"
            raise KeyError(f"expected a queue of the node ({known}), got {name!r}")
        return found


def snapshot(node: Node) -> NodeSnapshot:
    held: dict[LiveQueue, list[Entry]] = {}
    for taken in node.deliveries():
        held.setdefault(taken.source, []).append(taken.entry)
    return NodeSnapshot(
        at=node.now(),
        queues=tuple(
            QueueSnapshot(
                name=queue.name,
                type="quorum" if queue.is_quorum else "classic",
                durable=queue.durable,
                ready=_store_messages(queue.ready),
                unacked=_store_messages(held.get(queue, ())),
                held=_store_messages(dead_letter.entry for dead_letter in queue.safe.dead_letters),
                delayed=_store_messages(queue.delays.entries),
                consumers=tuple(consumer.tag for consumer in queue.ring.consumers),
            )
            for queue in node.queues.values()
        ),
        exchanges=tuple(node.routing.exchanges.values()),
        bindings=node.routing.bindings,
    )


def _store_messages(entries: Iterable[Entry]) -> tuple[StoredMessage, ...]:
    return tuple(map(_message, entries))


def _message(entry: Entry) -> StoredMessage:
    content = entry.content
    return StoredMessage(
        copy=entry.number,
        origin=content.origin,
        exchange=content.exchange,
        routing_key=content.keys[0],
        body=content.body,
        properties=with_headers(content.properties, copy_table(content.headers)),
        redelivered=entry.redelivered,
        returns=entry.acquired,
        failures=entry.failed,
        expires=entry.expires,
    )
