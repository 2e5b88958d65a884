"""The parts of the raffle as processes. Their settings are environment variables.

`hopback run hopback.systems.raffle.parts:consumer`, the same with `dead_letters`, and
`uvicorn --factory hopback.systems.raffle.parts:create_web`.
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
    """Return the web application of a process. Its log is JSON, as that of `hopback run`."""
    log_as_json()
    return create_api(_SETTINGS, broker_named(os.environ))
