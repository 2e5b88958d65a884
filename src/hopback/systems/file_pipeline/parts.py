"""The parts of the file pipeline, to be run as separate processes. They are configured with
environment variables.

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
# These two don't publish any messages, so they don't need to publish from the outbox.
notification = create_consumers(PartRuntime(_SETTINGS, relays=False), "notification")
audit = create_consumers(PartRuntime(_SETTINGS, relays=False), "audit")


def create_gateway() -> Starlette:
    # Only the gateway needs the web framework and the dead-letter operations.
    from hopback.systems.file_pipeline.gateway import gateway
    from hopback.systems.settings import broker_named
    from hopback.systems.web_health import log_as_json

    log_as_json()
    return gateway(_SETTINGS, broker_named(os.environ))
