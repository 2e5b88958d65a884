"""Received files and thumbnails in a folder and in an object store, which is moto's server."""

from __future__ import annotations

import io
import os
import time
import uuid
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hopback.systems.file_pipeline.storage import Bucket, FileStorage, Folder
from hopback.testing import in_virtual_time
from tests.systems.file_pipeline.gateway_client import open_gateway
from tests.systems.file_pipeline.samples import png

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUCKET = "s3://hopback-files/team"


@pytest.fixture
def s3_endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run moto's server with an empty bucket."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = import_module("moto.server").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = import_module("boto3").client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket="hopback-files")
    yield endpoint
    # All servers of a process share their buckets.
    for one in client.list_objects_v2(Bucket="hopback-files").get("Contents", ()):
        client.delete_object(Bucket="hopback-files", Key=one["Key"])
    server.stop()


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.socket)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> FileStorage:
    """Return each kind of storage, prepared."""
    if request.param == "s3":
        made = FileStorage(Bucket(_BUCKET, request.getfixturevalue("s3_endpoint")))
    else:
        made = FileStorage(Folder(tmp_path))
    made.prepare(time.time())
    return made


def test_storage_receives_and_reads_files(storage: FileStorage) -> None:
    """A file is received completely or not at all, and taken in once. A thumbnail is replaced completely."""
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    with pytest.raises(FileNotFoundError):
        storage.take_in(first)
    storage.receive(first, io.BytesIO(b"hello world"))
    size, sha256 = storage.take_in(first)
    assert storage.take_in(first) == (size, sha256)
    assert (size, storage.read(first)) == (11, b"hello world")
    for ask in (storage.take_in, storage.read):
        with pytest.raises(FileNotFoundError):
            ask(second)
    assert storage.read_thumbnail(first) is None
    for content in (b"one", b"two"):
        storage.keep_thumbnail(first, content)
        assert storage.read_thumbnail(first) == content
    with pytest.raises(ValueError, match="expected the id of a file"):
        storage.read("../../etc/passwd")


@pytest.mark.socket
@in_virtual_time
async def test_pipeline_stores_files_in_an_object_store(tmp_path: Path, s3_endpoint: str) -> None:
    """No file remains on disk."""
    options = {"storage": _BUCKET, "s3_endpoint": s3_endpoint}
    async with open_gateway(tmp_path, **options) as web:
        shown = await web.upload_and_settle(png(), "a.png", "image/png")
        assert shown["status"] == "completed", shown
        picture = await web.client.get(f"/files/{shown['fileId']}/thumbnail")
        assert picture.content[:4] == b"\x89PNG"
        assert [name for name in web.files_on_disk() if shown["fileId"] in name] == []
    client = import_module("boto3").client("s3", endpoint_url=s3_endpoint)
    found = client.list_objects_v2(Bucket="hopback-files", Prefix="team/")["Contents"]
    keys = {one["Key"] for one in found}
    file_id = shown["fileId"]
    assert keys == {f"team/files/{file_id}", f"team/thumbnails/{file_id}.png"}


@pytest.mark.parametrize(
    "text", ["", "..", "../x", "a/b", "x" * 36, "\x00", "A2F1C0DE-5B6B-4C3E-9D1A-0123456789AB"]
)
def test_storage_refuses_ids_that_are_not_uuids(text: str) -> None:
    with pytest.raises(ValueError, match="expected the id of a file"):
        FileStorage(Folder(Path("anywhere"))).read(text)


def test_unfinished_upload_is_removed_after_a_day(tmp_path: Path) -> None:
    """Newer ones may still be in progress."""
    (tmp_path / "incoming").mkdir()
    old, young = (tmp_path / "incoming" / f"{name}.part" for name in ("old", "young"))
    now = time.time()
    for path, age in ((old, 90_000), (young, 60)):
        path.write_bytes(b"x")
        os.utime(path, (now - age, now - age))
    Folder(tmp_path).prepare(now)
    assert [path.exists() for path in (old, young)] == [False, True]
