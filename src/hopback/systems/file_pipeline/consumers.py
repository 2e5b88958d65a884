"""The seven consumers of the pipeline. Each one consumes a single queue."""

from __future__ import annotations

from hopback import App
from hopback.systems.file_pipeline.audit import add_audit
from hopback.systems.file_pipeline.notification import add_notification
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.projection import add_projection
from hopback.systems.file_pipeline.stages import (
    add_extractor,
    add_thumbnail,
    add_upload,
    add_validator,
)

_CONSUMERS = {
    "upload": add_upload,
    "validator": add_validator,
    "thumbnail": add_thumbnail,
    "extractor": add_extractor,
    "projection": add_projection,
    "notification": add_notification,
    "audit": add_audit,
}


def create_consumers(runtime: PartRuntime, *names: str) -> App:
    """Return an application with the given consumers, or with all of them if none is given. It
    opens the runtime when it starts.
    """
    topology = runtime.settings.topology()
    app = App(" ".join(("file-pipeline", *names)), topology=topology, lifespan=runtime.open)
    for name in names or _CONSUMERS:
        _CONSUMERS[name](app, runtime)
    return app
