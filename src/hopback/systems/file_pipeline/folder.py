"""The files on disk: received, taken in, and their thumbnails. Nobody's names become paths."""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Fingerprint", "Folder", "fingerprint", "shown_name"]

_BLOCK = 1 << 20
_LONGEST_NAME = 200
_FORGOTTEN_S = 24 * 3600.0
_UNFIT = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The size of a file and the hash of its bytes."""

    size: int
    sha256: str


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
        return self.root / "incoming" / _checked(file_id)

    def file(self, file_id: str) -> Path:
        """Where a file is once it was taken in."""
        return self.root / "files" / _checked(file_id)

    def thumbnail(self, file_id: str) -> Path:
        """Where the file's small picture is."""
        return self.root / "thumbnails" / f"{_checked(file_id)}.png"

    def take_in(self, file_id: str) -> Fingerprint:
        """Move a received file to its place; one that is there already is left as it is."""
        source, target = self.incoming(file_id), self.file(file_id)
        try:
            os.replace(source, target)
        except FileNotFoundError:
            if not target.exists():
                raise FileNotFoundError(f"file {file_id} was never received") from None
        return fingerprint(target)


def _checked(file_id: str) -> str:
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
