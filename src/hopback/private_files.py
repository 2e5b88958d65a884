"""Files and folders for their owner alone: payloads, jobs, the audit and hashes of keys are in them."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["create_private", "make_private", "private_folder", "write_private"]

_FILE = 0o600  # for its owner alone
_FOLDER = 0o700  # for its owner alone


def create_private(path: Path) -> None:
    """Create an empty file that only its owner may read, unless the file exists; OSError if it cannot."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE))


def make_private(path: Path) -> None:
    """Remove the rights of other users from an existing file; OSError if it is missing.

    The file of another user keeps its rights. The file is not opened: if it is a database, closing it
    would drop the locks that SQLite holds on it in this process.
    """
    mode = path.stat().st_mode
    # A terminal or a pipe keeps its rights, and a read-only file stays read-only.
    if stat.S_ISREG(mode) and stat.S_IMODE(mode) & ~_FILE:
        with suppress(PermissionError):
            path.chmod(stat.S_IMODE(mode) & _FILE)


def write_private(path: Path, content: bytes) -> None:
    """Write a whole file that nobody but its owner reads, also where one was there before."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE)
    with os.fdopen(descriptor, "wb") as file:
        make_private(path)
        file.write(content)


def private_folder(path: Path) -> Path:
    """The folder; each that has to be made on the way is its owner's alone."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=_FOLDER, exist_ok=True)
    return path
