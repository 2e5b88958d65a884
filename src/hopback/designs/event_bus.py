"""The event bus: a fanout exchange for all services, with ten retries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.designs.design import count_problems, delay_problems, name_problems, refuse
from hopback.errors import Problem
from hopback.topology.expand import dead_lettering, harden, harden_queues, one_tier
from hopback.topology.model import Binding, Exchange, ExchangeType, Queue, Topology
from hopback.topology.plan import (
    Count,
    Fact,
    Leave,
    LocalWait,
    Parking,
    Plan,
    Redrive,
    Return,
    Stamp,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SERVICES = ("wms-cincout", "wms-orders")
"""The default services."""

_FINAL = (
    Stamp("x-original-queue", Fact.QUEUE),
    Stamp("x-final-status-code", Fact.STATUS),
    Stamp("x-final-error", Fact.ERROR),
    Stamp("x-final-retry-count", Fact.RETRIES),
)


def prefix_of(service: str) -> str:
    """Return the part of the name before the first hyphen, or `default`."""
    prefix, hyphen, _ = service.partition("-")
    return prefix if hyphen else "default"


def event_bus(
    services: Sequence[str] = SERVICES,
    *,
    hardened: bool = False,
    retry_ttl_ms: int = 5_000,
    max_retries: int = 10,
) -> Topology:
    """The documented "RabbitMQ Architecture" of an event bus that pushes events to services.

    Each prefix has a fanout exchange, which feeds a queue for each service. A failed event is
    rejected into `{prefix}.retry-queue.{service}`, waits 5 s and returns only to that service. A
    failing event runs eleven times. After the last run, a confirmed publish parks it in
    `{prefix}.dlq.{service}`. An event that is not due yet (425) waits in the process and is requeued
    without counting an attempt. A re-driven event keeps its count, so its next failure parks it
    again.

    A failing service does not affect other services, and parking does not lose events. In the
    faithful form (classic queues), the broker moves events into and out of the retry queue at most
    once, so it can lose some. The hardened form does not lose events. In this form, events that are
    not due wait in the retry queue.
    """
    problems = [
        *_service_problems(services),
        *delay_problems("params.retry_ttl_ms", retry_ttl_ms),
        *count_problems("params.max_retries", max_retries, least=0),
    ]
    refuse(problems, "event-bus")
    faithful = tuple(_plan(service, retry_ttl_ms, max_retries) for service in services)
    plans = tuple(map(harden, faithful)) if hardened else faithful
    prefixes = dict.fromkeys(map(prefix_of, services))
    return Topology(
        name="event-bus",
        exchanges=(
            *(Exchange(f"{prefix}.main-exchange", ExchangeType.FANOUT) for prefix in prefixes),
            *(Exchange(plan.tiers[0].routes[0].exchange) for plan in plans),
        ),
        queues=tuple(
            queue
            for plan in plans
            for queue in (harden_queues(plan) if hardened else _faithful_queues(plan))
        ),
        bindings=tuple(
            binding
            for service, plan in zip(services, plans, strict=True)
            for route in plan.tiers[0].routes
            for binding in (
                Binding(f"{prefix_of(service)}.main-exchange", plan.queue),
                Binding(route.exchange, route.queue, route.routing_key),
            )
        ),
        plans=plans,
    )


def _plan(service: str, retry_ttl_ms: int, max_retries: int) -> Plan:
    prefix = prefix_of(service)
    queue, parked = f"{prefix}.queue.{service}", f"{prefix}.dlq.{service}"
    return Plan(
        queue=queue,
        attempts=max_retries + 1,
        tiers=one_tier(
            retry_ttl_ms,
            f"{prefix}.retry-exchange.{service}",
            "retry",
            f"{prefix}.retry-queue.{service}",
        ),
        leave=Leave.REJECT,
        returns=Return.QUEUE,
        parking=Parking(parked, Leave.PUBLISH, "", parked),
        count=Count.X_DEATH,
        redrive=Redrive("", queue, reset=False, keep_deaths=True),
        snooze=LocalWait(500, 2_000),
        snooze_exhausts=True,
        park_stamps=_FINAL,
    )


def _faithful_queues(plan: Plan) -> tuple[Queue, Queue, Queue]:
    tier = plan.tiers[0]
    route = tier.routes[0]
    return (
        Queue(plan.queue, arguments=dead_lettering(route.exchange, route.routing_key)),
        Queue(route.queue, arguments=dead_lettering("", plan.queue, ttl_ms=tier.delay_ms)),
        Queue(plan.parking.queue),
    )


def _service_problems(services: Sequence[str]) -> Iterable[Problem]:
    if not services:
        yield Problem("params.services", "at least one service name", "none")
    for index, service in enumerate(services):
        path = f"params.services[{index}]"
        prefix = prefix_of(service)
        yield from name_problems(path, service, room=len(f"{prefix}.retry-exchange.".encode()))
        if service and not prefix:
            yield Problem(path, "a name that does not begin with a hyphen", repr(service))
        if service in services[:index]:
            yield Problem(path, "each service once", f"{service!r} again")
