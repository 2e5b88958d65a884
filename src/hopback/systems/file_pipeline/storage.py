"""Where files lie: a port, so that a folder can be replaced by an object store.

All methods may block and are called in threads. `folder.py` and `s3.py` implement it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hopback.systems.file_pipeline.settings import PipelineSettings

__all__ = ["FileStorage", "Fingerprint", "IncomingFile", "open_storage"]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The size of a file and the hash of its bytes."""

    size: int
    sha256: str


class IncomingFile(Protocol):
    """A file that is coming in, piece by piece. It is there once it was kept, whole or not at all."""

    def write(self, content: bytes) -> None:
        """Add a piece."""

    def keep(self) -> None:
        """The file is complete: it is durable when this returns."""

    def drop(self) -> None:
        """Leave nothing behind; harmless after `keep`."""


class FileStorage(Protocol):
    """The files of the pipeline, each under an id of ours; ValueError for any other id."""

    def prepare(self, now: float) -> None:
        """Make what is missing, and remove what an upload left that never ended; OSError if it cannot."""

    def receive(self, file_id: str) -> IncomingFile:
        """Begin to receive a file."""

    def forget(self, file_id: str) -> None:
        """Remove a received file that nobody was told of; one that is not there is no error."""

    def take_in(self, file_id: str) -> Fingerprint:
        """Move a received file to its place; one that is there already is left as it is.

        FileNotFoundError if it was never received.
        """

    def read(self, file_id: str) -> bytes:
        """A file that was taken in; FileNotFoundError if there is none."""

    def size(self, file_id: str) -> int:
        """How long a file is, without reading it."""

    def keep_thumbnail(self, file_id: str, content: bytes) -> None:
        """Keep a small picture; a reader meanwhile sees the old one or the new one."""

    def read_thumbnail(self, file_id: str) -> bytes | None:
        """The file's small picture; None if there is none (yet)."""


def open_storage(settings: PipelineSettings) -> FileStorage:
    """The storage that the settings name; MissingExtra if its library is not installed."""
    if settings.storage:
        from hopback.systems.file_pipeline.s3 import S3Storage

        return S3Storage.at(settings.storage, settings.s3_endpoint)
    from hopback.systems.file_pipeline.folder import Folder

    return Folder(settings.folder)
