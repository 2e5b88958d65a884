"""Queues of other frameworks and of the integrations: found, asked about or not listed, each as expected.

Every queue of a topology has a message. A work queue is never found as a dead-letter queue, with its
consumers connected or away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from hopback.broker.declare import declare
from hopback.broker.embedded import EmbeddedBroker, EmbeddedManagement
from hopback.integrations.planned import PlannedQueues
from hopback.message import Message
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.operations import Operations
from hopback.testing import in_virtual_time
from hopback.topology.model import Binding, Exchange, Queue, QueueType, Topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.fields import FieldValue

_WEEK_MS = 604_800_000


@dataclass(frozen=True, slots=True)
class _Framework:
    """Its topology, its dead-letter queues with their origins, and the queues that are asked about.

    `away` are asked about only while they have no consumer.
    """

    topology: Topology
    found: Mapping[str, tuple[str, ...]]
    work: tuple[str, ...]
    asked: tuple[str, ...] = ()
    away: tuple[str, ...] = ()


def _to(key: str, exchange: str = "", ttl: int | None = None) -> dict[str, FieldValue]:
    arguments: dict[str, FieldValue] = {
        "x-dead-letter-exchange": exchange,
        "x-dead-letter-routing-key": key,
    }
    return arguments if ttl is None else {**arguments, "x-message-ttl": ttl}


def _topology(
    *queues: Queue, exchanges: Mapping[str, str] | None = None, bindings: tuple[Binding, ...] = ()
) -> Topology:
    kinds = exchanges or {}
    made = tuple(Exchange(name, kind) for name, kind in kinds.items())
    return Topology("foreign", made, queues, bindings)


def _topology_with_plan(*bound_to: str) -> Topology:
    """A queue of another library with a plan, and the queues that the integrations declare for it."""
    plans = PlannedQueues(name="shop")
    plans.queue("orders", retry=["30s", "5m"])
    bindings = tuple(Binding(exchange, "orders", "order.#") for exchange in bound_to)
    return replace(
        plans.topology,
        exchanges=tuple(Exchange(name, "topic") for name in bound_to),
        queues=(Queue("orders"), *plans.topology.queues),
        bindings=bindings,
        plans=(),
    )


_DELAYS = tuple(
    Queue(
        f"celery_delayed_{level}",
        QueueType.QUORUM,
        arguments=_to("", f"celery_delayed_{level - 1}", 2**level * 1000)
        if level
        else {"x-dead-letter-exchange": "celery_delayed_delivery", "x-message-ttl": 1000},
    )
    for level in range(3)
)

_FRAMEWORKS = {
    "FastStream, dead letters by reject": _Framework(
        _topology(
            Queue("orders", arguments={"x-dead-letter-exchange": "dlx"}),
            Queue("orders.dead"),
            exchanges={"dlx": "fanout", "shop": "topic"},
            bindings=(Binding("shop", "orders", "#"), Binding("dlx", "orders.dead")),
        ),
        {"orders.dead": ("orders",)},
        ("orders",),
    ),
    "FastStream, retries in a queue that its handler publishes to": _Framework(
        _topology(
            Queue("orders"),
            Queue("orders-retry", arguments=_to("orders", ttl=5000)),
            Queue("orders-dlq"),
        ),
        {"orders-dlq": ("orders",)},
        ("orders",),
    ),
    "FastStreamPlans, AioPikaPlans, PikaPlans": _Framework(
        _topology_with_plan(), {"orders.dlq": ("orders",)}, ("orders",)
    ),
    "the same with a bound queue": _Framework(
        _topology_with_plan("events"), {"orders.dlq": ("orders",)}, ("orders",)
    ),
    "aio-pika, retries return by the work exchange": _Framework(
        _topology(
            Queue("orders"),
            Queue("audit"),
            Queue("orders.wait.5s", arguments=_to("order", "work", 5000)),
            Queue("dead_letters"),
            exchanges={"work": "topic"},
            bindings=(Binding("work", "orders", "order"), Binding("work", "audit", "#")),
        ),
        {"dead_letters": ()},
        ("orders", "audit"),
    ),
    "aio-pika, the broker fills the retry queue and audit gets copies": _Framework(
        _topology(
            Queue("orders", arguments=_to("orders", "retry")),
            Queue("audit"),
            Queue("orders.5s", arguments=_to("order", "work", 5000)),
            Queue("orders_failed"),
            exchanges={"work": "topic", "retry": "direct"},
            bindings=(
                Binding("work", "orders", "order"),
                Binding("work", "audit", "#"),
                Binding("retry", "orders.5s", "orders"),
            ),
        ),
        {"orders_failed": ("orders",)},
        ("orders", "audit"),
    ),
    "pika, one wait with any name": _Framework(
        _topology(
            Queue("jobs"),
            Queue("five-seconds", arguments=_to("jobs", ttl=5000)),
            Queue("jobs.failed"),
        ),
        {"jobs.failed": ("jobs",)},
        ("jobs",),
        asked=("five-seconds",),
    ),
    "pika, messages with their own expiration": _Framework(
        _topology(
            Queue("jobs"), Queue("jobs.delayed", arguments=_to("jobs")), Queue("jobs.failed")
        ),
        {"jobs.failed": ("jobs",)},
        ("jobs",),
    ),
    "pika, expired messages of a work queue": _Framework(
        _topology(
            Queue("webhooks", arguments=_to("webhooks.dlq", ttl=1000)), Queue("webhooks.dlq")
        ),
        {"webhooks.dlq": ("webhooks",)},
        ("webhooks",),
    ),
    "pika, expired messages of a bound work queue": _Framework(
        _topology(
            Queue("quotes", arguments=_to("old", "stale", ttl=1000)),
            Queue("old-quotes"),
            exchanges={"market": "fanout", "stale": "direct"},
            bindings=(Binding("market", "quotes"), Binding("stale", "old-quotes", "old")),
        ),
        {"old-quotes": ("quotes",)},
        ("quotes",),
    ),
    "Celery": _Framework(
        _topology(
            Queue("celery"),
            Queue("priority"),
            exchanges={"celery": "direct"},
            bindings=(Binding("celery", "celery", "celery"),),
        ),
        {},
        (),
        away=("celery", "priority"),
    ),
    "Celery with a dead-letter exchange and native delays": _Framework(
        _topology(
            Queue("celery", QueueType.QUORUM, arguments=_to("celery", "dlx")),
            Queue("celery.dlq"),
            *_DELAYS,
            exchanges={
                "celery": "direct",
                "dlx": "direct",
                "celery_delayed_delivery": "topic",
                **{f"celery_delayed_{level}": "topic" for level in range(3)},
            },
            bindings=(
                Binding("celery", "celery", "celery"),
                Binding("dlx", "celery.dlq", "celery"),
                Binding("celery_delayed_delivery", "celery", "#.celery"),
                *(
                    Binding(f"celery_delayed_{level}", f"celery_delayed_{level}", "1.#")
                    for level in range(3)
                ),
            ),
        ),
        {"celery.dlq": ("celery",)},
        ("celery",),
    ),
    "Dramatiq": _Framework(
        _topology(
            Queue("default", arguments=_to("default.XQ")),
            Queue("default.DQ", arguments=_to("default.XQ")),
            Queue("default.XQ", arguments={"x-message-ttl": _WEEK_MS}),
        ),
        {"default.XQ": ("default", "default.DQ")},
        ("default", "default.DQ"),
    ),
    "MassTransit": _Framework(
        _topology(
            Queue("orders"),
            Queue("orders_error"),
            Queue("orders_skipped"),
            exchanges={"orders": "fanout", "orders_error": "fanout", "orders_skipped": "fanout"},
            bindings=tuple(
                Binding(name, name) for name in ("orders", "orders_error", "orders_skipped")
            ),
        ),
        {"orders_error": ("orders",), "orders_skipped": ("orders",)},
        ("orders",),
    ),
    "NServiceBus": _Framework(
        _topology(
            Queue("Sales", QueueType.QUORUM),
            Queue("error", QueueType.QUORUM),
            Queue("audit", QueueType.QUORUM),
            Queue(
                "nsb.v2.delay-level-00",
                arguments={
                    "x-dead-letter-exchange": "nsb.v2.delay-delivery",
                    "x-message-ttl": 1000,
                },
            ),
            exchanges={
                "Sales": "fanout",
                "error": "fanout",
                "nsb.v2.delay-level-00": "topic",
                "nsb.v2.delay-delivery": "topic",
            },
            bindings=(
                Binding("Sales", "Sales"),
                Binding("error", "error"),
                Binding("nsb.v2.delay-level-00", "nsb.v2.delay-level-00", "1.#"),
                Binding("nsb.v2.delay-delivery", "Sales", "#.Sales", to_exchange=True),
            ),
        ),
        {"error": ()},
        (),
        asked=("audit",),
        away=("Sales",),
    ),
    "Spring Cloud Stream": _Framework(
        _topology(
            Queue("orders.billing", arguments=_to("orders.billing", "DLX")),
            Queue("orders.billing.dlq"),
            exchanges={"orders": "topic", "DLX": "direct"},
            bindings=(
                Binding("orders", "orders.billing", "#"),
                Binding("DLX", "orders.billing.dlq", "orders.billing"),
            ),
        ),
        {"orders.billing.dlq": ("orders.billing",)},
        ("orders.billing",),
    ),
    "Spring Cloud Stream, retries by dlqTtl and a parking lot": _Framework(
        _topology(
            Queue("orders.billing", arguments=_to("orders.billing", "DLX")),
            Queue("orders.billing.dlq", arguments=_to("orders.billing", ttl=5000)),
            Queue("orders.billing.parkingLot"),
            exchanges={"orders": "topic", "DLX": "direct"},
            bindings=(
                Binding("orders", "orders.billing", "#"),
                Binding("DLX", "orders.billing.dlq", "orders.billing"),
            ),
        ),
        {"orders.billing.parkingLot": ("orders.billing",)},
        ("orders.billing",),
    ),
    "a dead-letter queue with its own retry queue": _Framework(
        _topology(
            Queue("orders"),
            Queue("orders.dlq"),
            Queue("orders.dlq.retry", arguments=_to("orders.dlq", ttl=1000)),
        ),
        {"orders.dlq": ("orders",)},
        ("orders",),
    ),
}


@pytest.mark.parametrize("consumed", [True, False], ids=["consumed", "consumers away"])
@pytest.mark.parametrize("name", _FRAMEWORKS)
@in_virtual_time
async def test_queues_of_frameworks_are_found_asked_about_or_not_listed(
    name: str, consumed: bool
) -> None:
    framework = _FRAMEWORKS[name]
    broker = EmbeddedBroker()
    connection = await broker.connect("test")
    await declare(connection, framework.topology)
    channel = await connection.open_channel()
    for queue in framework.topology.queues:
        await channel.publish(Message("", queue.name, b"x"))
    if consumed:
        for queue_name in (*framework.work, *framework.away):
            await channel.consume(queue_name, lambda _: None)
    async with Operations(
        ManagedBroker(broker, management=EmbeddedManagement(broker))
    ) as operations:
        listed = {one.queue: one.origins for one in await operations.queues()}
        asked = {one.queue for one in (await operations.candidates()).items}
    assert listed == framework.found
    assert asked == set(framework.asked) | (set() if consumed else set(framework.away))
