"""Stores files in a folder that all parts share."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

_FORGOTTEN_S = 24 * 3600.0
"""Seconds. If an unfinished upload is older, its process was killed, because no upload takes a day.
"""


class FileStorage:
    """Stores files under generated ids. All other ids raise ValueError, because an id may come from
    a message and could be a path.

    A file is received as `incoming/ID` and then moved to `files/ID`. Its thumbnail is
    `thumbnails/ID.png`. The methods block and are called in threads.
    """

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

    def receive(self, file_id: str, file: BinaryIO) -> None:
        self._write(self._path("incoming", file_id), file)

    def take_in(self, file_id: str) -> tuple[int, str]:
        """Move a received file to its final place and return its size and hash.

        This may be called again. Raises FileNotFoundError if the file was never received.
        """
        with suppress(FileNotFoundError):
            os.replace(self._path("incoming", file_id), self._path("files", file_id))
        content = self.read(file_id)
        return len(content), hashlib.sha256(content).hexdigest()

    def read(self, file_id: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError if it does not exist."""
        return self._path("files", file_id).read_bytes()

    def keep_thumbnail(self, file_id: str, content: bytes) -> None:
        self._write(self._path("thumbnails", file_id, ".png"), io.BytesIO(content))

    def read_thumbnail(self, file_id: str) -> bytes | None:
        """Return the thumbnail of a file, or None if there is none yet."""
        with suppress(FileNotFoundError):
            return self._path("thumbnails", file_id, ".png").read_bytes()
        return None

    def _path(self, folder: str, file_id: str, ending: str = "") -> Path:
        if not is_file_id(file_id):
            raise ValueError(f"expected the id of a file, got {file_id[:60]!r}")
        return self._root / folder / f"{file_id}{ending}"

    def _write(self, path: Path, file: BinaryIO) -> None:
        """Write a file durably. Concurrent readers see either the old or the new content."""
        unfinished = path.with_suffix(".part")
        with unfinished.open("wb") as target:
            shutil.copyfileobj(file, target)
            target.flush()
            os.fsync(target.fileno())  # the next message will refer to this file
        os.replace(unfinished, path)


def is_file_id(text: str) -> bool:
    """Return True if the text is a UUID in its usual form."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
