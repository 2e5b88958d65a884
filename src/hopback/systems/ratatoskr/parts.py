"""The parts of Ratatoskr as processes of their own; everything comes from the environment.

`hopback run hopback.systems.ratatoskr.parts:events`; `uvicorn hopback.systems.ratatoskr.parts:web`.
"""

from __future__ import annotations

import os

from hopback.systems.ratatoskr.api import api
from hopback.systems.ratatoskr.consumer import consumer
from hopback.systems.ratatoskr.settings import RatatoskrSettings
from hopback.systems.settings import broker_named

_SETTINGS = RatatoskrSettings.read(os.environ)

events = consumer(_SETTINGS)
web = api(_SETTINGS, broker_named(os.environ))
