"""All consumers of the file pipeline in one application, for one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.systems.file_pipeline.audit import add_audit
from hopback.systems.file_pipeline.extractor import add_extractor
from hopback.systems.file_pipeline.notification import add_notification
from hopback.systems.file_pipeline.projection import add_projection
from hopback.systems.file_pipeline.stages import assemble
from hopback.systems.file_pipeline.thumbnail import add_thumbnail
from hopback.systems.file_pipeline.upload import add_upload
from hopback.systems.file_pipeline.validator import add_validator

if TYPE_CHECKING:
    from hopback import App
    from hopback.systems.file_pipeline.part_runtime import PartRuntime

__all__ = ["whole_app"]

_PARTS = (
    add_upload,
    add_validator,
    add_thumbnail,
    add_extractor,
    add_projection,
    add_notification,
    add_audit,
)


def whole_app(runtime: PartRuntime) -> App:
    """The seven consumers together; the runtime opens and closes with the application."""
    return assemble("file-pipeline", runtime, *_PARTS)
