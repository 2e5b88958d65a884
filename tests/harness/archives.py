"""Unpack tar archives on all supported versions of Python."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["unpack"]


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract all members into a folder. If tarfile supports filters, no member can leave the
    folder.

    Python 3.11.2 in Debian 12 has no filters. All archives are pinned or were created by the tests.
    """
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:
        archive.extractall(folder)
