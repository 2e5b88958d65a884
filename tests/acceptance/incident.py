"""An incident created with plain pika: dead letters of many frameworks, and a failing consumer.

The service of `orders` retries twice through a queue with a TTL and then rejects. The other queues contain
dead letters as their frameworks leave them. To create it manually:

    python -m tests.acceptance.incident amqp://guest:guest@127.0.0.1:5672/ --orders 50000 --times 100
"""

from __future__ import annotations

import argparse
import gzip
import json
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import pika  # type: ignore[import-untyped]

from hopback.headers import failure_from_reason, failure_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from pika.adapters.blocking_connection import (  # type: ignore[import-untyped]
        BlockingChannel,
    )

__all__ = ["OTHERS", "Incident"]

_PATIENCE_S = 60.0
_LAPS = 2  # through the retry queue, before the service gives up
_STAMP = "X-Message-Stamp-Symfony\\Component\\Messenger\\Stamp\\"

_SPRING_STACK = """\
org.springframework.amqp.rabbit.support.ListenerExecutionFailedException: Listener threw exception
\tat org.springframework.amqp.rabbit.listener.adapter.Adapter.invokeHandler(Adapter.java:152)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: {error}: {message}
\tat shop.inventory.{place}(Stock.java:88)
\tat shop.inventory.Listener.on(Listener.java:31)
\t... 12 more
"""
_NET_STACK = """\
   at Shop.Shipping.Carrier.Book(Parcel parcel) in /src/Carrier.cs:line 57
   at Shop.Shipping.ShipOrderConsumer.Consume(ConsumeContext`1 context) in /src/ShipOrderConsumer.cs:line 21
"""

OTHERS = {
    "billing.dlq": 30,
    "shipping_error": 14,
    "shipping_skipped": 2,
    "error": 10,
    "inventory.dlq": 10,
    "celery.dead": 8,
    "webhooks.dlq": 6,
    "search.dlq": 7,
    "images.dlq": 5,
    "documents.dlq": 3,
    "users.dlq": 3,
    "emails_failed": 2,
    "ledger.dlq": 2,
    "events.dead": 4,
    "reports_failed": 5,
    "default.XQ": 4,
    "mails-error": 4,
    "tickets.dlq": 4,
    "imports.dead": 3,
    "payments.dlq": 6,
}
"""Number of dead letters in each queue except `orders.dlq`, for `times=1`."""


class Incident:
    """Creates the incident and runs the failing consumer of `orders` during the block."""

    def __init__(self, url: str, *, orders: int = 60, wait_ms: int = 200, times: int = 1) -> None:
        """`times` multiplies the dead letters of the other queues."""
        self._parameters = pika.URLParameters(url)
        self._orders = orders
        self._wait_ms = wait_ms
        self._times = times
        self._ends = threading.Event()
        self._consumer = threading.Thread(target=self._consume, name="the orders service")
        self.repaired = threading.Event()
        """Set after the repair. From then on the service handles its orders."""
        self.handled: list[int] = []
        """The numbers of the handled orders."""

    def __enter__(self) -> Self:
        with pika.BlockingConnection(self._parameters) as connection:
            channel = connection.channel()
            self._declare_orders(channel)
            self._publish_orders(channel)
            _make_others(channel, self._times)
            self._consumer.start()
            _until(lambda: _depth(channel, "orders.dlq") >= self._orders)
            expected = {queue: count * self._times for queue, count in OTHERS.items()}
            _until(lambda: all(_depth(channel, each) >= expected[each] for each in expected))
        return self

    def depths(self) -> dict[str, int]:
        """Return the number of dead letters of each queue as the broker counts them."""
        with pika.BlockingConnection(self._parameters) as connection:
            channel = connection.channel()
            return {queue: _depth(channel, queue) for queue in ("orders.dlq", *OTHERS)}

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._consumer.join(_PATIENCE_S)

    def _declare_orders(self, channel: BlockingChannel) -> None:
        _queue(channel, "orders.dlq")
        _queue(channel, "orders", **_dead_letters_to("orders.dlq"))
        waits = {"x-message-ttl": self._wait_ms, **_dead_letters_to("orders")}
        _queue(channel, "orders.retry", **waits)

    def _publish_orders(self, channel: BlockingChannel) -> None:
        for number in range(self._orders):
            body = {
                "order": {"id": number, "total": 10.5 + number},
                "customer": f"C-{number:05}",
                "note": "paid by card" if number % 7 else "paid by voucher",
            }
            headers = {} if number % 5 else {"x-last-error": "TimeoutError: psp.example:443"}
            _put(channel, "orders", body, headers, message_id=f"order-{number}")

    def _consume(self) -> None:
        """Two laps through the retry queue, then a rejection. After the repair, an ack."""
        laps: Counter[str] = Counter()  # kept here, because RabbitMQ 4 believes no client's x-death
        with pika.BlockingConnection(self._parameters) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=100)
            for method, properties, body in channel.consume("orders", inactivity_timeout=0.1):
                if self._ends.is_set():
                    return
                if method is None:
                    continue
                if self.repaired.is_set():
                    self.handled.append(json.loads(body)["order"]["id"])
                    channel.basic_ack(method.delivery_tag)
                    continue
                laps[properties.message_id] += 1
                if laps[properties.message_id] <= _LAPS:
                    channel.basic_publish("", "orders.retry", body, properties)
                    channel.basic_ack(method.delivery_tag)
                else:
                    del laps[properties.message_id]
                    channel.basic_reject(method.delivery_tag, requeue=False)


