"""The messages of the file pipeline: the common envelope and the payloads.

The names of the fields are those on the wire.
"""
# ruff: noqa: N815

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, Protocol, get_type_hints

from hopback import Message, compose

COMMANDS = "domain.commands"
EVENTS = "domain.events"
_VERSION = 1
"""Version of the envelope. It changes when a field changes its meaning."""
_IDS = uuid.UUID("5f0c2f0e-8f57-5a3b-9d0e-2f1a6c1d7b10")
"""The namespace of message ids, which are derived from the causes of the messages."""


class Malformed(ValueError):
    """A message does not match its type. The text has the field, the expected and the actual value."""


@dataclass(frozen=True, slots=True)
class PipelineMessage:
    """The envelope of every message."""

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
    """The payload of a message, with its type and routing key."""

    TYPE: ClassVar[str]
    KEY: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def fileId(self) -> str:  # noqa: N802
        """The id of the file."""

    @property
    def run(self) -> int:
        """The number of the run. Each reprocessing increments it."""


@dataclass(frozen=True, slots=True)
class UploadRequested:
    """Store a received file."""

    TYPE: ClassVar[str] = "UploadRequested.v1"
    KEY: ClassVar[str] = "commands.upload.requested.v1"
    fileId: str
    run: int
    name: str
    declaredType: str


@dataclass(frozen=True, slots=True)
class ReprocessFileRequested:
    """Process a stored file again."""

    TYPE: ClassVar[str] = "ReprocessFileRequested.v1"
    KEY: ClassVar[str] = "commands.file.reprocess.v1"
    fileId: str
    run: int
    name: str
    declaredType: str


@dataclass(frozen=True, slots=True)
class FileUploaded:
    """A file was stored."""

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
    """The content of a file matches its declared type."""

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
    """A file does not match its declared type or is not accepted."""

    TYPE: ClassVar[str] = "FileRejected.v1"
    KEY: ClassVar[str] = "files.rejected.v1"
    fileId: str
    run: int
    name: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class ThumbnailGenerated:
    """The thumbnail of a file was stored."""

    TYPE: ClassVar[str] = "ThumbnailGenerated.v1"
    KEY: ClassVar[str] = "thumbnails.generated.v1"
    fileId: str
    run: int
    width: int
    height: int
    size: int


@dataclass(frozen=True, slots=True)
class MetadataExtracted:
    """The metadata of a file."""

    TYPE: ClassVar[str] = "MetadataExtracted.v1"
    KEY: ClassVar[str] = "metadata.extracted.v1"
    fileId: str
    run: int
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProcessingCompleted:
    """All results of a file are available."""

    TYPE: ClassVar[str] = "ProcessingCompleted.v1"
    KEY: ClassVar[str] = "processing.completed.v1"
    fileId: str
    run: int
    name: str


@dataclass(frozen=True, slots=True)
class ProcessingFailed:
    """A stage failed for the last time. Its message is in the dead-letter queue."""

    TYPE: ClassVar[str] = "ProcessingFailed.v1"
    KEY: ClassVar[str] = "processing.failed.v1"
    fileId: str
    run: int
    stage: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProcessingTimedOut:
    """A file was not processed in time. It may still be completed."""

    TYPE: ClassVar[str] = "ProcessingTimedOut.v1"
    KEY: ClassVar[str] = "processing.timed-out.v1"
    fileId: str
    run: int
    name: str
    waitingFor: list[str]


def payload_of(envelope: PipelineMessage, *wanted: type[Any]) -> Any:
    """Return the payload as the class that the type names. Raises Malformed otherwise."""
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
    """Return the message of a payload.

    Its id is derived from cause, producer and content, so that an inbox recognises a message that was
    created twice. `occasion` distinguishes intended repetitions, for example by a re-drive.
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
