"""The parts of the file pipeline as separate processes. All settings come from the environment.

`hopback run hopback.systems.file_pipeline.parts:upload`, and the same for the other consumers
`uvicorn --factory hopback.systems.file_pipeline.parts:create_gateway`
"""

from __future__ import annotations

import os
from collections.abc import Callable

from starlette.applications import Starlette

from hopback import App
from hopback.systems.file_pipeline.audit import add_audit
from hopback.systems.file_pipeline.extractor import add_extractor
from hopback.systems.file_pipeline.notification import add_notification
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.projection import add_projection
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.file_pipeline.stages import assemble
from hopback.systems.file_pipeline.thumbnail import add_thumbnail
from hopback.systems.file_pipeline.upload import add_upload
from hopback.systems.file_pipeline.validator import add_validator

_SETTINGS = PipelineSettings.read(os.environ)


def _part(name: str, add: Callable[[App, PartRuntime], None]) -> App:
    return assemble(f"file-pipeline {name}", PartRuntime(_SETTINGS), add)


upload = _part("upload", add_upload)
validator = _part("validator", add_validator)
thumbnail = _part("thumbnail", add_thumbnail)
extractor = _part("extractor", add_extractor)
projection = _part("projection", add_projection)
notification = _part("notification", add_notification)
audit = _part("audit", add_audit)


def create_gateway() -> Starlette:
    # Only the gateway loads the web framework and the operations on dead letters.
    from hopback.systems.file_pipeline.gateway import gateway
    from hopback.systems.settings import broker_named
    from hopback.systems.web_health import log_as_json

    log_as_json()
    return gateway(_SETTINGS, broker_named(os.environ))
