"""The auditor: another client than the one under test reads what lies in the queues at the end.

It is pika, which knows nothing of Hopback: what it finds is there, and what it does not find is gone.
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
"""So often may a queue hand out nothing for that long before it has nothing more, whatever it said."""

_MOST = 65_535
"""What one consumer can hold unsettled."""


def bodies_in(url: str, queues: Iterable[str]) -> dict[str, list[bytes]]:
    """The body of every message that is ready in these queues; all of them are left there."""
    found: dict[str, list[bytes]] = {}
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        for queue in queues:
            found[queue] = _bodies(connection, queue)
    finally:
        connection.close()
    return found


def _bodies(connection: pika.BlockingConnection, queue: str) -> list[bytes]:
    """Everything is taken unsettled; the closed channel gives it back."""
    channel = connection.channel()
    found: list[bytes] = []
    try:
        # Without a limit of its own a consumer of a quorum queue gets 2,000 and no more.
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
            # What was said to be ready may be one short; what was said and does not come is waited for.
            if len(found) >= ready or idle == _MOST_IDLE:
                break
    except ChannelClosedByBroker:  # there is no such queue
        return []
    channel.close()
    return found


def audit(url: str, topology: Topology, pen: Pen) -> int:
    """Write down every message that lies in a queue of the topology; how many there are."""
    found = bodies_in(url, [queue.name for queue in topology.queues])
    for queue, bodies in found.items():
        for body in bodies:
            pen.write(Kind.FOUND, str(Order.read(body).number), queue)
    return sum(map(len, found.values()))
