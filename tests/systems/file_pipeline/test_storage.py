"""Received files and thumbnails in a folder."""

from __future__ import annotations

import io
import os
import time
import uuid
from pathlib import Path

import pytest

from hopback.systems.file_pipeline.storage import FileStorage


def test_storage_receives_and_reads_files(tmp_path: Path) -> None:
    """A file is received completely or not at all, and taken in once. A thumbnail is replaced completely."""
    storage = FileStorage(tmp_path)
    storage.prepare(time.time())
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


@pytest.mark.parametrize(
    "text", ["", "..", "../x", "a/b", "x" * 36, "\x00", "A2F1C0DE-5B6B-4C3E-9D1A-0123456789AB"]
)
def test_storage_refuses_ids_that_are_not_uuids(text: str) -> None:
    with pytest.raises(ValueError, match="expected the id of a file"):
        FileStorage(Path("anywhere")).read(text)


def test_unfinished_upload_is_removed_after_a_day(tmp_path: Path) -> None:
    """Newer ones may still be in progress."""
    (tmp_path / "incoming").mkdir()
    old, young = (tmp_path / "incoming" / f"{name}.part" for name in ("old", "young"))
    now = time.time()
    for path, age in ((old, 90_000), (young, 60)):
        path.write_bytes(b"x")
        os.utime(path, (now - age, now - age))
    FileStorage(tmp_path).prepare(now)
    assert [path.exists() for path in (old, young)] == [False, True]
