"""The parts of the event bus as processes of their own; everything comes from the environment.

`hopback run hopback.systems.event_bus.parts:push`; `uvicorn hopback.systems.event_bus.parts:web`;
`uvicorn hopback.systems.event_bus.parts:sample --port 8001`.
"""

from __future__ import annotations

import os

from hopback.systems.event_bus.api import api
from hopback.systems.event_bus.push import push_app
from hopback.systems.event_bus.receiver import receiver
from hopback.systems.event_bus.settings import EventBusSettings
from hopback.systems.settings import broker_named

_SETTINGS = EventBusSettings.read(os.environ)

push = push_app(_SETTINGS)
web = api(_SETTINGS, broker_named(os.environ))
sample = receiver()