# --- the messages of the other queues


def _make_others(channel: BlockingChannel, times: int) -> None:
    """Fill each queue as its framework does."""
    _publish_rejected(channel, "billing", 30 * times, {"x-queue-type": "quorum"})
    _publish_rejected(
        channel, "images", 5 * times, {}, body=b"\x89PNG\r\n\x1a\n" + bytes(range(256))
    )
    packed = gzip.compress(json.dumps({"document": "D-77", "customer": "C-00042"}).encode())
    _publish_rejected(channel, "documents", 3 * times, {}, body=packed, content_encoding="gzip")
    hostile = {
        "name": "<img src=x onerror=alert(1)>",
        "city": "\u202eegarots\x1b[31m",
        "crew": "👩‍🚀",
    }
    _publish_rejected(
        channel, "users", 3 * times, {}, body=json.dumps(hostile, ensure_ascii=False).encode()
    )
    for main in (
        "shipping",
        "inventory",
        "emails",
        "sales",
        "reports",
        "mails",
        "tickets",
        "payments",
    ):
        _queue(channel, main)
    _plain(channel, "shipping_error", _mass_transit() * times)
    _plain(channel, "shipping_skipped", [{"MT-Reason": "skipped"}] * 2 * times)
    _plain(channel, "error", [_nservicebus(number) for number in range(10)] * times)
    _plain(channel, "inventory.dlq", [_spring_order(number) for number in range(10)] * times)
    _plain(channel, "celery.dead", [{"task": "mail.send", "retries": 3}] * 8 * times)
    _plain(channel, "emails_failed", [_symfony()] * 2 * times)
    _plain(channel, "reports_failed", [_aio_pika()] * 5 * times)
    _plain(channel, "mails-error", [_SIDEKIQ] * 4 * times)
    _plain(channel, "tickets.dlq", [_NESTJS] * 4 * times)
    _plain(channel, "payments.dlq", [_hopback()] * 6 * times)
    _dramatiq(channel, 4 * times)
    for exchange, work, dead in (("dlx", "events", "events.dead"), ("", "imports", "imports.dead")):
        # FastStream and Broadway reject: RabbitMQ dead-letters the messages, and no header has an error.
        _publish_rejected(channel, work, OTHERS[dead] * times, {}, dead=dead, exchange=exchange)
    _publish_expired(channel, times)
    _ledger(channel, times)


_NESTJS = {
    "x-error-message": "Request failed with status code 502",
    "x-error-stack": "AxiosError: Request failed with status code 502\n"
    "    at settle (/app/node_modules/axios/lib/core/settle.js:19:12)\n"
    "    at TicketsService.sync (/app/dist/tickets.service.js:41:9)",
}
_SIDEKIQ = {
    "error_class": "Net::SMTPServerBusy",
    "error_message": "451 try again later",
    "error_backtrace": "/app/workers/mail.rb:12:in `deliver'",
    "retry_count": 25,
}
_DRAMATIQ_TRACE = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 12, in charge
    raise ConnectionError("no answer: 10.0.0.7")
