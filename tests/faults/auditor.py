"""The auditor reads the queues at the end of a campaign.

It uses pika, which shares no code with Hopback, so errors of Hopback's client cannot hide a loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pika  # type: ignore[import-untyped]
from pika.exceptions import ChannelClosedByBroker  # type: ignore[import-untyped]

from tests.faults.ledger.entry import Kind
from tests.faults.ledger.order import Order

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.topology import Topology
    from tests.faults.ledger.entry import Pen

__all__ = ["audit", "bodies_in"]

_IDLE_S = 2.0
_MOST_IDLE = 15
"""After this number of waits without a delivery, a queue counts as empty."""

_MOST = 65_535
"""The maximum number of unacked messages of a consumer."""


def bodies_in(url: str, queues: Iterable[str]) -> dict[str, list[bytes]]:
    """Return the bodies of all ready messages in these queues. The messages stay there."""
    found: dict[str, list[bytes]] = {}
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        for queue in queues:
            found[queue] = _bodies(connection, queue)
    finally:
        connection.close()
    return found


def _bodies(connection: pika.BlockingConnection, queue: str) -> list[bytes]:
    """Take all messages without settling them. They are requeued when the channel is closed."""
    channel = connection.channel()
    found: list[bytes] = []
    try:
        # A consumer of a quorum queue without a prefetch gets at most 2,000 messages.
        channel.basic_qos(prefetch_count=_MOST)
        ready = channel.queue_declare(queue, passive=True).method.message_count
        if ready >= _MOST:
            raise RuntimeError(f"expected fewer than {_MOST} messages in {queue}, got {ready}")
        deliveries = channel.consume(queue, inactivity_timeout=_IDLE_S) if ready else ()
        idle = 0
        for method, _, body in deliveries:
            if method is not None:
                found.append(body)
                continue
            idle += 1
            # The ready count may be one too low. Wait for all messages that were counted.
            if len(found) >= ready or idle == _MOST_IDLE:
                break
    except ChannelClosedByBroker:  # the queue does not exist
        return []
    channel.close()
    return found


def audit(url: str, topology: Topology, pen: Pen) -> int:
    """Record all messages in the queues of the topology and return their number."""
    found = bodies_in(url, [queue.name for queue in topology.queues])
    for queue, bodies in found.items():
        for body in bodies:
            pen.write(Kind.FOUND, str(Order.read(body).number), queue)
    return sum(map(len, found.values()))
