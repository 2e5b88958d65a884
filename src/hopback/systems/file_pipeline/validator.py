"""The validator: compares the content of a file with its declared type and rejects mismatches."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

from hopback import App
from hopback.systems.file_pipeline.contents import Rejection, judge
from hopback.systems.file_pipeline.messages import (
    FileRejected,
    FileUploaded,
    FileValidated,
    PipelineMessage,
    payload_of,
)
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.stages import stage
from hopback.systems.file_pipeline.storage import FileStorage
from hopback.systems.settings import SettingsError

Inspect: TypeAlias = "Callable[[FileUploaded, bytes], Rejection | None]"
"""An additional check. It is called in a thread with every file that passed the built-in checks and returns a
rejection or None. If it raises, the message is retried."""


def add_validator(app: App, runtime: PartRuntime, inspect: Inspect | None = None) -> None:
    """Add the handler of `q.validator`. `inspect` is called last."""
    inspect = inspect or named_inspection(runtime.settings.inspection)

    async def work(event: PipelineMessage) -> list[FileValidated | FileRejected]:
        file: FileUploaded = payload_of(event, FileUploaded)
        verdict = await asyncio.to_thread(
            _verdict, runtime.storage, file, runtime.settings.max_bytes
        )
        if not isinstance(verdict, Rejection) and inspect is not None:
            content = await asyncio.to_thread(runtime.storage.read, file.fileId)
            verdict = await asyncio.to_thread(inspect, file, content) or verdict
        if isinstance(verdict, Rejection):
            return [FileRejected(file.fileId, file.run, file.name, verdict.code, verdict.reason)]
        return [FileValidated(file.fileId, file.run, file.name, verdict, file.size, file.sha256)]

    stage(app, runtime, "q.validator", work, producer="validator")


def named_inspection(target: str) -> Inspect | None:
    """Import the check `module:function`. Return None for an empty name."""
    if not target:
        return None
    module, _, name = target.partition(":")
    try:
        found: Inspect = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"FILE_INSPECTION: expected module:function, got {target!r}: {error}"
        ) from error
    return found


def _verdict(storage: FileStorage, file: FileUploaded, max_bytes: int) -> Rejection | str:
    """Validate the stored file. It must still have the hash of the upload."""
    if storage.size(file.fileId) > max_bytes:
        return Rejection("TOO_LARGE", f"Expected at most {max_bytes} bytes, got {file.size}.")
    content = storage.read(file.fileId)
    if hashlib.sha256(content).hexdigest() != file.sha256:
        return Rejection("CONTENT_CHANGED", "The file is not the one that was uploaded.")
    return judge(file.name, file.declaredType, content, max_bytes)
