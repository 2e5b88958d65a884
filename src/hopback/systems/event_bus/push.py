"""Pushes events to the services. Each consumer posts the events of one service to its endpoint, and
the HTTP status determines the outcome.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from hopback import App, HopbackError, Service
from hopback.designs import DESIGNS, event_bus
from hopback.runtime import PushTarget
from hopback.systems.event_bus.registry import ServiceRegistry, queue_of
from hopback.systems.event_bus.settings import EventBusSettings

_LOG = logging.getLogger("hopback.systems.event_bus")
_READ_EVERY_S = 1.0
"""Seconds between two checks of the services file, so that a change takes effect within about two
seconds.
"""


def create_push(settings: EventBusSettings, variables: Mapping[str, str] = os.environ) -> App:
    """Return the application that pushes events to the services.

    If `SERVICES_FILE` is set, services are added and removed while the application runs.
    """
    registry = ServiceRegistry(settings, variables)
    if settings.services_file is None:
        return _push_app("event-bus", registry.targets(), settings)

    @asynccontextmanager
    async def follow_file(app: App) -> AsyncIterator[None]:
        running: dict[str, tuple[PushTarget, App]] = {}
        await _update(app.running_service, registry.targets(), running, settings)

        async def follow() -> None:
            while True:
                await asyncio.sleep(_READ_EVERY_S)
                await _update(app.running_service, registry.targets(), running, settings)

        task = asyncio.create_task(follow(), name="event-bus services")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return App("event-bus", codes=DESIGNS["event-bus"].codes, lifespan=follow_file)


def _push_app(name: str, targets: Mapping[str, PushTarget], settings: EventBusSettings) -> App:
    topology = event_bus(tuple(targets), hardened=settings.hardened)
    app = App(name, topology=topology, codes=DESIGNS["event-bus"].codes)
    for service, target in targets.items():
        app.push_to(queue_of(service), target)
    return app


async def _update(
    runner: Service,
    targets: Mapping[str, PushTarget],
    running: dict[str, tuple[PushTarget, App]],
    settings: EventBusSettings,
) -> None:
    """Start and stop the consumers of services so that they match `targets`. Failed changes are
    tried again at the next check.
    """
    try:
        for service, (target, app) in list(running.items()):
            if targets.get(service) != target:
                # If only the endpoint has changed, the queue stays bound, so that no event is lost.
                await runner.remove(app, unbind=service not in targets)
                del running[service]
                _LOG.info("%s was removed, its endpoint was %s", service, target.url)
        for service, target in targets.items():
            if service not in running:
                app = _push_app(f"event-bus {service}", {service: target}, settings)
                await runner.add(app)
                running[service] = target, app
                _LOG.info("%s was added, its endpoint is %s", service, target.url)
    except HopbackError as error:
        _LOG.error(
            "the services are not up to date, next attempt in %.0f s: %s", _READ_EVERY_S, error
        )
