"""The parts of the event bus, to be run as separate processes. They are configured with environment
variables.

`hopback run hopback.systems.event_bus.parts:push`

`uvicorn --factory hopback.systems.event_bus.parts:create_web`

`uvicorn --factory hopback.systems.event_bus.parts:create_sample --port 8001`

`hopback dlq redrive QUEUE --topology hopback.systems.event_bus.parts:services`
"""

from __future__ import annotations

import os

from starlette.applications import Starlette

from hopback import App
from hopback.systems.event_bus.api import create_api
from hopback.systems.event_bus.push import create_push
from hopback.systems.event_bus.receiver import create_receiver
from hopback.systems.event_bus.registry import ServiceRegistry
from hopback.systems.event_bus.settings import EventBusSettings
from hopback.systems.settings import broker_named
from hopback.systems.web_health import log_as_json

_SETTINGS = EventBusSettings.read(os.environ)

push = create_push(_SETTINGS)
services = App("event-bus", topology=ServiceRegistry(_SETTINGS, os.environ).topology())
"""The queues and failure plans of all registered services. Commands that need a topology load this.
"""


def create_web() -> Starlette:
    log_as_json()
    return create_api(_SETTINGS, broker_named(os.environ))


def create_sample() -> Starlette:
    log_as_json()
    return create_receiver()
