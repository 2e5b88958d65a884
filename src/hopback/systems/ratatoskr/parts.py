"""The parts of Ratatoskr, to be run as separate processes. They are configured with environment
variables.

`hopback run hopback.systems.ratatoskr.parts:events`

`uvicorn --factory hopback.systems.ratatoskr.parts:create_web`
"""

from __future__ import annotations

import os

from starlette.applications import Starlette

from hopback.systems.ratatoskr.api import create_api
from hopback.systems.ratatoskr.consumer import create_consumer
from hopback.systems.ratatoskr.settings import RatatoskrSettings
from hopback.systems.settings import broker_named
from hopback.systems.web_health import log_as_json

_SETTINGS = RatatoskrSettings.read(os.environ)

events = create_consumer(_SETTINGS)


def create_web() -> Starlette:
    """Return the web application. The process logs JSON, like `hopback run`."""
    log_as_json()
    return create_api(_SETTINGS, broker_named(os.environ))
