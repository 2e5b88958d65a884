"""The consumer of every service: posts its events to its endpoint, and the status is the outcome."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hopback import App, BrokerError, HopbackError
from hopback.designs import DESIGNS, event_bus
from hopback.designs.event_bus import prefix_of
from hopback.systems.event_bus.registry import ServiceRegistry
from hopback.topology import Binding

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from hopback import Service
    from hopback.runtime import PushTarget
    from hopback.systems.event_bus.settings import EventBusSettings

_LOG = logging.getLogger("hopback.systems.event_bus")
_LOOK_S = 1.0
"""How often the file of services is looked at: a change is at work within a second or two."""


def queue_of(service: str) -> str:
    """The queue of a service: `wms.queue.wms-orders`."""
    return f"{prefix_of(service)}.queue.{service}"


def pushing(settings: EventBusSettings, variables: Mapping[str, str] | None = None) -> App:
    """The application that pushes events to the services registered.

    Those of `SERVICES` have consumers of their own from the start. With a file of services they come
    and go as the file says, while it runs.
    """
    registry = ServiceRegistry(settings, os.environ if variables is None else variables)
    if settings.services_file is not None:
        follower = _Follower(registry, settings.hardened)
        return App("event-bus", codes=DESIGNS["event-bus"].codes, lifespan=follower.lifespan)
    return _pusher("event-bus", registry.targets(), hardened=settings.hardened)


def _pusher(name: str, targets: Mapping[str, PushTarget], *, hardened: bool) -> App:
    app = App(
        name,
        topology=event_bus(tuple(targets), hardened=hardened),
        codes=DESIGNS["event-bus"].codes,
    )
    for service, target in targets.items():
        app.push_to(queue_of(service), target)
    return app


@dataclass(slots=True)
class _Follower:
    """Starts and ends a consumer for each service, as the registry has them."""

    registry: ServiceRegistry
    hardened: bool
    _at_work: dict[str, tuple[PushTarget, Service, asyncio.Task[object]]] = field(
        default_factory=dict
    )

    @asynccontextmanager
    async def lifespan(self, app: App) -> AsyncIterator[None]:
        following = asyncio.create_task(self._follow(app), name="event-bus services")
        try:
            yield
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await asyncio.gather(*(self._end(service) for service in list(self._at_work)))

    async def _follow(self, app: App) -> None:
        while True:
            try:
                wanted = self.registry.targets()
                for service, (target, _, task) in list(self._at_work.items()):
                    if service not in wanted:
                        await self._end(service)
                        await self._unbind(app, service)
                    elif target != wanted[service] or task.done():
                        await self._end(service)
                for service, target in wanted.items():
                    if service not in self._at_work:
                        pusher = _pusher(
                            f"event-bus {service}", {service: target}, hardened=self.hardened
                        )
                        running = app.running_service.service_for(pusher)
                        task = asyncio.create_task(running.run(), name=f"push to {service}")
                        self._at_work[service] = (target, running, task)
                        _LOG.warning("%s is registered: its events go to %s", service, target.url)
            except Exception:
                _LOG.exception("the services are compared again in a moment")
            await asyncio.sleep(_LOOK_S)

    async def _end(self, service: str) -> None:
        """Let what runs end in order; what was not pushed stays in the service's queue."""
        _, running, task = self._at_work.pop(service)
        running.stop()
        try:
            await task
        except HopbackError as error:
            _LOG.error("pushing to %s has ended: %s", service, error)

    async def _unbind(self, app: App, service: str) -> None:
        """A service that is gone gets no more events; those it had are kept in its queue."""
        binding = Binding(f"{prefix_of(service)}.main-exchange", queue_of(service))
        try:
            connection = await app.running_service.broker.connect("event-bus removes a service")
            try:
                channel = await connection.open_channel()
                await channel.unbind(binding)
            finally:
                await connection.close()
        except BrokerError as error:
            _LOG.error("%s is removed, and its queue still bound: %s", service, error)
        else:
            _LOG.warning(
                "%s is removed: what it had not got stays in %s", service, queue_of(service)
            )
