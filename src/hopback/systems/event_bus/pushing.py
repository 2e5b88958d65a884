"""The consumer of every service: posts its events to its endpoint, and the status is the outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback import DESIGNS, App
from hopback.designs import event_bus
from hopback.designs.event_bus import prefix_of

if TYPE_CHECKING:
    from hopback.systems.event_bus.settings import EventBusSettings

__all__ = ["pushing", "queue_of"]


def queue_of(service: str) -> str:
    """The queue of a service: `wms.queue.wms-orders`."""
    return f"{prefix_of(service)}.queue.{service}"


def pushing(settings: EventBusSettings) -> App:
    """The application that pushes events to the services registered."""
    services = tuple(settings.endpoints)
    app = App(
        "event-bus",
        topology=event_bus(services, hardened=settings.hardened),
        codes=DESIGNS["event-bus"].codes,
    )
    for service, endpoint in settings.endpoints.items():
        app.push(
            queue_of(service),
            endpoint,
            timeout=settings.timeout_ms / 1000,
            concurrency=settings.concurrency,
        )
    return app
