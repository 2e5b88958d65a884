"""The messages of the file pipeline: the envelope that every one has, and what each of them carries.

The names of the fields are those on the wire.
"""
# ruff: noqa: N815

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_type_hints

from hopback import compose

if TYPE_CHECKING:
    from hopback import Message

COMMANDS = "domain.commands"
EVENTS = "domain.events"
_VERSION = 1
"""Of the envelope; counted up when a field changes its meaning."""
_IDS = uuid.UUID("5f0c2f0e-8f57-5a3b-9d0e-2f1a6c1d7b10")
"""The namespace in which a message's id follows from what caused it."""


class Malformed(ValueError):
    """A message is not what its type says: where, what was expected, what was found."""


@dataclass(frozen=True, slots=True)
class PipelineMessage:
    """What every message of the pipeline looks like."""

    messageId: str
    kind: Literal["event", "command"]
    type: str
    occurredAt: datetime
    correlationId: str
    producer: str
    version: int
    payload: dict[str, Any]
    causationId: str | None = None


class PipelinePayload(Protocol):
    """What a message carries; it knows its own type and routing key."""

    TYPE: ClassVar[str]
    KEY: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def fileId(self) -> str:  # noqa: N802
        """The file that it is about."""

    @property
    def run(self) -> int:
        """Which run of the file through the pipeline."""


@dataclass(frozen=True, slots=True)
class UploadRequested:
    """A file has been received and is to be taken in."""

    TYPE: ClassVar[str] = "UploadRequested.v1"
    KEY: ClassVar[str] = "commands.upload.requested.v1"
    fileId: str
    run: int
    name: str
    declaredType: str


@dataclass(frozen=True, slots=True)
class ReprocessFileRequested:
    """A file that is there already is to go through the pipeline once more."""

    TYPE: ClassVar[str] = "ReprocessFileRequested.v1"
    KEY: ClassVar[str] = "commands.file.reprocess.v1"
    fileId: str
    run: int
    name: str
    declaredType: str


@dataclass(frozen=True, slots=True)
class FileUploaded:
    """A file is in its place."""

    TYPE: ClassVar[str] = "FileUploaded.v1"
    KEY: ClassVar[str] = "files.uploaded.v1"
    fileId: str
    run: int
    name: str
    declaredType: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class FileValidated:
    """A file is what it claims to be."""

    TYPE: ClassVar[str] = "FileValidated.v1"
    KEY: ClassVar[str] = "files.validated.v1"
    fileId: str
    run: int
    name: str
    contentType: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class FileRejected:
    """A file is not what it claims to be, or not what is taken."""

    TYPE: ClassVar[str] = "FileRejected.v1"
    KEY: ClassVar[str] = "files.rejected.v1"
    fileId: str
    run: int
    name: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class ThumbnailGenerated:
    """A small picture of the file is there."""

    TYPE: ClassVar[str] = "ThumbnailGenerated.v1"
    KEY: ClassVar[str] = "thumbnails.generated.v1"
    fileId: str
    run: int
    width: int
    height: int
    size: int


@dataclass(frozen=True, slots=True)
class MetadataExtracted:
    """What could be found out about the file."""

    TYPE: ClassVar[str] = "MetadataExtracted.v1"
    KEY: ClassVar[str] = "metadata.extracted.v1"
    fileId: str
    run: int
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProcessingCompleted:
    """Everything that a file needs has been done."""

    TYPE: ClassVar[str] = "ProcessingCompleted.v1"
    KEY: ClassVar[str] = "processing.completed.v1"
    fileId: str
    run: int
    name: str


@dataclass(frozen=True, slots=True)
class ProcessingFailed:
    """A stage has given a file up; its message rests in the dead-letter queue."""

    TYPE: ClassVar[str] = "ProcessingFailed.v1"
    KEY: ClassVar[str] = "processing.failed.v1"
    fileId: str
    run: int
    stage: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProcessingTimedOut:
    """A file was not done in time; it still may be."""

    TYPE: ClassVar[str] = "ProcessingTimedOut.v1"
    KEY: ClassVar[str] = "processing.timed-out.v1"
    fileId: str
    run: int
    name: str
    waitingFor: list[str]


def payload_of(envelope: PipelineMessage, *wanted: type[Any]) -> Any:
    """The payload as the one of the wanted classes that the message's type names; else Malformed."""
    found = next((kind for kind in wanted if envelope.type == kind.TYPE), None)
    if found is None:
        expected = " or ".join(kind.TYPE for kind in wanted)
        raise Malformed(f"type: expected {expected}, got {envelope.type[:80]!r}")
    hints = get_type_hints(found)
    values = {}
    for name in (field.name for field in fields(found)):
        kind = getattr(hints[name], "__origin__", hints[name])
        values[name] = envelope.payload.get(name)
        if type(values[name]) is not kind:
            got = type(values[name]).__name__
            raise Malformed(f"payload.{name}: expected {kind.__name__}, got {got}")
    return found(**values)


def message_of(
    payload: PipelinePayload,
    *,
    producer: str,
    now: float,
    correlation_id: str | None = None,
    cause: PipelineMessage | None = None,
    occasion: str = "",
) -> Message:
    """The payload in its envelope, ready to be published.

    The id follows from cause, producer and content: a message that is made twice is recognised as
    the same by everyone who remembers what was processed. `occasion` tells apart what happens again on
    purpose, as by a re-drive.
    """
    content = asdict(payload)
    about = [cause.messageId if cause else "", producer, payload.TYPE]
    about += [content["fileId"], str(content["run"]), *([occasion] if occasion else [])]
    message_id = str(uuid.uuid5(_IDS, "/".join(about)))
    correlation = correlation_id or (cause.correlationId if cause else message_id)
    exchange = COMMANDS if payload.KEY.startswith("commands.") else EVENTS
    envelope = {
        "messageId": message_id,
        "kind": "command" if exchange == COMMANDS else "event",
        "type": payload.TYPE,
        "occurredAt": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
        "correlationId": correlation,
        "causationId": cause.messageId if cause else None,
        "producer": producer,
        "version": _VERSION,
        "payload": content,
    }
    return compose(
        payload.KEY,
        envelope,
        exchange=exchange,
        message_id=message_id,
        message_type=payload.TYPE,
        correlation_id=correlation,
    )
