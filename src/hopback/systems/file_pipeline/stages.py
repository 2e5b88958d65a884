"""The stages that process a file: upload, validator, thumbnail and extractor.

A stage does its work in a thread and then publishes an event with the result. The work can be
repeated safely, because files are stored under the id of the file. The event is sent in the same
transaction that marks the message as processed, so that a redelivery does not cause a second event.
If the last attempt fails, the stage publishes an event before the message is parked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

from hopback import App, Context, Rule, Verdict
from hopback.systems.file_pipeline.contents import Rejection, is_image, judge, metadata_of
from hopback.systems.file_pipeline.messages import (
    FileRejected,
    FileUploaded,
    FileValidated,
    Malformed,
    MetadataExtracted,
    PipelineMessage,
    PipelinePayload,
    ProcessingFailed,
    ReprocessFileRequested,
    ThumbnailGenerated,
    UploadRequested,
    message_of,
    payload_of,
)
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.pictures import HopelessFile, thumbnail_of
from hopback.systems.settings import SettingsError

Inspect: TypeAlias = Callable[[FileUploaded, bytes], Rejection | None]
"""An additional check. It is called in a thread for every file that has passed the built-in checks.
It returns a rejection or None. If it raises an exception, the message is retried.
"""

_LOG = logging.getLogger("hopback.systems.file_pipeline")
_HOPELESS = (Rule(Malformed, Verdict.PARK), Rule(HopelessFile, Verdict.PARK))
_REDRIVES = "hopback-redrives"
"""The header that contains how often a message has been re-driven."""


def _stage(
    app: App,
    runtime: PartRuntime,
    queue: str,
    work: Callable[[Any], PipelinePayload | None],
    *wanted: type[PipelinePayload],
    concurrency: int = 4,
) -> None:
    """Add a handler that calls `work` with the payload of a message and sends the result as an
    event. `wanted` lists the accepted types of messages.
    """
    producer = queue.split(".")[1]  # such as `validator`

    @app.handler(queue, concurrency=concurrency, rules=_HOPELESS)
    async def handle(message: PipelineMessage, context: Context) -> None:
        payload = payload_of(message, *wanted)
        try:
            result = await asyncio.to_thread(work, payload)
        except Exception as error:
            if context.is_last_attempt or isinstance(error, HopelessFile):
                await _give_up(runtime, payload, message, context, producer, error)
            raise
        async with runtime.database.transaction() as tx:
            if await tx.first_time(queue, message.messageId) and result is not None:
                now = runtime.clock.now()
                event = message_of(result, producer=producer, now=now, cause=message)
                await tx.send(event, key=result.fileId)


async def _give_up(
    runtime: PartRuntime,
    payload: PipelinePayload,
    message: PipelineMessage,
    context: Context,
    producer: str,
    error: Exception,
) -> None:
    """Send an event that the file has failed. There is one such event for each re-drive.

    The message is parked even if the event cannot be sent.
    """
    # Users can see the reason, so it must not contain paths of this machine.
    text = getattr(error, "strerror", None) or str(error)
    reason = text if isinstance(error, HopelessFile) else f"{type(error).__name__}: {text}"
    failed = ProcessingFailed(payload.fileId, payload.run, producer, reason[:500])
    event = message_of(
        failed,
        producer=producer,
        now=runtime.clock.now(),
        cause=message,
        occasion=str(context.headers.get(_REDRIVES, "")),
    )
    try:
        async with runtime.database.transaction() as tx:
            await tx.send(event, key=payload.fileId)
    except Exception:
        _LOG.exception("the failure of file %s was not announced", payload.fileId)


def add_upload(app: App, runtime: PartRuntime) -> None:
    """Add the handler of `q.upload.commands`, which stores received files. It also starts another
    run of files that are already stored.
    """

    def store(wanted: UploadRequested | ReprocessFileRequested) -> FileUploaded:
        stored = runtime.storage.take_in(wanted.fileId)
        return FileUploaded(wanted.fileId, wanted.run, wanted.name, wanted.declaredType, *stored)

    _stage(app, runtime, "q.upload.commands", store, UploadRequested, ReprocessFileRequested)


def add_validator(app: App, runtime: PartRuntime) -> None:
    """Add the handler of `q.validator`, which compares the content of files with the declared type."""
    inspect = find_inspection(runtime.settings.inspection)

    def validate(file: FileUploaded) -> FileValidated | FileRejected:
        content = runtime.storage.read(file.fileId)
        most = runtime.settings.max_bytes
        found = judge(file.name, file.declaredType, content, most)
        if found is None and inspect is not None:
            found = inspect(file, content)
        if found is not None:
            return FileRejected(file.fileId, file.run, file.name, found.code, found.reason)
        kind = file.declaredType
        return FileValidated(file.fileId, file.run, file.name, kind, file.size, file.sha256)

    _stage(app, runtime, "q.validator", validate, FileUploaded)


def find_inspection(target: str) -> Inspect | None:
    """Import an additional check by its name `module:function`. Returns None if the name is empty."""
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


def add_thumbnail(app: App, runtime: PartRuntime) -> None:
    """Add the handler of `q.thumbnail`, which creates thumbnails of pictures."""

    def draw(file: FileValidated) -> ThumbnailGenerated | None:
        if not is_image(file.contentType):
            return None
        content = runtime.storage.read(file.fileId)
        drawn, width, height = thumbnail_of(content, runtime.settings.max_pixels)
        runtime.storage.keep_thumbnail(file.fileId, drawn)
        return ThumbnailGenerated(file.fileId, file.run, width, height, len(drawn))

    _stage(app, runtime, "q.thumbnail", draw, FileValidated, concurrency=2)


def add_extractor(app: App, runtime: PartRuntime) -> None:
    """Add the handler of `q.extractor`, which extracts the metadata of files."""

    def extract(file: FileValidated) -> MetadataExtracted:
        content = runtime.storage.read(file.fileId)
        found = metadata_of(content, file.contentType, runtime.settings.max_pixels)
        return MetadataExtracted(file.fileId, file.run, found)

    _stage(app, runtime, "q.extractor", extract, FileValidated)
