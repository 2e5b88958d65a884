"""Publishing over HTTP, and the services registered."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse
from starlette.routing import Route

from hopback import Publisher
from hopback.designs.event_bus import prefix_of
from hopback.systems.event_bus.events import EventBus
from hopback.systems.event_bus.pushing import queue_of
from hopback.systems.web import RequestRefused, field, json_body, web_application

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from hopback import Broker, Clock
    from hopback.systems.event_bus.settings import EventBusSettings

__all__ = ["api"]

_PATIENCE = 5.0
_LONGEST_DELAY_MS = 86_400_000


def api(
    settings: EventBusSettings,
    broker: Broker,
    clock: Clock | None = None,
    beside: tuple[BaseRoute, ...] = (),
) -> Starlette:
    """The web application of the event bus; `beside` are further routes of it."""
    api = _EventBusApi(settings, clock)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with Publisher(broker, name="event-bus api", timeout=_PATIENCE) as api.publisher:
            yield

    routes = [
        Route("/buses/{prefix}/events", api.publish, methods=["POST"]),
        Route("/services", api.services),
        *beside,
    ]
    return web_application(routes, lifespan)


class _EventBusApi:
    """Answers requests."""

    publisher: Publisher

    def __init__(self, settings: EventBusSettings, clock: Clock | None) -> None:
        self._settings = settings
        self._clock = clock
        self._prefixes = {prefix_of(service) for service in settings.endpoints}

    async def publish(self, request: Request) -> JSONResponse:
        """Publish an event to every service of a bus; 202 when the broker has confirmed."""
        prefix = request.path_params["prefix"]
        if prefix not in self._prefixes:
            raise RequestRefused(
                f"expected one of the buses {', '.join(sorted(self._prefixes))}", 404
            )
        body = await json_body(request)
        delay_ms = body.get("processAfterDelayMs")
        if delay_ms is not None and not (
            type(delay_ms) is int and 0 <= delay_ms <= _LONGEST_DELAY_MS
        ):
            raise RequestRefused(f"processAfterDelayMs: expected 0 to {_LONGEST_DELAY_MS}")
        bus = EventBus(self.publisher, prefix, self._clock)
        event_id = await bus.publish(
            field(body, "type"), body.get("payload"), process_after_delay_ms=delay_ms
        )
        return JSONResponse({"id": event_id}, 202)

    async def services(self, _request: Request) -> JSONResponse:
        """Every service: its endpoint, and the queues that serve it."""
        return JSONResponse(
            {
                "services": [
                    {
                        "service": service,
                        "endpoint": endpoint,
                        "queue": queue_of(service),
                        "retryQueue": f"{prefix_of(service)}.retry-queue.{service}",
                        "deadLetterQueue": f"{prefix_of(service)}.dlq.{service}",
                    }
                    for service, endpoint in self._settings.endpoints.items()
                ]
            }
        )
