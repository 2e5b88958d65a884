"""A Celery application whose failed tasks are parked: `celery -A tests.frameworks.celery_app worker`."""

# mypy: disable-error-code="attr-defined, import-untyped, no-untyped-call, untyped-decorator"

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import zstandard
from celery import Celery
from celery.exceptions import Reject
from kombu import Queue, compression, serialization

from hopback.integrations.celery import park_failed_tasks

# Kombu registers these itself if its optional libraries are installed.
serialization.register(
    "msgpack",
    msgspec.msgpack.encode,
    msgspec.msgpack.decode,
    content_type="application/x-msgpack",
    content_encoding="binary",
)
compression.register(zstandard.compress, zstandard.decompress, "application/zstd", aliases=["zstd"])

app = Celery("shop", broker=os.environ.get("TASKS_BROKER", "amqp://"))
app.conf.update(
    task_acks_late=os.environ.get("TASKS_EARLY") is None,
    task_queues=[
        Queue("tasks", routing_key="tasks"),
        Queue(
            "plain",
            routing_key="plain",
            queue_arguments={
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "plain.dead",
            },
        ),
    ],
    task_default_queue="tasks",
    task_default_exchange="tasks",
    task_default_routing_key="tasks",
    broker_transport_options={"confirm_publish": True},
    worker_hijack_root_logger=False,
    accept_content=["json", "msgpack", "yaml", "pickle"],
)
park_failed_tasks(app, ["tasks"])


@app.task
def charge(order: int, *, currency: str = "EUR") -> None:
    """Record the order, or fail until repaired."""
    if "REPAIRED" not in os.environ:
        raise ConnectionError(f"the bank rejects {currency}")
    with Path(os.environ["TASKS_LEDGER"]).open("a") as ledger:
        ledger.write(f"{order}\n")


@app.task(bind=True, max_retries=2, default_retry_delay=0)
def again(self: object, order: int) -> None:
    """Retry with Celery's own means until the retries are exhausted."""
    try:
        charge(order)
    except ConnectionError as error:
        raise self.retry(exc=error) from error


@app.task
def deadly(order: int) -> None:
    """Kill the worker process, as the kernel does when memory is short."""
    if "REPAIRED" not in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    charge(order)


@app.task
def slow(order: int) -> None:
    """Exceed the time limit."""
    if "REPAIRED" not in os.environ:
        signal.pause()
    charge(order)


slow.time_limit = 1


@app.task
def reject_order(order: int) -> None:
    """Reject the message. The broker dead-letters it."""
    if "REPAIRED" not in os.environ:
        raise Reject("no such order", requeue=False)
    charge(order)
