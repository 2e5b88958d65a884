"""The parts of the file pipeline as separate processes. All settings come from the environment.

`hopback run hopback.systems.file_pipeline.parts:upload`, and the same for the other consumers
`uvicorn --factory hopback.systems.file_pipeline.parts:create_gateway`
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hopback.systems.file_pipeline.consumers import create_consumers
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.settings import PipelineSettings

if TYPE_CHECKING:
    from starlette.applications import Starlette

_SETTINGS = PipelineSettings.read(os.environ)

upload = create_consumers(PartRuntime(_SETTINGS), "upload")
validator = create_consumers(PartRuntime(_SETTINGS), "validator")
thumbnail = create_consumers(PartRuntime(_SETTINGS), "thumbnail")
extractor = create_consumers(PartRuntime(_SETTINGS), "extractor")
projection = create_consumers(PartRuntime(_SETTINGS), "projection")
# These two publish nothing, so they need no relay of the outbox.
notification = create_consumers(PartRuntime(_SETTINGS, relays=False), "notification")
audit = create_consumers(PartRuntime(_SETTINGS, relays=False), "audit")


def create_gateway() -> Starlette:
    # Only the gateway loads the web framework and the operations on dead letters.
    from hopback.systems.file_pipeline.gateway import gateway
    from hopback.systems.settings import broker_named
    from hopback.systems.web_health import log_as_json

    log_as_json()
    return gateway(_SETTINGS, broker_named(os.environ))
