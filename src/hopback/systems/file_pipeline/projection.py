"""Maintains the read model, and detects when the processing of a file is complete or takes too
long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias, get_args

from sqlalchemy import bindparam, select, update

from hopback import App, Rule, Verdict
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
    message_of,
    payload_of,
)
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.tables import files

Fact: TypeAlias = (
    FileUploaded
    | FileValidated
    | FileRejected
    | ThumbnailGenerated
    | MetadataExtracted
    | ProcessingFailed
)
"""The events that change the status of a file."""
UNFINISHED = ("uploaded", "processing")
"""The states in which results are missing."""


@dataclass(frozen=True, slots=True)
class Process:
    """One run of a file through the pipeline, with all facts that are known so far."""

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
        """The status. `rejected` and `completed` are final. In all other states the file may still
        be completed.
        """
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
        """The missing results. All files need metadata, and pictures also need a thumbnail."""
        if self.content_type is None:
            return ["validation"]
        thumbnail = is_image(self.content_type) and self.thumbnail is None
        return ["thumbnail"] * thumbnail + ["metadata"] * (self.metadata is None)

    def after(self, fact: Fact) -> Process:
        """Add a fact. If the process is complete now, an earlier failure is removed."""
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
                # Use the hash of the validated content. The file may have been repaired after its
                # upload.
                seen = {name: metadata[name] for name in ("size", "sha256") if name in metadata}
                return replace(self, metadata=metadata, **seen)
            case ProcessingFailed(stage=stage, reason=reason):
                return replace(self, failure={"stage": stage, "reason": reason})


_LOG = logging.getLogger("hopback.systems.file_pipeline")
_QUEUE = "q.projection"
_PRODUCER = "projection"
_MOST_AT_ONCE = 100
"""The maximum number of files that a sweep marks in its transaction. The next sweep marks the rest."""
_FACTS: tuple[type[Fact], ...] = get_args(Fact)
_KNOWN = frozenset(fact.message_type() for fact in _FACTS)

# The statements are built once, because building them takes longer than running them.
_COLUMNS = [field.name for field in fields(Process)]
_SELECT = select(*(files.c[name] for name in _COLUMNS))
_LOCK = _SELECT.where(files.c.file_id == bindparam("locked_id")).with_for_update()
_LOCK_LATE = (
    _SELECT.where(files.c.status.in_(UNFINISHED), files.c.started_at <= bindparam("limit"))
    .order_by(files.c.started_at)
    .limit(_MOST_AT_ONCE)
    .with_for_update(skip_locked=True)
)
_SAVE = update(files).where(files.c.file_id == bindparam("saved_id"))


def add_projection(app: App, runtime: PartRuntime) -> None:
    """Add the handler of `q.projection`, and mark late files in the background."""

    @app.handler(_QUEUE, concurrency=4, rules=[Rule(Malformed, Verdict.PARK)])
    async def project(event: PipelineMessage) -> None:
        # The queue receives all events, but only some of them change the status of a file.
        if event.type in _KNOWN:
            fact: Fact = payload_of(event, *_FACTS)
            async with runtime.database.transaction() as tx:
                if await tx.first_time(_QUEUE, event.messageId):
                    await _apply(tx, fact, event, runtime.clock.now())

    async def time_out_regularly() -> None:
        while True:
            await asyncio.sleep(runtime.settings.sweep_s)
            try:
                async with runtime.database.transaction() as tx:
                    await _time_out(tx, runtime.settings.timeout_s, runtime.clock.now())
            except Exception:
                _LOG.exception("the check for late files failed and is repeated")

    runtime.background.append(time_out_regularly)


async def _apply(tx: Transaction, fact: Fact, event: PipelineMessage, now: float) -> None:
    """Add a fact to the process of its file. Facts of earlier runs are ignored."""
    fresh = Process(fact.fileId, fact.run, event.correlationId, now)
    known = await _lock(tx, fact.fileId)
    if known is None:
        # If another consumer is inserting the same row, this waits until it has committed.
        await tx.execute(tx.insert(files).on_conflict_do_nothing(), _row(fresh, now))
        known = await _lock(tx, fact.fileId) or fresh
    if known.run > fact.run:
        return
    before = fresh if known.run < fact.run else known
    after = before.after(fact)
    await _save(tx, after, now)
    if after.status == "completed" != before.status:
        done = ProcessingCompleted(after.file_id, after.run, after.name or "")
        message = message_of(done, producer=_PRODUCER, now=now, cause=event)
        await tx.send(message, key=done.fileId)


async def _time_out(tx: Transaction, timeout_s: float, now: float) -> None:
    """Mark files whose processing takes too long."""
    rows = (await tx.execute(_LOCK_LATE, {"limit": now - timeout_s})).mappings().all()
    for process in (Process(**row) for row in rows):
        await _save(tx, replace(process, timed_out=True), now)
        late = ProcessingTimedOut(
            process.file_id, process.run, process.name or "", process.waiting_for
        )
        about = process.correlation_id
        message = message_of(late, producer=_PRODUCER, now=now, correlation_id=about)
        await tx.send(message, key=late.fileId)


async def _lock(tx: Transaction, file_id: str) -> Process | None:
    row = (await tx.execute(_LOCK, {"locked_id": file_id})).mappings().first()
    return None if row is None else Process(**row)


async def _save(tx: Transaction, process: Process, now: float) -> None:
    await tx.execute(_SAVE, _row(process, now) | {"saved_id": process.file_id})


def _row(process: Process, now: float) -> dict[str, Any]:
    values = {name: getattr(process, name) for name in _COLUMNS}
    return {**values, "status": process.status, "updated_at": now}
