"""The contents of the queues. They are counted during the run and listed at the end."""

from __future__ import annotations

import asyncio
import http.client
from typing import TYPE_CHECKING
from urllib.parse import quote

from hopback import RabbitMQ
from hopback.errors import BrokerError, NotFound
from hopback.topology import Queue
from tests.faults.ledger.entry import Kind
from tests.faults.ledger.order import Order
from tests.harness.management import ManagementFailed

if TYPE_CHECKING:
    from hopback.broker.port import Connection
    from hopback.message import Delivery
    from hopback.topology import Topology
    from tests.faults.ledger.entry import Pen
    from tests.harness.management import Management

__all__ = ["count_unfinished", "take_stock"]


async def take_stock(url: str, topology: Topology, pen: Pen) -> int:
    """Record all messages in the queues of the topology. The messages stay there."""
    connection = await RabbitMQ(url).connect("inventory")
    try:
        counts = [await _count(connection, queue.name, pen) for queue in topology.queues]
    finally:
        await connection.close()
    return sum(counts)


async def _count(connection: Connection, queue: str, pen: Pen) -> int:
    """Take all messages without settling them. They are requeued when the channel is closed."""
    channel = await connection.open_channel()
    found: list[Delivery] = []
    try:
        await channel.qos(0)
        await channel.consume(queue, found.append)
        seen = -1
        while seen != len(found):
            seen = len(found)
            await asyncio.sleep(0.3)
    except NotFound:
        return 0
    finally:
        await channel.close()
    for delivery in found:
        pen.write(Kind.FOUND, str(Order.read(delivery.body).number), queue)
    return len(found)


async def count_unfinished(
    url: str, management: Management, topology: Topology
) -> dict[str, int] | None:
    """Return the number of messages in each queue except dead-letter queues. Returns None if the
    broker does not respond.

    Ready messages are counted with AMQP, which is exact. Messages that are unacked or held back are
    only known to the HTTP API, which is delayed.
    """
    parked = {plan.parking.queue for plan in topology.plans}
    ours = sorted({queue.name for queue in topology.queues} - parked)
    try:
        ready = await _ready(url, ours)
    except (BrokerError, OSError):
        return None
    return ready or await asyncio.to_thread(_held, management, url.rpartition("/")[2], ours)


async def _ready(url: str, queues: list[str]) -> dict[str, int]:
    connection = await RabbitMQ(url).connect("inventory")
    try:
        channel = await connection.open_channel()
        found = {}
        for name in queues:
            state = await channel.declare_queue(Queue(name), passive=True)
            found[name] = state.messages
    finally:
        await connection.close()
    return {name: count for name, count in found.items() if count}


def _held(management: Management, vhost: str, ours: list[str]) -> dict[str, int] | None:
    try:
        found = management.call("GET", f"/queues/{quote(vhost, safe='')}")
    except (OSError, http.client.HTTPException, ManagementFailed):
        return None
    held = {
        one["name"]: one.get("messages", 1) + one.get("messages_dlx", 0)
        for one in found
        if one["name"] in ours
    }
    return {name: count for name, count in held.items() if count}
