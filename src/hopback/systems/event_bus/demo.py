"""Runs the event bus in one process, with sample traffic in which some deliveries fail on purpose."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx

from hopback.designs.event_bus import SERVICES
from hopback.systems.event_bus.api import create_api
from hopback.systems.event_bus.push import create_push
from hopback.systems.event_bus.receiver import create_receiver
from hopback.systems.event_bus.settings import EventBusSettings
from hopback.systems.host import Host, Part, Running, System, Try, running
from hopback.systems.web import opened

_EVERY = 5.0
"""Seconds between two events, so that a reader can follow each one."""


@asynccontextmanager
async def _start(host: Host) -> AsyncIterator[Running]:
    """Start the event bus with the sample receiver at `/receiver`. Services and tokens in the
    environment are ignored, because the sample traffic is not meant for them.
    """
    settings = replace(
        EventBusSettings.read(host.variables),
        services=SERVICES,
        services_file=None,
        publish_tokens=(),
        receiver=f"{host.url}/receiver",
        hardened=host.hardened,
    )
    web = create_api(settings, host.broker, host.environment.clock)
    web.mount("/receiver", create_receiver(host.environment.clock))
    async with running(host, create_push(settings)) as service, opened(web):
        yield Running((service,), web)


async def _traffic(host: Host) -> None:
    """Publish events. One service fails occasionally, and the other rejects all stock corrections."""
    async with httpx.AsyncClient(base_url=host.url, trust_env=False) as client:
        for number in itertools.count():
            event: dict[str, object] = {"type": "order.created", "payload": {"order": number}}
            if number % 5 == 2:
                event = {**event, "type": "order.reminder", "processAfterDelayMs": 8000}
            if number % 10 == 4:
                event = {"type": "stock.corrected", "payload": {"shelf": number}}
                # This is set each time, because a reader of the README may have reset it.
                hopeless = {"status": 422, "type": "stock.corrected"}
                await client.put("/receiver/wms-orders/behaviour", json=hopeless)
            if number % 6 == 0:
                unreliable = {"status": 503, "times": 2}
                await client.put("/receiver/wms-cincout/behaviour", json=unreliable)
            await client.post("/buses/wms/events", json=event)
            await asyncio.sleep(_EVERY)


SYSTEM = System(
    "event-bus",
    "events pushed over HTTP to every registered service",
    (
        Part("hopback.systems.event_bus.parts:create_web", "publishing over HTTP", is_web=True),
        Part("hopback.systems.event_bus.parts:push", "pushes events to the services"),
        Part("hopback.systems.event_bus.parts:create_sample", "a sample receiver", is_web=True),
    ),
    _start,
    _traffic,
    (
        Try(
            "an event reaches both services",
            'curl {url}/buses/wms/events -d \'{"type": "order.created", "payload": 1}\'',
        ),
        Try("the events of a service and its answers", "curl {url}/receiver/wms-orders/events"),
        Try(
            "let a service fail twice: only this service gets the event again, after 5 s",
            'curl -X PUT {url}/receiver/wms-orders/behaviour -d \'{"status": 503, "times": 2}\'',
        ),
    ),
)
