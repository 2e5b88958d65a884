"""A night on call, made with plain pika: dead letters of many makes, and a consumer that is broken.

`orders` is consumed by a service that retries twice through a queue with a TTL and then rejects; the
others stand as frameworks leave them. By hand:

    python -m tests.acceptance.incident amqp://guest:guest@127.0.0.1:5672/ --orders 50000
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
}
"""How many dead letters stand in the queues beside `orders.dlq`."""


class Incident:
    """Makes it, and lets the broken consumer of `orders` run while the block lasts."""

    def __init__(self, url: str, *, orders: int = 60, wait_ms: int = 200) -> None:
        self._parameters = pika.URLParameters(url)
        self._orders = orders
        self._wait_ms = wait_ms
        self._ends = threading.Event()
        self._consumer = threading.Thread(target=self._consume, name="the orders service")
        self.repaired = threading.Event()
        """Set it when the cause is fixed: from then on the service handles what it gets."""
        self.handled: list[int] = []
        """The numbers of the orders that it handled."""

    def __enter__(self) -> Self:
        with pika.BlockingConnection(self._parameters) as connection:
            channel = connection.channel()
            self._declare_orders(channel)
            self._publish_orders(channel)
            _make_others(channel)
            self._consumer.start()
            _until(lambda: _depth(channel, "orders.dlq") >= self._orders)
            _until(lambda: all(_depth(channel, each) >= OTHERS[each] for each in OTHERS))
        return self

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
        """Two laps through the retry queue, then a rejection; once repaired, an ack."""
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


# --- what stands in the other queues


def _make_others(channel: BlockingChannel) -> None:
    """Each queue as its framework leaves it."""
    _rejected(channel, "billing", 30, {"x-queue-type": "quorum"})
    _rejected(channel, "images", 5, {}, body=b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    packed = gzip.compress(json.dumps({"document": "D-77", "customer": "C-00042"}).encode())
    _rejected(channel, "documents", 3, {}, body=packed, content_encoding="gzip")
    hostile = {
        "name": "<img src=x onerror=alert(1)>",
        "city": "\u202eegarots\x1b[31m",
        "crew": "👩‍🚀",
    }
    _rejected(channel, "users", 3, {}, body=json.dumps(hostile, ensure_ascii=False).encode())
    for main in ("shipping", "inventory", "emails", "sales"):
        _queue(channel, main)
    _plain(channel, "shipping_error", _mass_transit())
    _plain(channel, "shipping_skipped", [{"MT-Reason": "skipped"}] * 2)
    _plain(channel, "error", [_nservicebus(number) for number in range(10)])
    _plain(channel, "inventory.dlq", [_spring(number) for number in range(10)])
    _plain(channel, "celery.dead", [{"task": "mail.send", "retries": 3}] * 8)
    _plain(channel, "emails_failed", [_symfony()] * 2)
    _expired_and_pushed_out(channel)
    _ledger(channel)


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


def _spring(number: int) -> dict[str, Any]:
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


def _rejected(
    channel: BlockingChannel,
    name: str,
    count: int,
    arguments: dict[str, Any],
    body: bytes | None = None,
    **properties: Any,
) -> None:
    """Messages that a consumer of `name` rejected."""
    _queue(channel, f"{name}.dlq", **arguments)
    _queue(channel, name, **arguments, **_dead_letters_to(f"{name}.dlq"))
    for number in range(count):
        _put(channel, name, body or {"invoice": number}, {}, **properties)
    for _ in range(count):
        method = None
        while method is None:
            method, _, _ = channel.basic_get(name)
        channel.basic_reject(method.delivery_tag, requeue=False)


def _plain(channel: BlockingChannel, queue: str, headers: list[dict[str, Any]]) -> None:
    """Messages that a framework has published there itself."""
    _queue(channel, queue)
    for number, each in enumerate(headers):
        _put(channel, queue, {"number": number}, each, message_id=f"{queue}-{number}")


def _expired_and_pushed_out(channel: BlockingChannel) -> None:
    _queue(channel, "webhooks.dlq")
    _queue(channel, "webhooks", **{"x-message-ttl": 1}, **_dead_letters_to("webhooks.dlq"))
    _queue(channel, "search.dlq")
    _queue(channel, "search", **{"x-max-length": 1}, **_dead_letters_to("search.dlq"))
    for number in range(8):
        _put(channel, "search", {"page": number}, {})
        if number < 6:
            _put(channel, "webhooks", {"hook": number}, {})


def _ledger(channel: BlockingChannel) -> None:
    """Delivered too often; its dead-letter queue has a limit itself."""
    limited = {"x-queue-type": "quorum", "x-delivery-limit": 1}
    _queue(channel, "ledger.dlq", **{**limited, "x-delivery-limit": 5})
    _queue(channel, "ledger", **limited, **_dead_letters_to("ledger.dlq"))
    for number in range(2):
        _put(channel, "ledger", {"entry": number}, {})
    deadline = time.monotonic() + _PATIENCE_S
    while _depth(channel, "ledger.dlq") < 2 and time.monotonic() < deadline:
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
    asked = parser.parse_args()
    with Incident(asked.url, orders=asked.orders, wait_ms=asked.wait_ms) as made:
        input("The incident stands; Enter repairs the orders service. ")
        made.repaired.set()
        input("Enter ends it. ")


if __name__ == "__main__":
    _main()
