"""Upload: takes received files in, and sends known ones through the pipeline again."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from hopback.systems.file_pipeline.messages import (
    FileUploaded,
    ReprocessFileRequested,
    UploadRequested,
    payload_of,
)
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.file_pipeline.stages import alone, stage

if TYPE_CHECKING:
    from hopback import App
    from hopback.systems.file_pipeline.messages import PipelineMessage
    from hopback.systems.file_pipeline.part_runtime import PartRuntime

app: App


def add_upload(app: App, runtime: PartRuntime) -> None:
    """Add the handler of `q.upload.commands`."""

    async def work(command: PipelineMessage) -> list[FileUploaded]:
        wanted: UploadRequested | ReprocessFileRequested = payload_of(
            command, UploadRequested, ReprocessFileRequested
        )
        found = await asyncio.to_thread(runtime.storage.take_in, wanted.fileId)
        return [
            FileUploaded(
                wanted.fileId,
                wanted.run,
                wanted.name,
                wanted.declaredType,
                found.size,
                found.sha256,
            )
        ]

    stage(app, runtime, "q.upload.commands", work, producer="upload")


def __getattr__(name: str) -> App:
    """`app`, made of the environment when it is first asked for."""
    if name != "app":
        raise AttributeError(name)
    return alone("upload", add_upload, PipelineSettings.read(os.environ))
