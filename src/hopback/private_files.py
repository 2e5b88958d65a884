"""Files and folders for their owner alone: payloads, jobs, the audit and hashes of keys are in them."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["make_private", "private_folder", "write_private"]

_FILE = 0o600  # for its owner alone
_FOLDER = 0o700  # for its owner alone


def make_private(path: Path) -> None:
    """Make an empty file if there is none, and let nobody but its owner read it; OSError if it cannot be.

    A file of somebody else stays as that one wants it. A file that is there is not opened: closing it
    again would drop the locks that SQLite holds on it in this process.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE))
    _tighten(path)


def write_private(path: Path, content: bytes) -> None:
    """Write a whole file that nobody but its owner reads, also where one was there before."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE)
    with os.fdopen(descriptor, "wb") as file:
        _tighten(path)
        file.write(content)


def _tighten(path: Path) -> None:
    """What others may do goes, what the owner may do stays: a file that is read-only remains so."""
    mode = path.stat().st_mode
    if (
        stat.S_ISREG(mode) and stat.S_IMODE(mode) & ~_FILE
    ):  # a terminal or a pipe has rights of its own
        with suppress(PermissionError):  # it is somebody else's
            path.chmod(stat.S_IMODE(mode) & _FILE)


def private_folder(path: Path) -> Path:
    """The folder; each that has to be made on the way is its owner's alone."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=_FOLDER, exist_ok=True)
    return path
