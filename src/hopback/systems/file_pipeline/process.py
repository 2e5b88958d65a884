"""What has become of a file, as a value: each event adds a fact, and the facts give the status.

Events of different stages come in any order, and some come twice; the result is the same. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from hopback.systems.file_pipeline.contents import is_image
from hopback.systems.file_pipeline.messages import (
    FileRejected,
    FileUploaded,
    FileValidated,
    MetadataExtracted,
    ProcessingFailed,
    ThumbnailGenerated,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FACTS", "UNFINISHED", "Fact", "Process"]

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
"""The states in which something is still awaited."""


@dataclass(frozen=True, slots=True)
class Process:
    """One run of a file through the pipeline, and what is known of it so far."""

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
        """Rejected and completed are final; what failed or was late may still be completed."""
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
        """What is missing: a picture needs a thumbnail, everything its metadata."""
        if self.content_type is None:
            return ["validation"]
        thumbnail = is_image(self.content_type) and self.thumbnail is None
        return ["thumbnail"] * thumbnail + ["metadata"] * (self.metadata is None)

    def after(self, fact: Fact) -> Process:
        """The process once it knows this, too; what was completed after all has not failed."""
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
                # Of the bytes that were looked at: somebody may have repaired the file since it came in.
                seen = {name: metadata[name] for name in ("size", "sha256") if name in metadata}
                return replace(self, metadata=metadata, **seen)
            case ProcessingFailed(stage=stage, reason=reason):
                return replace(self, failure={"stage": stage, "reason": reason})
