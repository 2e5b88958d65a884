"""A Dramatiq application: `dramatiq tests.frameworks.dramatiq_app`."""

from __future__ import annotations

import os
from pathlib import Path

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

broker = RabbitmqBroker(url=os.environ.get("TASKS_BROKER", "amqp://"), confirm_delivery=True)
dramatiq.set_broker(broker)


@dramatiq.actor(max_retries=1, min_backoff=1, max_backoff=1)
def charge(order: int, currency: str = "EUR") -> None:
    """Record the order, or fail until repaired."""
    if "REPAIRED" not in os.environ:
        raise ConnectionError(f"the bank rejects {currency}")
    with Path(os.environ["TASKS_LEDGER"]).open("a") as ledger:
        ledger.write(f"{order}\n")
