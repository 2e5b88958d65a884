"""The parts of FreeFlow as processes of their own; everything comes from the environment.

`hopback run hopback.systems.freeflow.parts:domains`, all queues or with `--queue` some of them;
`uvicorn hopback.systems.freeflow.parts:web`.
"""

from __future__ import annotations

import os

from hopback.systems.freeflow.api import api
from hopback.systems.freeflow.consumers import consumers
from hopback.systems.freeflow.settings import FreeFlowSettings
from hopback.systems.settings import broker_named

_SETTINGS = FreeFlowSettings.read(os.environ)

domains = consumers(_SETTINGS)
web = api(_SETTINGS, broker_named(os.environ))
