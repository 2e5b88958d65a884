"""Storage of files: an interface with two implementations, a folder and an object store.

All methods may block and are called in threads. The object store uses S3: Amazon's, MinIO, Ceph and
others. boto3 finds the credentials and the region (`AWS_ACCESS_KEY_ID`, …, or the machine's role).
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, Protocol, Self

from hopback.extras import needs
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.settings import SettingsError


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The size of a file and the hash of its bytes."""

    size: int
    sha256: str


class IncomingFile(Protocol):
    """A file that is being received in pieces. It exists after `keep`."""

    def write(self, content: bytes) -> None:
        """Add a piece."""

    def keep(self) -> None:
        """Store the complete file durably."""

    def drop(self) -> None:
        """Remove an incomplete upload. Has no effect after `keep`."""


class FileStorage(Protocol):
    """The files of the pipeline, each under a generated id. Raises ValueError for any other id."""

    def prepare(self, now: float) -> None:
        """Create missing folders and remove abandoned uploads. Raises OSError on failure."""

    def receive(self, file_id: str) -> IncomingFile:
        """Begin to receive a file."""

    def forget(self, file_id: str) -> None:
        """Remove a received file that was not announced. A missing file is not an error."""

    def take_in(self, file_id: str) -> Fingerprint:
        """Move a received file to its final place. An existing file is left unchanged.

        Raises FileNotFoundError if it was never received.
        """

    def read(self, file_id: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError if it does not exist."""

    def size(self, file_id: str) -> int:
        """Return the size of a file in bytes without reading it."""

    def keep_thumbnail(self, file_id: str, content: bytes) -> None:
        """Store a thumbnail. Concurrent readers see either the old or the new one."""

    def read_thumbnail(self, file_id: str) -> bytes | None:
        """Return the file's thumbnail, or None if it does not exist yet."""


def open_storage(settings: PipelineSettings) -> FileStorage:
    """Open the configured storage. Raises MissingExtra if its library is not installed."""
    if settings.storage:
        return S3Storage.at(settings.storage, settings.s3_endpoint)
    return Folder(settings.folder)


_BLOCK = 1 << 20
"""Bytes that are read at once."""
_LONGEST_NAME = 200
"""Maximum characters of a file name. Most scripts then need less than 255 bytes."""
_FORGOTTEN_S = 24 * 3600.0
"""Seconds. An older unfinished upload belongs to a killed process, as no upload takes a day."""
_UNFIT = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


@dataclass(frozen=True, slots=True)
class Folder:
    """Files in a folder. Each file id is checked before it is used in a path."""

    root: Path

    def prepare(self, now: float) -> None:
        """Create missing folders and remove abandoned uploads."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)  # uploads are private
        for name in ("incoming", "files", "thumbnails"):
            (self.root / name).mkdir(mode=0o700, exist_ok=True)
        for path in (self.root / "incoming").glob("*.part"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < now - _FORGOTTEN_S:
                    path.unlink()

    def incoming(self, file_id: str) -> Path:
        """Return the path of a file while it is received."""
        return self.root / "incoming" / checked_id(file_id)

    def file(self, file_id: str) -> Path:
        """Return the path of a stored file."""
        return self.root / "files" / checked_id(file_id)

    def thumbnail(self, file_id: str) -> Path:
        """Return the path of the thumbnail."""
        return self.root / "thumbnails" / f"{checked_id(file_id)}.png"

    def take_in(self, file_id: str) -> Fingerprint:
        """Move a received file to its final place. An existing file is left unchanged."""
        source, target = self.incoming(file_id), self.file(file_id)
        try:
            os.replace(source, target)
        except FileNotFoundError:
            if not target.exists():
                raise FileNotFoundError(f"file {file_id} was never received") from None
        return fingerprint(target)

    def receive(self, file_id: str) -> _IncomingPath:
        """Begin to receive a file."""
        return _IncomingPath(self.incoming(file_id))

    def forget(self, file_id: str) -> None:
        """Remove a received file that was not announced."""
        self.incoming(file_id).unlink(missing_ok=True)

    def read(self, file_id: str) -> bytes:
        """Return the content of a stored file."""
        return self.file(file_id).read_bytes()

    def size(self, file_id: str) -> int:
        """Return the size of a file in bytes."""
        return self.file(file_id).stat().st_size

    def keep_thumbnail(self, file_id: str, content: bytes) -> None:
        """Write the thumbnail to a temporary file and rename it."""
        target = self.thumbnail(file_id)
        unfinished = target.with_suffix(".part")
        unfinished.write_bytes(content)
        os.replace(unfinished, target)

    def read_thumbnail(self, file_id: str) -> bytes | None:
        """Return the file's thumbnail, or None if it does not exist yet."""
        try:
            return self.thumbnail(file_id).read_bytes()
        except FileNotFoundError:
            return None


class _IncomingPath:
    """Writes a temporary file and renames it when it is complete."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._unfinished = target.with_suffix(".part")
        self._file = self._unfinished.open("xb")

    def write(self, content: bytes) -> None:
        """Add a piece."""
        self._file.write(content)

    def keep(self) -> None:
        """Sync the file to disk, because the command that follows refers to it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._unfinished, self._target)

    def drop(self) -> None:
        """Remove the incomplete upload."""
        self._file.close()
        self._unfinished.unlink(missing_ok=True)


def checked_id(file_id: str) -> str:
    """Return a valid file id. Messages may contain arbitrary text."""
    try:
        if str(uuid.UUID(file_id)) == file_id:
            return file_id
    except ValueError:
        pass
    raise ValueError(f"expected the id of a file, got {file_id[:60]!r}")


