"""The parts of FreeFlow, to be run as separate processes. They are configured with environment
variables.

`hopback run hopback.systems.freeflow.parts:domains`, with `--queue` to run only some of its queues

`uvicorn --factory hopback.systems.freeflow.parts:create_web`
"""

from __future__ import annotations

import os

from starlette.applications import Starlette

from hopback.systems.freeflow.api import create_api
from hopback.systems.freeflow.consumers import create_consumers
from hopback.systems.freeflow.settings import FreeFlowSettings
from hopback.systems.settings import broker_named
from hopback.systems.web_health import log_as_json

_SETTINGS = FreeFlowSettings.read(os.environ)

domains = create_consumers(_SETTINGS)


def create_web() -> Starlette:
    """Return the web application. The process logs JSON, like `hopback run`."""
    log_as_json()
    return create_api(_SETTINGS, broker_named(os.environ))
