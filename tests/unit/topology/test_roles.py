"""The role of each queue, derived from routes."""

from __future__ import annotations

from hopback.topology.model import Queue, Topology
from hopback.topology.roles import QueueRole, queue_roles


def _roles(*queues: Queue) -> dict[str, QueueRole]:
    return dict(queue_roles(Topology("shop", (), queues)))


def _to(queue: str, **further: int) -> dict[str, str | int]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue, **further}


def test_queue_with_ttl_that_leads_to_dead_letters_is_plain() -> None:
    webhooks = Queue("webhooks", arguments={**_to("webhooks.dlq"), "x-message-ttl": 1000})
    roles = _roles(webhooks, Queue("webhooks.dlq"))
    assert roles == {"webhooks": QueueRole.PLAIN, "webhooks.dlq": QueueRole.DEAD_LETTER}


def test_queue_with_ttl_that_leads_back_is_retry_queue() -> None:
    orders = Queue("orders", arguments=_to("orders.wait"))
    waiting = Queue("orders.wait", arguments={**_to("orders"), "x-message-ttl": 1000})
    assert _roles(orders, waiting)["orders.wait"] is QueueRole.RETRY
