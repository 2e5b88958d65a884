"""The messages of the file pipeline. All of them have the same envelope.

The fields have the same names as in the JSON bodies.
"""
# ruff: noqa: N815

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

import msgspec

from hopback import Message, compose

COMMANDS = "domain.commands"
EVENTS = "domain.events"
_VERSION = 1
"""The version of the envelope and of all types. It is incremented when the meaning of a field
changes.
"""
_IDS = uuid.UUID("5f0c2f0e-8f57-5a3b-9d0e-2f1a6c1d7b10")
"""The namespace of the message ids. The id of a message is derived from its cause."""


class Malformed(ValueError):
    """A message does not match its type. The text contains the field, the expected value and the
    actual value.
    """


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


class PipelinePayload(msgspec.Struct, frozen=True):
    """The payload of a message. `run` is 1 for an uploaded file and is incremented when the file is
    processed again.
    """

    KEY: ClassVar[str]
    fileId: str
    run: int

    @classmethod
    def message_type(cls) -> str:
        """Return the name of the type, for example `FileUploaded.v1`."""
        return f"{cls.__name__}.v{_VERSION}"


class UploadRequested(PipelinePayload, frozen=True):
    """Store a received file."""

    KEY = "commands.upload.requested.v1"
    name: str
    declaredType: str


class ReprocessFileRequested(PipelinePayload, frozen=True):
    """Process a stored file again."""

    KEY = "commands.file.reprocess.v1"
    name: str
    declaredType: str


class FileUploaded(PipelinePayload, frozen=True):
    """A file was stored."""

    KEY = "files.uploaded.v1"
    name: str
    declaredType: str
    size: int
    sha256: str


class FileValidated(PipelinePayload, frozen=True):
    """The content of a file matches its declared type."""

    KEY = "files.validated.v1"
    name: str
    contentType: str
    size: int
    sha256: str


class FileRejected(PipelinePayload, frozen=True):
    """A file does not match its declared type or is not accepted."""

    KEY = "files.rejected.v1"
    name: str
    code: str
    reason: str


class ThumbnailGenerated(PipelinePayload, frozen=True):
    """The thumbnail of a file was stored."""

    KEY = "thumbnails.generated.v1"
    width: int
    height: int
    size: int


class MetadataExtracted(PipelinePayload, frozen=True):
    """The metadata of a file was extracted."""

    KEY = "metadata.extracted.v1"
    metadata: dict[str, Any]


class ProcessingCompleted(PipelinePayload, frozen=True):
    """All results for a file are available."""

    KEY = "processing.completed.v1"
    name: str


class ProcessingFailed(PipelinePayload, frozen=True):
    """A stage failed at the last attempt. The message is now in the dead-letter queue."""

    KEY = "processing.failed.v1"
    stage: str
    reason: str


class ProcessingTimedOut(PipelinePayload, frozen=True):
    """A file was not processed in time. Processing may still complete."""

    KEY = "processing.timed-out.v1"
    name: str
    waitingFor: list[str]


def payload_of(envelope: PipelineMessage, *wanted: type[PipelinePayload]) -> Any:
    """Convert the payload to the class that matches the type of the message. Raises Malformed if
    there is none.
    """
    for kind in wanted:
        if envelope.type == kind.message_type():
            try:
                return msgspec.convert(envelope.payload, kind)
            except msgspec.ValidationError as error:
                raise Malformed(str(error).replace("$", "payload")) from None
    expected = " or ".join(kind.message_type() for kind in wanted)
    raise Malformed(f"type: expected {expected}, got {envelope.type[:80]!r}")


def message_of(
    payload: PipelinePayload,
    *,
    producer: str,
    now: float,
    correlation_id: str | None = None,
    cause: PipelineMessage | None = None,
    occasion: str = "",
) -> Message:
    """Return the message for a payload.

    The id is derived from the cause, the producer and the content. If a message is created twice,
    the inbox recognises it by its id. `occasion` makes a repetition distinct if it is intended, for
    example after a re-drive.
    """
    about = [cause.messageId if cause else "", producer, payload.message_type()]
    about += [payload.fileId, str(payload.run), *([occasion] if occasion else [])]
    message_id = str(uuid.uuid5(_IDS, "/".join(about)))
    correlation = correlation_id or (cause.correlationId if cause else message_id)
    exchange = COMMANDS if payload.KEY.startswith("commands.") else EVENTS
    envelope = {
        "messageId": message_id,
        "kind": "command" if exchange == COMMANDS else "event",
        "type": payload.message_type(),
        "occurredAt": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
        "correlationId": correlation,
        "causationId": cause.messageId if cause else None,
        "producer": producer,
        "version": _VERSION,
        "payload": msgspec.to_builtins(payload),
    }
    return compose(
        payload.KEY,
        envelope,
        exchange=exchange,
        message_id=message_id,
        message_type=payload.message_type(),
        correlation_id=correlation,
    )
