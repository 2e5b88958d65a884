"""Create files and directories that only the current user can access.

They contain payloads, jobs, the audit log and hashes of keys.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_FILE = 0o600  # owner read and write
_FOLDER = 0o700  # owner only


def create_private(path: Path) -> None:
    """Create an empty file with mode 0600 if it does not exist."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE))


def make_private(path: Path) -> None:
    """Remove group and other permissions from a file.

    A file owned by another user is left unchanged. The file is not opened, because closing an
    SQLite database would release the locks this process holds on it.

    Raises:
        OSError: If the file does not exist.
    """
    mode = path.stat().st_mode
    # Skip terminals and pipes, and keep read-only files read-only.
    if stat.S_ISREG(mode) and stat.S_IMODE(mode) & ~_FILE:
        with suppress(PermissionError):
            path.chmod(stat.S_IMODE(mode) & _FILE)


def write_private(path: Path, content: bytes) -> None:
    """Write a file with mode 0600, replacing an existing file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE)
    with os.fdopen(descriptor, "wb") as file:
        make_private(path)
        file.write(content)


def private_folder(path: Path) -> Path:
    """Create the directory and its missing parents with mode 0700, and return it."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=_FOLDER, exist_ok=True)
    return path


def control_socket(port: int) -> Path:
    """Return the path of the control socket for the service with this HTTP port."""
    return runtime_folder() / f"{port}.sock"


def runtime_folder() -> Path:
    """Return the runtime directory of the current user.

    Raises:
        PermissionError: If the directory is accessible to other users.
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
            f"got user {found.st_uid} with mode {found.st_mode & 0o7777:04o}. Remove it"
        )
    return folder
