"""The thumbnail part: draws a small picture of every picture."""

from __future__ import annotations

import asyncio

from hopback import App
from hopback.systems.file_pipeline.contents import is_image
from hopback.systems.file_pipeline.messages import (
    FileValidated,
    PipelineMessage,
    ThumbnailGenerated,
    payload_of,
)
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.pictures import thumbnail_of
from hopback.systems.file_pipeline.stages import stage
from hopback.systems.file_pipeline.storage import FileStorage


def add_thumbnail(app: App, runtime: PartRuntime) -> None:
    """Add the handler of `q.thumbnail`."""

    async def work(event: PipelineMessage) -> list[ThumbnailGenerated]:
        file: FileValidated = payload_of(event, FileValidated)
        if not is_image(file.contentType):
            return []
        drawn = await asyncio.to_thread(
            _draw, runtime.storage, file.fileId, runtime.settings.max_pixels
        )
        return [ThumbnailGenerated(file.fileId, file.run, *drawn)]

    stage(app, runtime, "q.thumbnail", work, producer="thumbnail", concurrency=2)


def _draw(storage: FileStorage, file_id: str, max_pixels: int) -> tuple[int, int, int]:
    """Draw and store the thumbnail. Return width, height and size."""
    content, width, height = thumbnail_of(storage.read(file_id), max_pixels)
    storage.keep_thumbnail(file_id, content)
    return width, height, len(content)
