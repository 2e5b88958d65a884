"""The files in a folder: received, taken in, and their thumbnails. Nobody's names become paths."""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.systems.file_pipeline.storage import Fingerprint

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Fingerprint", "Folder", "checked_id", "fingerprint", "shown_name"]

_BLOCK = 1 << 20
"""Bytes that are read at once: memory does not grow with the file."""
_LONGEST_NAME = 200
"""Characters: below the 255 bytes of file systems for most scripts, and short enough to show."""
_FORGOTTEN_S = 24 * 3600.0
"""An unfinished upload of yesterday is one whose process was killed; none takes a day."""
_UNFIT = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


@dataclass(frozen=True, slots=True)
class Folder:
    """Where the files are; each is known by an id of ours, which is checked before it is a path."""

    root: Path

    def prepare(self, now: float) -> None:
        """Make what is missing, and remove what an upload left that never ended."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)  # what people upload is theirs
        for name in ("incoming", "files", "thumbnails"):
            (self.root / name).mkdir(mode=0o700, exist_ok=True)
        for path in (self.root / "incoming").glob("*.part"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < now - _FORGOTTEN_S:
                    path.unlink()

    def incoming(self, file_id: str) -> Path:
        """Where a file is received."""
        return self.root / "incoming" / checked_id(file_id)

    def file(self, file_id: str) -> Path:
        """Where a file is once it was taken in."""
        return self.root / "files" / checked_id(file_id)

    def thumbnail(self, file_id: str) -> Path:
        """Where the file's small picture is."""
        return self.root / "thumbnails" / f"{checked_id(file_id)}.png"

    def take_in(self, file_id: str) -> Fingerprint:
        """Move a received file to its place; one that is there already is left as it is."""
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
        """Remove a received file that nobody was told of."""
        self.incoming(file_id).unlink(missing_ok=True)

    def read(self, file_id: str) -> bytes:
        """A file that was taken in."""
        return self.file(file_id).read_bytes()

    def size(self, file_id: str) -> int:
        """How long a file is."""
        return self.file(file_id).stat().st_size

    def keep_thumbnail(self, file_id: str, content: bytes) -> None:
        """Write it beside its place and move it there."""
        target = self.thumbnail(file_id)
        unfinished = target.with_suffix(".part")
        unfinished.write_bytes(content)
        os.replace(unfinished, target)

    def read_thumbnail(self, file_id: str) -> bytes | None:
        """The file's small picture; None if there is none (yet)."""
        try:
            return self.thumbnail(file_id).read_bytes()
        except FileNotFoundError:
            return None


class _IncomingPath:
    """Writes a file beside its place, and moves it there when it is complete."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._unfinished = target.with_suffix(".part")
        self._file = self._unfinished.open("xb")

    def write(self, content: bytes) -> None:
        """Add a piece."""
        self._file.write(content)

    def keep(self) -> None:
        """The command that follows must not outlive its file: it is on the disk before that."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._unfinished, self._target)

    def drop(self) -> None:
        """Remove what is not kept."""
        self._file.close()
        self._unfinished.unlink(missing_ok=True)


def checked_id(file_id: str) -> str:
    """The id, if it is one of ours; a message may say anything."""
    try:
        if str(uuid.UUID(file_id)) == file_id:
            return file_id
    except ValueError:
        pass
    raise ValueError(f"expected the id of a file, got {file_id[:60]!r}")


def fingerprint(path: Path) -> Fingerprint:
    """Size and hash, read block by block."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return Fingerprint(size, digest.hexdigest())


def shown_name(given: str) -> str:
    """A name that is safe to show and to keep: no folders, no control characters, not too long."""
    last = re.split(r"[/\\]", given)[-1]
    plain = _UNFIT.sub("", last).strip().strip(".").strip()
    if len(plain) > _LONGEST_NAME:
        stem, dot, ending = plain.rpartition(".")
        kept = f"{dot}{ending}" if stem and len(ending) <= 10 else ""
        plain = plain[: _LONGEST_NAME - len(kept)] + kept
    return plain
