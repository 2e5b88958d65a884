"""Validator: holds a file's real content against its declared type, and rejects what does not fit."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from hopback.systems.file_pipeline.contents import Rejection, judge
from hopback.systems.file_pipeline.folder import fingerprint
from hopback.systems.file_pipeline.messages import (
    FileRejected,
    FileUploaded,
    FileValidated,
    payload_of,
)
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.file_pipeline.stages import alone, stage

if TYPE_CHECKING:
    from pathlib import Path

    from hopback import App
    from hopback.systems.file_pipeline.messages import PipelineMessage
    from hopback.systems.file_pipeline.part_runtime import PartRuntime

__all__ = ["add_validator", "app"]

app: App


def add_validator(app: App, runtime: PartRuntime) -> None:
    """Add the handler of `q.validator`."""

    async def work(event: PipelineMessage) -> list[FileValidated | FileRejected]:
        file: FileUploaded = payload_of(event, FileUploaded)
        path = runtime.folder.file(file.fileId)
        verdict = await asyncio.to_thread(_verdict, path, file, runtime.settings.max_bytes)
        if isinstance(verdict, Rejection):
            return [FileRejected(file.fileId, file.run, file.name, verdict.code, verdict.reason)]
        return [FileValidated(file.fileId, file.run, file.name, verdict, file.size, file.sha256)]

    stage(app, runtime, "q.validator", work, producer="validator")


def _verdict(path: Path, file: FileUploaded, max_bytes: int) -> Rejection | str:
    """Judge what lies on the disk now; it must still be what was taken in."""
    if path.stat().st_size > max_bytes:
        return Rejection("TOO_LARGE", f"Expected at most {max_bytes} bytes, got {file.size}.")
    if fingerprint(path).sha256 != file.sha256:
        return Rejection("CONTENT_CHANGED", "The file is not the one that was uploaded.")
    return judge(file.name, file.declaredType, path.read_bytes(), max_bytes)


def __getattr__(name: str) -> App:
    """`app`, made of the environment when it is first asked for."""
    if name != "app":
        raise AttributeError(name)
    return alone("validator", add_validator, PipelineSettings.read(os.environ))
