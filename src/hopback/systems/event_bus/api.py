"""The HTTP API, which publishes events and lists the registered services.

If `PUBLISH_TOKENS` is set, both require `Authorization: Bearer TOKEN`. Health checks and metrics do
not.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from hopback.broker import Broker
from hopback.designs.event_bus import prefix_of
from hopback.runtime import Clock, SystemClock
from hopback.systems.event_bus.events import event_message
from hopback.systems.event_bus.registry import ServiceRegistry, queue_of
from hopback.systems.event_bus.settings import EventBusSettings
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

_LONGEST_DELAY_MS = 86_400_000
"""One day, in milliseconds. Events with a longer delay need a scheduler."""


def create_api(
    settings: EventBusSettings,
    broker: Broker,
    clock: Clock | None = None,
    variables: Mapping[str, str] = os.environ,
) -> Starlette:
    """Return the web application of the event bus."""
    registry, clock = ServiceRegistry(settings, variables), clock or SystemClock()
    publisher = TopologyPublisher(broker, registry.topology(), name="event-bus api")

    async def publish_event(request: Request) -> JSONResponse:
        """Publish an event to all services of a bus. The response is 202 once the broker has
        confirmed it.
        """
        _authenticate(request, settings.publish_tokens)
        prefix = request.path_params["prefix"]
        prefixes = sorted({prefix_of(service) for service in registry.targets()})
        if prefix not in prefixes:
            raise RequestRefused(f"expected one of the buses {', '.join(prefixes)}", status=404)
        body = await json_body(request, with_nul=True)
        delay_ms = body.get("processAfterDelayMs")
        if not (delay_ms is None or (type(delay_ms) is int and 0 <= delay_ms <= _LONGEST_DELAY_MS)):
            raise RequestRefused(f"processAfterDelayMs: expected 0 to {_LONGEST_DELAY_MS}")
        message = event_message(
            prefix,
            short_text(field(body, "type"), "type"),
            body.get("payload"),
            now=clock.now(),
            event_id=idempotency_key(request),
            process_after_delay_ms=delay_ms,
        )
        return await publish(publisher, message)

    async def list_services(request: Request) -> JSONResponse:
        """List all services with their endpoints and queues."""
        _authenticate(request, settings.publish_tokens)
        services = [
            {
                "service": service,
                "endpoint": target.url,
                "queue": queue_of(service),
                "retryQueue": f"{prefix_of(service)}.retry-queue.{service}",
                "deadLetterQueue": f"{prefix_of(service)}.dlq.{service}",
            }
            for service, target in registry.targets().items()
        ]
        return JSONResponse({"services": services})

    return web_application(
        [
            Route("/buses/{prefix}/events", publish_event, methods=["POST"]),
            Route("/services", list_services),
        ],
        publisher=publisher,
    )


def _authenticate(request: Request, tokens: tuple[str, ...]) -> None:
    """Raise RequestRefused with status 401 if tokens are configured and the request has none of
    them.
    """
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # Compare all tokens, so that the duration does not reveal which one matches.
    sent = given.strip(" ").encode("latin-1")  # the bytes of the header
    matches = [hmac.compare_digest(sent, one.encode()) for one in tokens]
    if tokens and not (scheme.lower() == "bearer" and any(matches)):
        raise RequestRefused(
            "expected the header `Authorization: Bearer TOKEN` with a token of PUBLISH_TOKENS",
            status=401,
            headers={"WWW-Authenticate": "Bearer"},
        )
