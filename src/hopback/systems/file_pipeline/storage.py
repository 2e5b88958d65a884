"""Stores files in a folder or in an object store.

The methods may block and are called in threads. Any object store with the S3 API can be used, such
as Amazon S3, MinIO or Ceph. boto3 finds the credentials and the region itself (from
`AWS_ACCESS_KEY_ID` and others, or the role of the machine).
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import uuid
from abc import ABC, abstractmethod
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Self

from hopback.extras import needs
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.settings import SettingsError

_LONGEST_NAME = 200
"""The maximum number of characters in a file name. In most scripts, this is less than 255 bytes."""
_FORGOTTEN_S = 24 * 3600.0
"""Seconds. If an unfinished upload is older, its process was killed, because no upload takes a day.
"""
_UNFIT = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_ADDRESS = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([\w/.-]*))?\Z")
_MISSING = ("404", "NoSuchKey", "NotFound")
"""The error codes that object stores use for missing keys."""


class FileStorage(ABC):
    """Stores the files of the pipeline under generated ids. All other ids raise ValueError.

    A file is received as `incoming/ID` and then moved to `files/ID`. Its thumbnail is
    `thumbnails/ID.png`.
    """

    @abstractmethod
    def prepare(self, now: float) -> None:
        """Create missing folders and remove abandoned uploads. Raises OSError if this fails."""

    @abstractmethod
    def put(self, key: str, file: BinaryIO) -> None:
        """Store a file durably. Concurrent readers see either the old or the new content."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """Return the content of a key, or None if it does not exist."""

    @abstractmethod
    def find_size(self, key: str) -> int | None:
        """Return the size of a key in bytes, or None if it does not exist. The content is not read."""

    @abstractmethod
    def move(self, source: str, target: str) -> None:
        """Move a key. A missing source is not an error."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete a key. A missing key is not an error."""

    def receive(self, file_id: str, file: BinaryIO) -> None:
        self.put(f"incoming/{checked_id(file_id)}", file)

    def forget(self, file_id: str) -> None:
        """Remove a file that was received but not registered."""
        self.delete(f"incoming/{checked_id(file_id)}")

    def take_in(self, file_id: str) -> tuple[int, str]:
        """Move a received file to its final place and return its size and hash.

        This may be called again. Raises FileNotFoundError if the file was never received.
        """
        self.move(f"incoming/{checked_id(file_id)}", f"files/{file_id}")
        content = self.read(file_id)
        return len(content), hashlib.sha256(content).hexdigest()

    def read(self, file_id: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError if it does not exist."""
        content = self.get(f"files/{checked_id(file_id)}")
        if content is None:
            raise FileNotFoundError(f"file {file_id} was never received")
        return content

    def keep_thumbnail(self, file_id: str, content: bytes) -> None:
        self.put(f"thumbnails/{checked_id(file_id)}.png", io.BytesIO(content))

    def read_thumbnail(self, file_id: str) -> bytes | None:
        """Return the thumbnail of a file, or None if there is none yet."""
        return self.get(f"thumbnails/{checked_id(file_id)}.png")


def open_storage(settings: PipelineSettings) -> FileStorage:
    """Return the configured storage. Raises MissingExtra if a library for it is not installed."""
    if settings.storage:
        return S3Storage.at(settings.storage, settings.s3_endpoint)
    return Folder(settings.folder)


class Folder(FileStorage):
    """Stores files in a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def prepare(self, now: float) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)  # uploads are private
        for name in ("incoming", "files", "thumbnails"):
            (self._root / name).mkdir(mode=0o700, exist_ok=True)
        for path in (self._root / "incoming").glob("*.part"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < now - _FORGOTTEN_S:
                    path.unlink()

    def put(self, key: str, file: BinaryIO) -> None:
        unfinished = (self._root / key).with_suffix(".part")
        with unfinished.open("wb") as target:
            shutil.copyfileobj(file, target)
            target.flush()
            os.fsync(target.fileno())  # the next message will refer to this file
        os.replace(unfinished, self._root / key)

    def get(self, key: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return (self._root / key).read_bytes()
        return None

    def find_size(self, key: str) -> int | None:
        with suppress(FileNotFoundError):
            return (self._root / key).stat().st_size
        return None

    def move(self, source: str, target: str) -> None:
        with suppress(FileNotFoundError):
            os.replace(self._root / source, self._root / target)

    def delete(self, key: str) -> None:
        (self._root / key).unlink(missing_ok=True)


class S3Storage(FileStorage):
    """Stores files in an S3 bucket. `prefix` is empty or ends with a slash."""

    def __init__(self, client: Any, bucket: str, prefix: str = "") -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    @classmethod
    def at(cls, address: str, endpoint: str = "") -> Self:
        """Create a storage for an address like `s3://bucket/prefix`. `endpoint` is the URL of the
        object store if it is not Amazon's.
        """
        found = _ADDRESS.match(address)
        if found is None:
            raise SettingsError(f"FILES_STORAGE: expected s3://bucket/prefix, got {address!r}")
        with needs("s3", "storage in S3"):
            boto3 = import_module("boto3")
        prefix = (found[2] or "").strip("/")
        client = boto3.client("s3", endpoint_url=endpoint or None)
        return cls(client, found[1], f"{prefix}/" if prefix else "")

    def prepare(self, now: float) -> None:
        """Check that the bucket exists. Abandoned uploads must be removed by a lifecycle rule of
        the bucket.
        """
        try:
            self._client.head_bucket(Bucket=self._bucket)
        except Exception as error:
            raise OSError(f"bucket {self._bucket}: {error}") from error

    def put(self, key: str, file: BinaryIO) -> None:
        self._client.upload_fileobj(file, self._bucket, self._prefix + key)

    def get(self, key: str) -> bytes | None:
        found = self._ask(self._client.get_object, key)
        return None if found is None else found["Body"].read()

    def find_size(self, key: str) -> int | None:
        found = self._ask(self._client.head_object, key)
        return None if found is None else int(found["ContentLength"])

    def move(self, source: str, target: str) -> None:
        """Copy a key and then delete it. If this is interrupted, it can be repeated."""
        if self.find_size(source) is not None:
            origin = {"Bucket": self._bucket, "Key": self._prefix + source}
            # The method `copy` splits large files into several requests.
            self._client.copy(origin, self._bucket, self._prefix + target)
            self.delete(source)

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def _ask(self, request: Any, key: str) -> Any:
        """Return the response of the object store, or None if the key does not exist."""
        try:
            return request(Bucket=self._bucket, Key=self._prefix + key)
        except self._client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] not in _MISSING:
                raise
            return None


def is_file_id(text: str) -> bool:
    """Return True if the text is a UUID in its usual form."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def checked_id(file_id: str) -> str:
    """Return the id if it is valid, otherwise raise ValueError. The id may come from a message, so
    it could be a path.
    """
    if not is_file_id(file_id):
        raise ValueError(f"expected the id of a file, got {file_id[:60]!r}")
    return file_id


def shown_name(given: str) -> str:
    """Remove folders and control characters from a file name and limit its length."""
    last = re.split(r"[/\\]", given)[-1]
    plain = _UNFIT.sub("", last).strip().strip(".").strip()
    if len(plain) > _LONGEST_NAME:
        stem, dot, ending = plain.rpartition(".")
        kept = f"{dot}{ending}" if stem and len(ending) <= 10 else ""
        plain = plain[: _LONGEST_NAME - len(kept)] + kept
    return plain
