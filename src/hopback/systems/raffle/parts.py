"""The parts of the raffle as processes of their own; everything comes from the environment.

`hopback run hopback.systems.raffle.parts:consumer`, and the same with `dead_letters`;
`uvicorn hopback.systems.raffle.parts:web`.
"""

from __future__ import annotations

import os

from hopback.systems.raffle.api import api
from hopback.systems.raffle.consumer import consumer as _consumer
from hopback.systems.raffle.consumer import dead_letter_consumer
from hopback.systems.raffle.settings import RaffleSettings
from hopback.systems.settings import broker_named

_SETTINGS = RaffleSettings.read(os.environ)

consumer = _consumer(_SETTINGS)
dead_letters = dead_letter_consumer(_SETTINGS)
web = api(_SETTINGS, broker_named(os.environ))
