"""Files and folders for their owner alone: payloads, jobs, the audit and hashes of keys are in them."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_FILE = 0o600  # for its owner alone
_FOLDER = 0o700  # for its owner alone


def create_private(path: Path) -> None:
    """Create an empty file that only its owner can read, unless the file exists. OSError on failure."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE))


def make_private(path: Path) -> None:
    """Remove the rights of other users from an existing file. OSError if it is missing.

    The file of another user keeps its rights. The file is not opened: if it is a database, closing it
    would drop the locks that SQLite holds on it in this process.
    """
    mode = path.stat().st_mode
    # A terminal or a pipe keeps its rights, and a read-only file stays read-only.
    if stat.S_ISREG(mode) and stat.S_IMODE(mode) & ~_FILE:
        with suppress(PermissionError):
            path.chmod(stat.S_IMODE(mode) & _FILE)


def write_private(path: Path, content: bytes) -> None:
    """Write a whole file that only its owner can read. An existing file is replaced."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE)
    with os.fdopen(descriptor, "wb") as file:
        make_private(path)
        file.write(content)


def private_folder(path: Path) -> Path:
    """Return the folder. Missing folders on its path are created for the owner only."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=_FOLDER, exist_ok=True)
    return path


def control_socket(port: int) -> Path:
    """Return the path of the Unix socket on which the service with this HTTP port takes commands."""
    return runtime_folder() / f"{port}.sock"


def runtime_folder() -> Path:
    """Return the folder of this user's running processes. No other user can enter it.

    Raise PermissionError if the folder exists and other users own it or can enter it.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = (
        Path(runtime, "hopback")
        if runtime
        else Path(tempfile.gettempdir(), f"hopback-{os.getuid()}")
    )
    found = private_folder(folder).lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"expected {folder} to belong to user {os.getuid()} with mode 0700, "
            f"got user {found.st_uid} with mode {found.st_mode & 0o7777:04o}: remove it"
        )
    return folder
