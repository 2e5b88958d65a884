"""Create typical dead letters with deaths, a failure record and headers of a producer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.broker.rabbitmq import RabbitMQ
from hopback.fields import Timestamp
from hopback.headers import Failure, failure_json
from hopback.message import Message, Properties

if TYPE_CHECKING:
    from benchmarks.workload import Job
    from hopback.fields import FieldValue, Headers

__all__ = ["fill_with_dead_letters", "real_headers"]

_TIME = 1_700_000_000
_A_SECOND = 50
"""The number of messages that die per second. Neighbours in a queue have the same second, but
everything else differs.
"""
_STACK = "\n".join(f"shop.orders:Order.step_{number}:{40 + number}" for number in range(8))


def real_headers(queue: str, number: int = 0) -> Headers:
    """Return the twenty headers of a message that has failed three times in a queue."""
    died = _TIME + number // _A_SECOND
    failure = Failure(
        "shop.errors.UnknownArticle",
        "the warehouse does not know article 4711",
        "0123456789ab",
        "shop.orders:Order.step_0",
        _STACK,
        f"worker-{number % 8}",
        died + number % _A_SECOND / _A_SECOND,
        died + 30 + number % _A_SECOND / _A_SECOND,
        3,
    )
    return {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tenant": "acme",
        "source": "shop",
        "schema": "orders/v3",
        "x-request-id": f"{number:016x}",
        "retryable": True,
        "priority-class": 2,
        "region": "eu-central-1",
        "app-version": "1.2.3",
        "x-first-death-exchange": "",
        "x-first-death-queue": queue,
        "x-first-death-reason": "rejected",
        "x-death": [
            _death(f"{queue}.retry", "expired", died + 10),
            _death(queue, "rejected", died),
        ],
        "hopback-queue": queue,
        "hopback-attempts": 3,
        "hopback-origin-routing-key": "orders.created",
        "hopback-origin-exchange": "shop",
        "hopback-lineage": f"{number:024x}",
        "hopback-deaths": f'[{{"queue":"{queue}.retry","reason":"expired","count":2}}]',
        "hopback-failure": failure_json(failure),
    }


def _death(queue: str, reason: str, time: int) -> dict[str, FieldValue]:
    return {
        "count": 2,
        "exchange": "",
        "queue": queue,
        "reason": reason,
        "routing-keys": [queue],
        "time": Timestamp(time),
    }


async def fill_with_dead_letters(job: Job) -> None:
    """Fill the queue of a job with messages that have failed in its target queue."""
    connection = await RabbitMQ(job.url).connect("filling")
    channel = await connection.open_channel()
    for number in range(job.count):
        properties = Properties(
            content_type="application/json",
            delivery_mode=2,
            headers=real_headers(job.target, number),
            message_id=f"m-{number}",
            correlation_id=f"c-{number}",
            type="order.created",
        )
        await channel.room()
        fate = channel.publish(Message("", job.queue, job.bytes, properties))
    await fate
    await connection.close()
