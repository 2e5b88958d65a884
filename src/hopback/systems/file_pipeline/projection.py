"""The projection: the read model, and the process manager that detects completion and timeouts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

from sqlalchemy import select, update

from hopback import App, Context, Park
from hopback.store import Transaction
from hopback.systems.file_pipeline.contents import is_image
from hopback.systems.file_pipeline.messages import (
    FileRejected,
    FileUploaded,
    FileValidated,
    Malformed,
    MetadataExtracted,
    PipelineMessage,
    ProcessingCompleted,
    ProcessingFailed,
    ProcessingTimedOut,
    ThumbnailGenerated,
    payload_of,
)
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.tables import files, insert_once

FACTS = (
    FileUploaded,
    FileValidated,
    FileRejected,
    ThumbnailGenerated,
    MetadataExtracted,
    ProcessingFailed,
)
"""The events that add a fact."""
Fact: TypeAlias = (
    FileUploaded
    | FileValidated
    | FileRejected
    | ThumbnailGenerated
    | MetadataExtracted
    | ProcessingFailed
)
UNFINISHED = ("uploaded", "processing")
"""The states of a file with missing results."""


@dataclass(frozen=True, slots=True)
class Process:
    """One run of a file through the pipeline, with the facts known so far."""

    file_id: str
    run: int
    correlation_id: str
    started_at: float
    name: str | None = None
    declared_type: str | None = None
    content_type: str | None = None
    size: int | None = None
    sha256: str | None = None
    thumbnail: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    rejection: Mapping[str, Any] | None = None
    failure: Mapping[str, Any] | None = None
    timed_out: bool = False

    @property
    def status(self) -> str:
        """The status. Rejected and completed are final. A failed or late file may still be completed."""
        if self.rejection is not None:
            return "rejected"
        if not self.waiting_for:
            return "completed"
        if self.failure is not None:
            return "failed"
        if self.timed_out:
            return "timed-out"
        return "uploaded" if self.content_type is None else "processing"

    @property
    def waiting_for(self) -> list[str]:
        """The missing results: metadata for every file, a thumbnail for pictures."""
        if self.content_type is None:
            return ["validation"]
        thumbnail = is_image(self.content_type) and self.thumbnail is None
        return ["thumbnail"] * thumbnail + ["metadata"] * (self.metadata is None)

    def after(self, fact: Fact) -> Process:
        """Return the process with another fact. Completion removes an earlier failure."""
        known = self._with(fact)
        return known if known.waiting_for else replace(known, failure=None)

    def _with(self, fact: Fact) -> Process:
        match fact:
            case FileUploaded(name=name, declaredType=declared, size=size, sha256=sha256):
                return replace(self, name=name, declared_type=declared, size=size, sha256=sha256)
            case FileValidated(name=name, contentType=kind, size=size, sha256=sha256):
                return replace(self, name=name, content_type=kind, size=size, sha256=sha256)
            case FileRejected(name=name, code=code, reason=reason):
                return replace(self, name=name, rejection={"code": code, "reason": reason})
            case ThumbnailGenerated(width=width, height=height, size=size):
                made = {"width": width, "height": height, "size": size}
                return replace(self, thumbnail=made)
            case MetadataExtracted(metadata=metadata):
                # The hash of the validated bytes: the file may have been repaired after the upload.
                seen = {name: metadata[name] for name in ("size", "sha256") if name in metadata}
                return replace(self, metadata=metadata, **seen)
            case ProcessingFailed(stage=stage, reason=reason):
                return replace(self, failure={"stage": stage, "reason": reason})


_LOG = logging.getLogger("hopback.systems.file_pipeline")
_QUEUE = "q.projection"
_PRODUCER = "projection"
_MOST_AT_ONCE = 100
"""Maximum files of one sweep. Each is a transaction. The next sweep handles the rest."""
_COLUMNS = [field.name for field in fields(Process)]
_KNOWN = frozenset(fact.message_type() for fact in FACTS)


class Projection:
    """Keeps the read model and announces completion and timeouts."""

    def __init__(self, runtime: PartRuntime) -> None:
        self._runtime = runtime

    async def apply(self, event: PipelineMessage) -> None:
        """Add a fact to its process. A fact of an earlier run is ignored."""
        fact: Fact = payload_of(event, *FACTS)
        async with self._runtime.database.transaction() as tx:
            if not await tx.first_time(_QUEUE, event.messageId):
                return
            # The locked process of this file, or a new one for a new file or run.
            now = self._runtime.clock.now()
            fresh = Process(fact.fileId, fact.run, event.correlationId, now)
            await insert_once(tx.connection, files, {**_row(fresh), "updated_at": now})
            known = await _locked(tx, fact.fileId)
            before = fresh if known is None or known.run < fact.run else known
            if before.run > fact.run:
                return
            after = before.after(fact)
            values = {**_row(after), "updated_at": self._runtime.clock.now()}
            await tx.execute(update(files).where(files.c.file_id == after.file_id).values(**values))
            if after.status == "completed" != before.status:
                done = ProcessingCompleted(after.file_id, after.run, after.name or "")
                await self._runtime.announce(tx, done, producer=_PRODUCER, cause=event)

    async def time_out(self) -> int:
        """Mark late processes as timed out and return their number."""
        limit = self._runtime.clock.now() - self._runtime.settings.timeout_s
        late = (
            select(files.c.file_id)
            .where(files.c.status.in_(UNFINISHED), files.c.started_at <= limit)
            .order_by(files.c.started_at)
            .limit(_MOST_AT_ONCE)
        )
        async with self._runtime.database.engine.connect() as connection:
            found = list((await connection.execute(late)).scalars())
        for file_id in found:
            async with self._runtime.database.transaction() as tx:
                process = await _locked(tx, file_id)
                if process is None or process.started_at > limit:
                    continue  # another process was faster
                if process.status not in UNFINISHED:
                    continue  # completed in the meantime
                now = self._runtime.clock.now()
                changed = {"timed_out": 1, "status": "timed-out", "updated_at": now}
                await tx.execute(update(files).where(files.c.file_id == file_id).values(**changed))
                told = ProcessingTimedOut(
                    file_id, process.run, process.name or "", process.waiting_for
                )
                await self._runtime.announce(
                    tx, told, producer=_PRODUCER, correlation_id=process.correlation_id
                )
        return len(found)

    async def keep_time(self) -> None:
        """Check for late processes regularly until cancelled."""
        while True:
            await asyncio.sleep(self._runtime.settings.sweep_s)
            try:
                await self.time_out()
            except Exception:
                _LOG.exception("the check for late files failed and is repeated")


async def _locked(tx: Transaction, file_id: str) -> Process | None:
    query = select(files).where(files.c.file_id == file_id).with_for_update()
    row = (await tx.execute(query)).mappings().first()
    if row is None:
        return None
    known = {name: row[name] for name in _COLUMNS}
    return Process(**{**known, "timed_out": bool(row["timed_out"])})


def _row(process: Process) -> dict[str, Any]:
    values = {name: getattr(process, name) for name in _COLUMNS}
    return {**values, "timed_out": int(process.timed_out), "status": process.status}


def add_projection(app: App, runtime: PartRuntime) -> None:
    """Add the handler of `q.projection`."""
    projection = Projection(runtime)
    runtime.attend(projection.keep_time)

    @app.handler(_QUEUE, concurrency=4)
    async def project(event: PipelineMessage, context: Context) -> Park | None:
        if event.type not in _KNOWN:
            return None  # the queue gets every event, and most do not change the status of a file
        try:
            await projection.apply(event)
        except Malformed as error:
            return Park(str(error))
        return None
