"""Publishing over HTTP, and the services registered."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse
from starlette.routing import Route

from hopback import SystemClock
from hopback.designs.event_bus import prefix_of
from hopback.systems.event_bus.events import event_message
from hopback.systems.event_bus.push import queue_of
from hopback.systems.event_bus.registry import ServiceRegistry
from hopback.systems.web import (
    RequestRefused,
    TopologyPublisher,
    field,
    idempotency_key,
    json_body,
    publish,
    short_text,
    web_application,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from hopback import Clock
    from hopback.broker import Broker
    from hopback.systems.event_bus.settings import EventBusSettings

_LONGEST_DELAY_MS = 86_400_000
"""A day: an event that is due later than that needs a scheduler."""


def api(
    settings: EventBusSettings,
    broker: Broker,
    clock: Clock | None = None,
    beside: tuple[BaseRoute, ...] = (),
    variables: Mapping[str, str] | None = None,
) -> Starlette:
    """The web application of the event bus; `beside` are further routes of it."""
    registry = ServiceRegistry(settings, os.environ if variables is None else variables)
    api = _EventBusApi(registry, clock)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        publisher = TopologyPublisher(broker, registry.topology(), name="event-bus api")
        async with publisher as api.publisher:
            yield

    routes = [
        Route("/buses/{prefix}/events", api.publish, methods=["POST"]),
        Route("/services", api.services),
        *beside,
    ]
    return web_application(routes, lifespan)


class _EventBusApi:
    """Answers requests."""

    publisher: TopologyPublisher

    def __init__(self, registry: ServiceRegistry, clock: Clock | None) -> None:
        self._registry = registry
        self._clock = clock or SystemClock()

    async def publish(self, request: Request) -> JSONResponse:
        """Publish an event to every service of a bus; 202 when the broker has confirmed."""
        prefix = request.path_params["prefix"]
        prefixes = sorted({prefix_of(service) for service in self._registry.targets()})
        if prefix not in prefixes:
            raise RequestRefused(f"expected one of the buses {', '.join(prefixes)}", 404)
        body = await json_body(request, with_nul=True)
        delay_ms = body.get("processAfterDelayMs")
        if delay_ms is not None and not (
            type(delay_ms) is int and 0 <= delay_ms <= _LONGEST_DELAY_MS
        ):
            raise RequestRefused(f"processAfterDelayMs: expected 0 to {_LONGEST_DELAY_MS}")
        event_id, message = event_message(
            prefix,
            short_text(field(body, "type"), "type"),
            body.get("payload"),
            now=self._clock.now(),
            event_id=idempotency_key(request),
            process_after_delay_ms=delay_ms,
        )
        await publish(self.publisher, message)
        return JSONResponse({"id": event_id}, 202)

    async def services(self, _request: Request) -> JSONResponse:
        """Every service: its endpoint, and the queues that serve it."""
        return JSONResponse(
            {
                "services": [
                    {
                        "service": service,
                        "endpoint": target.url,
                        "queue": queue_of(service),
                        "retryQueue": f"{prefix_of(service)}.retry-queue.{service}",
                        "deadLetterQueue": f"{prefix_of(service)}.dlq.{service}",
                    }
                    for service, target in self._registry.targets().items()
                ]
            }
        )
