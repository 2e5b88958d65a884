"""Validator: holds a file's real content against its declared type, and rejects what does not fit."""

from __future__ import annotations

import asyncio
import hashlib
import os
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from hopback.systems.file_pipeline.contents import Rejection, judge
from hopback.systems.file_pipeline.messages import (
    FileRejected,
    FileUploaded,
    FileValidated,
    payload_of,
)
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.file_pipeline.stages import alone, stage
from hopback.systems.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback import App
    from hopback.systems.file_pipeline.messages import PipelineMessage
    from hopback.systems.file_pipeline.part_runtime import PartRuntime
    from hopback.systems.file_pipeline.storage import FileStorage

app: App


Inspect: TypeAlias = "Callable[[FileUploaded, bytes], Rejection | None]"
"""A check of your own, called in a thread with every file that passed ours: why it is rejected, or None.
What it raises is retried, as a scanner that does not answer should be."""


def add_validator(app: App, runtime: PartRuntime, inspect: Inspect | None = None) -> None:
    """Add the handler of `q.validator`; `inspect` is asked last."""
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
    """The check that `module:function` names; None where nothing is named."""
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
    """Judge what is stored now; it must still be what was taken in."""
    if storage.size(file.fileId) > max_bytes:
        return Rejection("TOO_LARGE", f"Expected at most {max_bytes} bytes, got {file.size}.")
    content = storage.read(file.fileId)
    if hashlib.sha256(content).hexdigest() != file.sha256:
        return Rejection("CONTENT_CHANGED", "The file is not the one that was uploaded.")
    return judge(file.name, file.declaredType, content, max_bytes)


def __getattr__(name: str) -> App:
    """`app`, made of the environment when it is first asked for."""
    if name != "app":
        raise AttributeError(name)
    return alone("validator", add_validator, PipelineSettings.read(os.environ))