ConnectionError: no answer: 10.0.0.7
"""


def _aio_pika() -> dict[str, Any]:
    return {
        "x-exception-type": "asyncpg.TooManyConnectionsError",
        "x-exception-message": "too many",
    }


def _hopback() -> dict[str, Any]:
    failure = failure_from_reason("the card was refused", kind="CardRefused")
    return {
        "hopback-attempts": 4,
        "hopback-queue": "payments",
        "hopback-failure": failure_json(failure) or "",
    }


def _dramatiq(channel: BlockingChannel, count: int) -> None:
    """Dramatiq writes the error into the body."""
    week = {"x-message-ttl": 604_800_000}
    _queue(channel, "default.XQ", **week)
    for work in ("default", "default.DQ"):
        _queue(channel, work, **_dead_letters_to("default.XQ"))
    for number in range(count):
        body = {
            "queue_name": "default",
            "actor_name": "charge",
            "args": [number],
            "kwargs": {},
            "options": {"retries": 20, "traceback": _DRAMATIQ_TRACE},
            "message_id": f"dramatiq-{number}",
            "message_timestamp": 1_700_000_000_000,
        }
        _put(channel, "default.XQ", body, {})


def _mass_transit() -> list[dict[str, Any]]:
    return [
        {
            "MT-Reason": "fault",
            "MT-Fault-ExceptionType": "Shop.Shipping.CarrierUnavailableException",
            "MT-Fault-Message": f"carrier {('DHL', 'UPS')[number % 2]} answers 503",
            "MT-Fault-StackTrace": _NET_STACK,
            "MT-Fault-InputAddress": "rabbitmq://mq.example/shop/shipping",
        }
        for number in range(14)
    ]


def _nservicebus(number: int) -> dict[str, Any]:
    return {
        "NServiceBus.ExceptionInfo.ExceptionType": "System.Data.SqlClient.SqlException",
        "NServiceBus.ExceptionInfo.Message": f"deadlock victim, process {40 + number}",
        "NServiceBus.ExceptionInfo.StackTrace": _NET_STACK,
        "NServiceBus.FailedQ": "sales",
    }


def _spring_order(number: int) -> dict[str, Any]:
    out_of_stock = number % 4 != 3
    error = "shop.OutOfStockException" if out_of_stock else "org.postgresql.util.PSQLException"
    message = f"article A-{number} is out of stock" if out_of_stock else "deadlock detected"
    place = "Stock.take" if out_of_stock else "Stock.save"
    return {
        "x-exception-message": message,
        "x-exception-stacktrace": _SPRING_STACK.format(error=error, message=message, place=place),
        "x-original-routingKey": "inventory",
    }


def _symfony() -> dict[str, Any]:
    error = {"exceptionClass": "Twig\\Error\\RuntimeError", "exceptionMessage": "no such template"}
    return {f"{_STAMP}ErrorDetailsStamp": json.dumps([error])}


def _publish_rejected(
    channel: BlockingChannel,
    name: str,
    count: int,
    arguments: dict[str, Any],
    body: bytes | None = None,
    dead: str = "",
    exchange: str = "",
    **properties: Any,
) -> None:
    """Publish messages and reject them from `name`."""
    dead = dead or f"{name}.dlq"
    _queue(channel, dead, **arguments)
    if exchange:
        channel.exchange_declare(exchange, "fanout", durable=True)
        channel.queue_bind(dead, exchange)
        _queue(channel, name, **arguments, **{"x-dead-letter-exchange": exchange})
    else:
        _queue(channel, name, **arguments, **_dead_letters_to(dead))
    for number in range(count):
        _put(channel, name, body or {"invoice": number}, {}, **properties)
    for _ in range(count):
        method = None
        while method is None:
            method, _, _ = channel.basic_get(name)
        channel.basic_reject(method.delivery_tag, requeue=False)


def _plain(channel: BlockingChannel, queue: str, headers: list[dict[str, Any]]) -> None:
    """Publish messages as a framework does itself."""
    _queue(channel, queue)
    for number, each in enumerate(headers):
        _put(channel, queue, {"number": number}, each, message_id=f"{queue}-{number}")


def _publish_expired(channel: BlockingChannel, times: int) -> None:
    _queue(channel, "webhooks.dlq")
    _queue(channel, "webhooks", **{"x-message-ttl": 1}, **_dead_letters_to("webhooks.dlq"))
    _queue(channel, "search.dlq")
    _queue(channel, "search", **{"x-max-length": 1}, **_dead_letters_to("search.dlq"))
    for number in range(7 * times + 1):
        _put(channel, "search", {"page": number}, {})
        if number < 6 * times:
            _put(channel, "webhooks", {"hook": number}, {})


def _ledger(channel: BlockingChannel, times: int) -> None:
    """Delivered too often. Its dead-letter queue has a limit too."""
    limited = {"x-queue-type": "quorum", "x-delivery-limit": 1}
    _queue(channel, "ledger.dlq", **{**limited, "x-delivery-limit": 5})
    _queue(channel, "ledger", **limited, **_dead_letters_to("ledger.dlq"))
    for number in range(2 * times):
        _put(channel, "ledger", {"entry": number}, {})
    deadline = time.monotonic() + _PATIENCE_S
    while _depth(channel, "ledger.dlq") < 2 * times and time.monotonic() < deadline:
        method, _, _ = channel.basic_get("ledger")
        if method is not None:
            channel.basic_nack(method.delivery_tag, requeue=True)


def _dead_letters_to(queue: str) -> dict[str, str]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def _queue(channel: BlockingChannel, name: str, **arguments: Any) -> None:
    channel.queue_declare(name, durable=True, arguments=arguments)


def _put(
    channel: BlockingChannel, queue: str, body: object, headers: dict[str, Any], **properties: Any
) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = {} if isinstance(body, bytes) else {"content_type": "application/json"}
    told = pika.BasicProperties(headers=headers, delivery_mode=2, **kind, **properties)
    channel.basic_publish("", queue, data, told)


def _depth(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the incident did not come about")
        time.sleep(0.02)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--orders", type=int, default=1000)
    parser.add_argument("--wait-ms", type=int, default=1500)
    parser.add_argument("--times", type=int, default=1)
    asked = parser.parse_args()
    sizes = {"orders": asked.orders, "wait_ms": asked.wait_ms, "times": asked.times}
    with Incident(asked.url, **sizes) as made:
        input("The incident is ready. Press Enter to repair the orders service. ")
        made.repaired.set()
        input("Enter ends it. ")


if __name__ == "__main__":
    _main()
