"""Runs Ratatoskr in one process, with sample traffic in which some events fail on purpose."""

from __future__ import annotations

import asyncio
import itertools
import random

import httpx

from hopback.systems.host import Host, Part, System, Try, run_together
from hopback.systems.ratatoskr.api import create_api
from hopback.systems.ratatoskr.consumer import create_consumer
from hopback.systems.ratatoskr.settings import RatatoskrSettings

_EVERY = 5.0
"""Seconds between two orders, so that a reader can follow each one."""
KNOWN_HAZARDS = ("delivery-limit-feeds-retry", "looking-deletes")
"""Errors of `topology check` that are accepted. The documented form can lose messages since
RabbitMQ 4.0.
"""


async def _traffic(host: Host) -> None:
    """Place orders. Some are paid too early, and some are for unknown goods."""
    async with httpx.AsyncClient(base_url=host.url, trust_env=False) as client:
        run = random.getrandbits(32)
        for number in itertools.count():
            order = f"order-{run}-{number}"
            sku = "acorn" if number % 6 else "coconut"
            placed = {"type": "order.placed", "order": order, "sku": sku, "quantity": 2}
            paid = {"type": "payment.received", "order": order, "cents": 10}
            events = [paid, placed] if number % 4 == 1 else [placed, paid]
            for event in events:
                await client.post("/events", json=event)
            await asyncio.sleep(_EVERY)


_ORDER = '{"type": "order.placed", "order": "mine", "sku": "walnut", "quantity": 2}'

SYSTEM = System(
    "ratatoskr",
    "typed events on quorum queues, applied once even if delivered twice",
    (
        Part("hopback.systems.ratatoskr.parts:create_web", "publishing over HTTP", is_web=True),
        Part("hopback.systems.ratatoskr.parts:events", "handles the events"),
    ),
    run_together(RatatoskrSettings, create_api, create_consumer, accepts=KNOWN_HAZARDS),
    _traffic,
    (
        Try("place an order", f"curl {{url}}/events -d '{_ORDER}'"),
        Try("show it", "curl {url}/orders/mine"),
        Try(
            "close the warehouse: orders wait 5 s and return, three times",
            "curl -X PUT {url}/warehouse -d '{\"open\": false}'",
        ),
    ),
)
