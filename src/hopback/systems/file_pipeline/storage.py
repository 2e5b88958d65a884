"""Stores files in a folder that all parts share, or in an object store.

Any object store with the S3 API can be used, such as Amazon S3, MinIO or Ceph. boto3 finds the
credentials and the region itself (from `AWS_ACCESS_KEY_ID` and others, or the role of the machine).
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import uuid
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from hopback.extras import needs
from hopback.systems.file_pipeline.settings import PipelineSettings

_FORGOTTEN_S = 24 * 3600.0
"""Seconds. If an unfinished upload is older, its process was killed, because no upload takes a day.
"""
_MISSING = ("404", "NoSuchKey", "NotFound")
"""The error codes that object stores use for missing keys."""


class FileStorage:
    """Stores files under generated ids. All other ids raise ValueError, because an id may come from
    a message and could be a path.

    A file is received as `incoming/ID` and then moved to `files/ID`. Its thumbnail is
    `thumbnails/ID.png`. The methods block and are called in threads.
    """

    def __init__(self, place: Folder | Bucket) -> None:
        self._place = place

    def prepare(self, now: float) -> None:
        """Prepare the folder or check the bucket. Raises OSError if this fails."""
        self._place.prepare(now)

    def receive(self, file_id: str, file: BinaryIO) -> None:
        self._place.write(_key("incoming", file_id), file)

    def take_in(self, file_id: str) -> tuple[int, str]:
        """Move a received file to its final place and return its size and hash.

        This may be called again. Raises FileNotFoundError if the file was never received.
        """
        self._place.move(_key("incoming", file_id), _key("files", file_id))
        content = self.read(file_id)
        return len(content), hashlib.sha256(content).hexdigest()

    def read(self, file_id: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError if it does not exist."""
        content = self._place.read(_key("files", file_id))
        if content is None:
            raise FileNotFoundError(f"file {file_id} was never received")
        return content

    def keep_thumbnail(self, file_id: str, content: bytes) -> None:
        self._place.write(_key("thumbnails", file_id, ".png"), io.BytesIO(content))

    def read_thumbnail(self, file_id: str) -> bytes | None:
        """Return the thumbnail of a file, or None if there is none yet."""
        return self._place.read(_key("thumbnails", file_id, ".png"))


class Folder:
    """Stores files in a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def prepare(self, now: float) -> None:
        """Create missing folders and remove abandoned uploads."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)  # uploads are private
        for name in ("incoming", "files", "thumbnails"):
            (self._root / name).mkdir(mode=0o700, exist_ok=True)
        for path in (self._root / "incoming").glob("*.part"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < now - _FORGOTTEN_S:
                    path.unlink()

    def write(self, key: str, file: BinaryIO) -> None:
        """Write a file durably. Concurrent readers see either the old or the new content."""
        unfinished = (self._root / key).with_suffix(".part")
        with unfinished.open("wb") as target:
            shutil.copyfileobj(file, target)
            target.flush()
            os.fsync(target.fileno())  # the next message will refer to this file
        os.replace(unfinished, self._root / key)

    def read(self, key: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        with suppress(FileNotFoundError):
            return (self._root / key).read_bytes()
        return None

    def move(self, source: str, target: str) -> None:
        """Move a file. A missing source is not an error."""
        with suppress(FileNotFoundError):
            os.replace(self._root / source, self._root / target)


class Bucket:
    """Stores files in a bucket of an object store.

    `address` is `s3://bucket/prefix`, and `endpoint` the URL of the object store if it is not
    Amazon's. Raises MissingExtra if boto3 is not installed.
    """

    def __init__(self, address: str, endpoint: str = "") -> None:
        with needs("s3", "storage in S3"):
            boto3 = import_module("boto3")
        self._client = boto3.client("s3", endpoint_url=endpoint or None)
        self._name, _, prefix = address.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix.strip('/')}/".lstrip("/")

    def prepare(self, now: float) -> None:
        """Check that the bucket exists. Abandoned uploads must be removed by a lifecycle rule of
        the bucket.
        """
        try:
            self._client.head_bucket(Bucket=self._name)
        except Exception as error:
            raise OSError(f"bucket {self._name}: {error}") from error

    def write(self, key: str, file: BinaryIO) -> None:
        self._client.upload_fileobj(file, self._name, self._prefix + key)

    def read(self, key: str) -> bytes | None:
        """Return the content of an object, or None if it does not exist."""
        found = self._ask(self._client.get_object, key)
        return None if found is None else found["Body"].read()

    def move(self, source: str, target: str) -> None:
        """Copy an object and then delete it. If this is interrupted, it can be repeated. A missing
        source is not an error.
        """
        if self._ask(self._client.head_object, source) is not None:
            origin = {"Bucket": self._name, "Key": self._prefix + source}
            # The method `copy` splits large files into several requests.
            self._client.copy(origin, self._name, self._prefix + target)
            self._client.delete_object(**origin)

    def _ask(self, request: Any, key: str) -> Any:
        """Return the response of the object store, or None if the key does not exist."""
        try:
            return request(Bucket=self._name, Key=self._prefix + key)
        except self._client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] not in _MISSING:
                raise
            return None


def open_storage(settings: PipelineSettings) -> FileStorage:
    """Return the configured storage. Raises MissingExtra if a library for it is not installed."""
    if settings.storage:
        return FileStorage(Bucket(settings.storage, settings.s3_endpoint))
    return FileStorage(Folder(settings.folder))


def is_file_id(text: str) -> bool:
    """Return True if the text is a UUID in its usual form."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _key(folder: str, file_id: str, ending: str = "") -> str:
    if not is_file_id(file_id):
        raise ValueError(f"expected the id of a file, got {file_id[:60]!r}")
    return f"{folder}/{file_id}{ending}"
