"""Thumbnail: a small picture of every picture."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from hopback.systems.file_pipeline.contents import is_image
from hopback.systems.file_pipeline.messages import (
    FileValidated,
    ThumbnailGenerated,
    payload_of,
)
from hopback.systems.file_pipeline.pictures import thumbnail_of
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.file_pipeline.stages import alone, stage

if TYPE_CHECKING:
    from hopback import App
    from hopback.systems.file_pipeline.folder import Folder
    from hopback.systems.file_pipeline.messages import PipelineMessage
    from hopback.systems.file_pipeline.part_runtime import PartRuntime

__all__ = ["add_thumbnail", "app"]

app: App


def add_thumbnail(app: App, runtime: PartRuntime) -> None:
    """Add the handler of `q.thumbnail`."""

    async def work(event: PipelineMessage) -> list[ThumbnailGenerated]:
        file: FileValidated = payload_of(event, FileValidated)
        if not is_image(file.contentType):
            return []
        drawn = await asyncio.to_thread(
            _draw, runtime.folder, file.fileId, runtime.settings.max_pixels
        )
        return [ThumbnailGenerated(file.fileId, file.run, *drawn)]

    stage(app, runtime, "q.thumbnail", work, producer="thumbnail", concurrency=2)


def _draw(folder: Folder, file_id: str, max_pixels: int) -> tuple[int, int, int]:
    """Write the small picture; whoever looks meanwhile sees the old one or the new one."""
    content, width, height = thumbnail_of(folder.file(file_id), max_pixels)
    target = folder.thumbnail(file_id)
    unfinished = target.with_suffix(".part")
    unfinished.write_bytes(content)
    os.replace(unfinished, target)
    return width, height, len(content)


def __getattr__(name: str) -> App:
    """`app`, made of the environment when it is first asked for."""
    if name != "app":
        raise AttributeError(name)
    return alone("thumbnail", add_thumbnail, PipelineSettings.read(os.environ))
