"""The parts of the raffle, to be run as separate processes. They are configured with environment
variables.

`hopback run hopback.systems.raffle.parts:consumer`, and the same for `dead_letters`

`uvicorn --factory hopback.systems.raffle.parts:create_web`
"""

from __future__ import annotations

import os

from starlette.applications import Starlette

from hopback.systems.raffle.api import create_api
from hopback.systems.raffle.consumer import create_consumer, create_dead_letter_consumer
from hopback.systems.raffle.settings import RaffleSettings
from hopback.systems.settings import broker_named
from hopback.systems.web_health import log_as_json

_SETTINGS = RaffleSettings.read(os.environ)

consumer = create_consumer(_SETTINGS)
dead_letters = create_dead_letter_consumer(_SETTINGS)


def create_web() -> Starlette:
    """Return the web application. The process logs JSON, like `hopback run`."""
    log_as_json()
    return create_api(_SETTINGS, broker_named(os.environ))