def fingerprint(path: Path) -> Fingerprint:
    """Return size and hash. Reads the file in blocks."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return Fingerprint(size, digest.hexdigest())


def shown_name(given: str) -> str:
    """Return a name without folders and control characters, and of limited length."""
    last = re.split(r"[/\\]", given)[-1]
    plain = _UNFIT.sub("", last).strip().strip(".").strip()
    if len(plain) > _LONGEST_NAME:
        stem, dot, ending = plain.rpartition(".")
        kept = f"{dot}{ending}" if stem and len(ending) <= 10 else ""
        plain = plain[: _LONGEST_NAME - len(kept)] + kept
    return plain


_ADDRESS = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([\w/.-]*))?\Z")
_IN_MEMORY = 4 * 1024 * 1024
"""Bytes of an upload that are kept in memory, then on disk. S3 needs the size in advance."""
_MISSING = ("404", "NoSuchKey", "NotFound")
"""Error codes of object stores for a missing key."""


@dataclass(frozen=True, slots=True)
class S3Storage:
    """Files in a bucket. `prefix` is empty or ends with a slash."""

    client: Any
    bucket: str
    prefix: str = ""

    @classmethod
    def at(cls, address: str, endpoint: str = "") -> Self:
        """Connect to `s3://bucket/prefix`. `endpoint` is the URL of a store other than Amazon's."""
        found = _ADDRESS.match(address)
        if found is None:
            raise SettingsError(f"FILES_STORAGE: expected s3://bucket/prefix, got {address!r}")
        with needs("s3", "storage in S3"):
            boto3 = import_module("boto3")
        prefix = (found[2] or "").strip("/")
        client = boto3.client("s3", endpoint_url=endpoint or None)
        return cls(client, found[1], f"{prefix}/" if prefix else "")

    def prepare(self, now: float) -> None:
        """Check that the bucket exists. A lifecycle rule of the bucket removes abandoned uploads."""
        try:
            self.client.head_bucket(Bucket=self.bucket)
        except Exception as error:
            raise OSError(f"bucket {self.bucket}: {error}") from error

    def receive(self, file_id: str) -> _IncomingObject:
        """Begin to receive a file."""
        return _IncomingObject(self, self._key("incoming", file_id))

    def forget(self, file_id: str) -> None:
        """Remove a received file. In S3 a missing key is not an error."""
        self.client.delete_object(Bucket=self.bucket, Key=self._key("incoming", file_id))

    def take_in(self, file_id: str) -> Fingerprint:
        """Copy a received file to its final key, then delete the received one. The copy may be repeated."""
        source, target = self._key("incoming", file_id), self._key("files", file_id)
        if self._found(source):
            origin = {"Bucket": self.bucket, "Key": source}
            self.client.copy(origin, self.bucket, target)  # uses several requests for a large file
            self.client.delete_object(Bucket=self.bucket, Key=source)
        elif not self._found(target):
            raise FileNotFoundError(f"file {file_id} was never received")
        content = self.read(file_id)
        return Fingerprint(len(content), hashlib.sha256(content).hexdigest())

    def read(self, file_id: str) -> bytes:
        """Return the content of a stored file."""
        content = self._content(self._key("files", file_id))
        if content is None:
            raise FileNotFoundError(f"file {file_id} is not in the bucket")
        return content

    def size(self, file_id: str) -> int:
        """Return the size of a file in bytes."""
        found = self._head(self._key("files", file_id))
        if found is None:
            raise FileNotFoundError(f"file {file_id} is not in the bucket")
        return int(found["ContentLength"])

    def keep_thumbnail(self, file_id: str, content: bytes) -> None:
        """Store a thumbnail. S3 replaces an object atomically."""
        key = self._key("thumbnails", file_id)
        self.client.put_object(Bucket=self.bucket, Key=key, Body=content, ContentType="image/png")

    def read_thumbnail(self, file_id: str) -> bytes | None:
        """Return the thumbnail, or None if it does not exist yet."""
        return self._content(self._key("thumbnails", file_id))

    def _key(self, kind: str, file_id: str) -> str:
        return f"{self.prefix}{kind}/{checked_id(file_id)}"

    def _found(self, key: str) -> bool:
        return self._head(key) is not None

    def _head(self, key: str) -> Any:
        try:
            return self.client.head_object(Bucket=self.bucket, Key=key)
        except self.client.exceptions.ClientError as error:
            if not _is_missing(error):
                raise
            return None

    def _content(self, key: str) -> bytes | None:
        try:
            found = self.client.get_object(Bucket=self.bucket, Key=key)
        except self.client.exceptions.ClientError as error:
            if not _is_missing(error):
                raise
            return None
        content: bytes = found["Body"].read()
        return content


def _is_missing(error: Any) -> bool:
    return error.response["Error"]["Code"] in _MISSING


class _IncomingObject:
    """Collects a file and uploads it to the bucket when it is complete."""

    def __init__(self, storage: S3Storage, key: str) -> None:
        self._storage = storage
        self._key = key
        self._file = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - closed by `drop`

    def write(self, content: bytes) -> None:
        """Add a piece."""
        self._file.write(content)

    def keep(self) -> None:
        """Upload the file to the bucket. It is stored durably when S3 responds."""
        self._file.seek(0)
        self._storage.client.upload_fileobj(self._file, self._storage.bucket, self._key)

    def drop(self) -> None:
        """Delete the collected data."""
        self._file.close()
