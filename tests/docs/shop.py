"""A shop whose orders fail: the broker for pages about dead letters.

A page requests it with the comment in `MARK`. Its commands then use a separate broker, on which
handlers have parked a few orders, and a store in the page's folder.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hopback import App, Park, RabbitMQ, compose
from hopback.broker.server import ClockKind, ServerSettings
from hopback.testing.threads import AppThread, BrokerThread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["MARK", "shop"]

MARK = "<!-- runs with the broker of a shop -->"

_ORDERS = (("hat", 20), ("unicorn", 20), ("hat", 15), ("unicorn", 20), ("scarf", 5))
_TIMEOUT_S = 30.0

app = App("shop")


@app.handler("orders", retry=["1s"], attempts=1, concurrency=1)
async def handle(order: dict[str, Any]) -> Park | None:
    """Accept orders that are complete and paid."""
    if order["item"] == "unicorn":
        raise LookupError("no such item: unicorn")
    return Park("paid too little") if order["paid"] < 20 else None


@contextmanager
def shop(folder: Path) -> Iterator[dict[str, str]]:
    """Park four orders and return the environment variables of the broker."""
    settings = ServerSettings(port=0, http_port=0, clock=ClockKind.SYSTEM)
    with BrokerThread(settings) as broker:
        with AppThread(app, broker.url) as app_thread:
            asyncio.run(_send(broker.url))
            deadline = time.monotonic() + _TIMEOUT_S
            while len(app_thread.find_events("delivery.parked")) < 4:
                if time.monotonic() > deadline:
                    raise TimeoutError("expected four orders to be parked")
                time.sleep(0.01)
        yield {
            "HOPBACK_BROKER": broker.url,
            "HOPBACK_MANAGEMENT": broker.http_url,
            "HOPBACK_FORMAT": "table",
            "XDG_STATE_HOME": str(folder),
        }


async def _send(url: str) -> None:
    connection = await RabbitMQ(url).connect("web shop")
    channel = await connection.open_channel()
    for number, (item, paid) in enumerate(_ORDERS, 1):
        order = {"item": item, "paid": paid}
        await channel.publish(
            compose("orders", order, message_id=f"order-{number}", message_type="OrderPlaced")
        )
    await connection.close()
