"""The upload part: stores received files and processes stored files again."""

from __future__ import annotations

import asyncio

from hopback import App
from hopback.systems.file_pipeline.messages import (
    FileUploaded,
    PipelineMessage,
    ReprocessFileRequested,
    UploadRequested,
    payload_of,
)
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.stages import stage


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
