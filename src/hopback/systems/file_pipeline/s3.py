"""The files in an object store that speaks S3: Amazon's, MinIO, Ceph and others.

Credentials and region come from where boto3 looks for them (`AWS_ACCESS_KEY_ID`, …, or the machine's role).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import import_module
from tempfile import SpooledTemporaryFile
from typing import Any, Self

from hopback.extras import needs
from hopback.systems.file_pipeline.folder import checked_id
from hopback.systems.file_pipeline.storage import Fingerprint
from hopback.systems.settings import SettingsError

__all__ = ["S3Storage"]

_ADDRESS = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([\w/.-]*))?\Z")
_IN_MEMORY = 4 * 1024 * 1024
"""A file that is coming in is held in memory up to this size, then on disk: S3 wants to know its length."""
_MISSING = ("404", "NoSuchKey", "NotFound")
"""What object stores call a key that is not there."""


@dataclass(frozen=True, slots=True)
class S3Storage:
    """A bucket; `prefix` is empty or ends with a slash."""

    client: Any
    bucket: str
    prefix: str = ""

    @classmethod
    def at(cls, address: str, endpoint: str = "") -> Self:
        """From `s3://bucket/prefix`; `endpoint` is the store's URL where it is not Amazon's."""
        found = _ADDRESS.match(address)
        if found is None:
            raise SettingsError(f"FILES_STORAGE: expected s3://bucket/prefix, got {address!r}")
        with needs("s3", "storage in S3"):
            boto3 = import_module("boto3")
        prefix = (found[2] or "").strip("/")
        client = boto3.client("s3", endpoint_url=endpoint or None)
        return cls(client, found[1], f"{prefix}/" if prefix else "")

    def prepare(self, now: float) -> None:
        """Make sure that the bucket is there; what uploads leave is removed by a rule of the bucket."""
        try:
            self.client.head_bucket(Bucket=self.bucket)
        except Exception as error:
            raise OSError(f"bucket {self.bucket}: {error}") from error

    def receive(self, file_id: str) -> _IncomingObject:
        """Begin to receive a file."""
        return _IncomingObject(self, self._key("incoming", file_id))

    def forget(self, file_id: str) -> None:
        """Remove a received file; S3 does not mind if there is none."""
        self.client.delete_object(Bucket=self.bucket, Key=self._key("incoming", file_id))

    def take_in(self, file_id: str) -> Fingerprint:
        """Copy a received file to its place, then remove the one that came in: a copy may be repeated."""
        source, target = self._key("incoming", file_id), self._key("files", file_id)
        if self._found(source):
            origin = {"Bucket": self.bucket, "Key": source}
            self.client.copy(origin, self.bucket, target)  # in parts where one request is too small
            self.client.delete_object(Bucket=self.bucket, Key=source)
        elif not self._found(target):
            raise FileNotFoundError(f"file {file_id} was never received")
        content = self.read(file_id)
        return Fingerprint(len(content), hashlib.sha256(content).hexdigest())

    def read(self, file_id: str) -> bytes:
        """A file that was taken in."""
        content = self._content(self._key("files", file_id))
        if content is None:
            raise FileNotFoundError(f"file {file_id} is not in the bucket")
        return content

    def size(self, file_id: str) -> int:
        """How long a file is."""
        found = self._head(self._key("files", file_id))
        if found is None:
            raise FileNotFoundError(f"file {file_id} is not in the bucket")
        return int(found["ContentLength"])

    def keep_thumbnail(self, file_id: str, content: bytes) -> None:
        """Keep a small picture: S3 replaces an object whole."""
        key = self._key("thumbnails", file_id)
        self.client.put_object(Bucket=self.bucket, Key=key, Body=content, ContentType="image/png")

    def read_thumbnail(self, file_id: str) -> bytes | None:
        """The file's small picture."""
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
    """Gathers a file, and puts it into the bucket when it is complete."""

    def __init__(self, storage: S3Storage, key: str) -> None:
        self._storage = storage
        self._key = key
        self._file = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - closed by `drop`

    def write(self, content: bytes) -> None:
        """Add a piece."""
        self._file.write(content)

    def keep(self) -> None:
        """Put it into the bucket; S3 has it durably when it answers."""
        self._file.seek(0)
        self._storage.client.upload_fileobj(self._file, self._storage.bucket, self._key)

    def drop(self) -> None:
        """Forget it."""
        self._file.close()
